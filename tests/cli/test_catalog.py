import subprocess
import sys

import pytest

from topologies import list_devices, list_topologies


def test_list_names_every_machine_and_gpu_in_80_columns(typed):
    out = typed("topology list").out
    assert {*list_topologies(), *list_devices()} <= set(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", list_topologies())
def test_show_draws_every_machine_in_80_columns(typed, name):
    out = typed("topology show", name).out
    assert out.startswith(f"{name}: ")
    assert "\nSource\n" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("machine", "lines"),
    [
        ("dgx1_v100", ["0       -   NV1   NV1   NV2   NV2  NVB1  NVB1  NVB2",
                       "NV2      50 GB/s   700 ns  gpu:0 > gpu:3"]),
        # The power limit, and rates without exponents.
        ("gb200_nvl72", ["1200 W", "nvfp4 10000"]),
        ("dgx_h100 --hosts 64", ["64 hosts, 512 GPUs", "spine:0"]),
    ],
)  # fmt: skip
def test_show_gives_links_bandwidths_power_and_how_far_hosts_are_apart(typed, machine, lines):
    out = typed(f"topology show {machine}").out
    assert all(line in out for line in lines)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_show_plots(typed, tmp_path, ending):
    path = tmp_path / f"machine.{ending}"
    assert f"Wrote {path}" in typed("topology show polaris --plot", path).out
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in start


@pytest.mark.parametrize("place", ["machine.doc", "machine", "no/such/folder/machine.png"])
def test_a_picture_that_cannot_be_written_is_refused(typed, tmp_path, place):
    said = typed("topology show polaris --plot", tmp_path / place, code=1).said
    assert said.startswith("perfmodel: picture ")


def test_check_praises_a_good_file(typed):
    out = typed("topology check dgx_h100").out
    assert "dgx_h100: good." in out
    assert "8 GPUs (h100_sxm)" in out


BAD = {
    "unknown_key.yaml": ("name: a\ncolour: red\n", "colour (line 2): unknown key"),
    "empty.yaml": ("", "it is empty"),
    "junk.yaml": ("\x00\x01\x02", "not valid YAML"),
    "bomb.yaml": ("a: &a [1]\nb: [*a, *a]\n", "aliases"),
}


@pytest.mark.parametrize("name", BAD)
def test_check_names_the_fault_of_a_bad_file(typed, tmp_path, name):
    content, complaint = BAD[name]
    (tmp_path / name).write_text(content)
    shown = typed("topology check", tmp_path / name, code=1)
    assert shown.out == ""
    assert complaint in shown.said


def test_a_directory_or_an_unknown_name_is_refused(typed, tmp_path):
    assert "it is a directory" in typed("topology check", tmp_path, code=1).said
    assert "Near: dgx_h100" in typed("topology show dgx_h10", code=1).said
    said = typed("topology show quad_a100 --hosts 2", code=1).said
    assert "no fabric to join 2 hosts" in said


def test_help_needs_nothing_heavy():
    heavy = "{'numpy', 'matplotlib', 'pandas', 'scipy', 'torch', 'ray', 'numba'}"
    code = f"import sys, perfmodel.cli.catalog; print({heavy} & set(sys.modules) or 'none')"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "none\n"
