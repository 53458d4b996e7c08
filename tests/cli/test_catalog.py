import subprocess
import sys

import pytest

from perfmodel.cli import main
from topologies import list_devices, list_topologies

COMMAND = "import sys; from perfmodel.cli import main; main(sys.argv[1:])"


@pytest.fixture
def run(capsys):
    def _run(*words):
        with pytest.raises(SystemExit) as stop:
            main(["topology", *map(str, words)])
        printed = capsys.readouterr()
        return stop.value.code, printed.out, printed.err

    return _run


def test_list_names_every_machine_and_gpu_in_80_columns(run):
    code, out, _ = run("list")

    assert code == 0
    assert {*list_topologies(), *list_devices()} <= set(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", list_topologies())
def test_show_draws_every_machine_in_80_columns(run, name):
    code, out, _ = run("show", name)

    assert code == 0
    assert out.startswith(f"{name}: ")
    assert "\nSource\n" in out
    assert max(map(len, out.splitlines())) <= 80


def test_show_gives_links_and_bandwidths(run):
    _, out, _ = run("show", "dgx1_v100")

    assert "0       -   NV1   NV1   NV2   NV2  NVB1  NVB1  NVB2" in out
    assert "NV2      50 GB/s   700 ns  gpu:0 > gpu:3" in out


def test_show_gives_the_power_limit_and_rates_without_exponents(run):
    _, out, _ = run("show", "gb200_nvl72")

    assert "1200 W" in out
    assert "nvfp4 10000" in out


def test_show_tells_how_far_hosts_are_apart(run):
    _, out, _ = run("show", "dgx_h100", "--hosts", 64)

    assert "64 hosts, 512 GPUs" in out
    assert "spine:0" in out


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_show_plots(run, tmp_path, ending):
    path = tmp_path / f"machine.{ending}"
    code, out, _ = run("show", "polaris", "--plot", path)

    assert code == 0
    assert f"Wrote {path}" in out
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in start


@pytest.mark.parametrize("place", ["machine.doc", "machine", "no/such/folder/machine.png"])
def test_a_picture_that_cannot_be_written_is_refused(run, tmp_path, place):
    code, _, err = run("show", "polaris", "--plot", tmp_path / place)

    assert code == 1
    assert err.startswith("perfmodel: picture ")


def test_check_praises_a_good_file(run):
    code, out, _ = run("check", "dgx_h100")

    assert code == 0
    assert "dgx_h100: good." in out
    assert "8 GPUs (h100_sxm)" in out


BAD = {
    "unknown_key.yaml": ("name: a\ncolour: red\n", "colour (line 2): unknown key"),
    "empty.yaml": ("", "it is empty"),
    "junk.yaml": ("\x00\x01\x02", "not valid YAML"),
    "bomb.yaml": ("a: &a [1]\nb: [*a, *a]\n", "aliases"),
}


@pytest.mark.parametrize("name", BAD)
def test_check_names_the_fault_of_a_bad_file(run, tmp_path, name):
    content, complaint = BAD[name]
    path = tmp_path / name
    path.write_text(content)
    code, out, err = run("check", path)

    assert (code, out) == (1, "")
    assert complaint in err
    assert "Traceback" not in err


def test_a_directory_or_an_unknown_name_is_refused(run, tmp_path):
    assert "it is a directory" in run("check", tmp_path)[2]
    assert "Near: dgx_h100" in run("show", "dgx_h10")[2]
    assert "no fabric to join 2 hosts" in run("show", "quad_a100", "--hosts", 2)[2]


def test_help_needs_nothing_heavy():
    heavy = "{'numpy', 'matplotlib', 'pandas', 'scipy', 'torch', 'ray', 'numba'}"
    code = f"import sys, perfmodel.cli.catalog; print({heavy} & set(sys.modules) or 'none')"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "none\n"
