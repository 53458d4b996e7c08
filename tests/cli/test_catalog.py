import json
import subprocess
import sys

import pytest

from perfmodel.workloads import load_workload
from tests.extensions.formats.machines.test_smi_matrix import SWITCHED
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
    assert "dgx_h100: valid." in out
    assert "8 GPUs (h100_sxm)" in out


def test_warnings_of_machines_and_keys_of_models_are_errors_when_asked(typed, tmp_path):
    machine = tmp_path / "mine.yaml"
    typed(f"init topology --out {machine}")
    machine.write_text(machine.read_text().replace("25 GB/s", "25 TB/s"))
    assert "implausible bandwidth" in typed(f"topology check {machine}").out
    assert "--strict" in typed(f"topology check {machine} --strict", code=1).err
    model = tmp_path / "config.json"
    model.write_text(LLAMA)
    out = tmp_path / "model.yaml"
    said = typed(f"workload import {model} --out {out} --strict", code=1).err
    assert "1 unknown key, without effect: surprise" in said
    assert not out.exists()
    assert "surprise" in typed(f"workload import {model} --out {out}").out


def test_options_of_a_command_in_a_group_are_its_own(typed, tmp_path):
    matrix = tmp_path / "topo.txt"
    matrix.write_text(SWITCHED)
    assert (
        "4 x NVIDIA H100"
        in typed(f"topology import {matrix} --gpu h100_sxm --out {tmp_path / 'machine.yaml'}").out
    )
    assert "Say --topology" in typed("predict --gpu h100_sxm", code=2).err


BAD = {
    "unknown_key.yaml": ("name: a\ncolour: red\n", "colour (line 2): unknown key"),
    "empty.yaml": ("", "is empty; must be lines"),
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


LLAMA = """{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
 "num_attention_heads": 4, "intermediate_size": 128, "surprise": 1}"""


def test_an_imported_model_reads_back_as_it_was_used(typed, tmp_path):
    config, out = tmp_path / "config.json", tmp_path / "my.yaml"
    config.write_text(LLAMA)
    said = typed("workload import --set batch=8 --fields", config, "--out", out).out
    assert "Read\n  num_hidden_layers" in said
    assert "Unknown, ignored\n  surprise" in said
    assert f"Wrote {out}" in said
    assert "Wrote" not in typed("workload import --set batch=8 --fields", config).out
    text = typed("workload import --set batch=8", config).out
    assert text == out.read_text()
    assert load_workload(out) == load_workload(config, ["batch=8"])


def test_the_fields_of_an_import_are_in_its_json(typed, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(LLAMA)
    found = json.loads(typed("workload import --json -", config).out)
    assert {one["key"]: one["use"] for one in found["fields"]}["surprise"] == "unknown"
    # Embedding and head 2 x 6,400; two layers of 4 x 4,096 and 3 x 8,192 and two norms; a norm.
    assert found["parameters"] == 2 * 6400 + 2 * (4 * 4096 + 3 * 8192 + 128) + 64


def test_a_workload_of_ours_needs_no_import(typed):
    said = typed("workload import llama3_8b", code=1).said
    assert "A perfmodel workload needs no import." in said
