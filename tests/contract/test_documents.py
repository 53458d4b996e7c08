"""Every kind of document, damaged in the same ways, names all its faults with their places."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from collectives.calibration import load_calibration
from collectives.measurements import load_measurements
from embeddings.plan_document import load_plan_document
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel import api
from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.prediction.scenario_file import load_scenario
from perfmodel.stacks.profiles import load_stack
from perfmodel.validation.runs_table import load_runs
from perfmodel.whatif.parsing import parse_transformation
from perfmodel.whatif.recipes import load_recipes
from perfmodel.workloads import load_workload
from topologies import load_device, load_topology

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kind:
    """A kind of document: a good one, how it is read, and six values to spoil.

    Each of *damages* replaces a text by another, and the fault is at the place that follows;
    `{line}` in it is the line of the replacement. *without* says why a kind cannot have one.
    """

    name: str
    text: str
    load: Callable[[Path], object]
    damages: dict[str, tuple[str, str, str]]
    repeated: tuple[str, str] | None = None
    ending: str = ".yaml"
    without: dict[str, str] = field(default_factory=dict)


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


TABLES = tuple(EmbeddingTable(f"t{number}", 100, 16) for number in range(2))
SHARD = {"shard_offsets": [0, 0], "shard_sizes": [100, 16], "placement": "rank:0/cuda:0"}
PLAN = {
    "ebc": {
        name: {"sharding_type": "table_wise", "ranks": [0], "sharding_spec": {"shards": [SHARD]}}
        for name in ("t0", "t1")
    }
}
KERNELS = """{
"source": "made up", "hardware": "one GPU", "software": "torch",
"date": "2026-01-01", "licence": "ours",
"command": "perfmodel calibrate gemm FILE",
"entries": [
{"device": "h100_sxm", "architecture": "hopper", "compute_capability": "9.0",
"variant": "bf16",
"constants": {"launch_ns": 5.0},
"correction": null,
"relative_sigma": 0.1}
]}
"""


RECIPES = """---
recipes:
  faster:
    does: GEMMs take *factor* of their time.
    parameters:
      factor: {is: factor, default: 0.5}
    assumes: ["GEMMs take {factor}."]
    steps:
      - select: {match: gemm, lane: compute}
      - scale: {factor: $factor}
      - select: {match: relu}
      - set: {to: 20 us}
      - select: {match: norm}
      - scale: {factor: 3}
    evidence: none
...
"""
SIX = ("unknown key", "missing key", "wrong type", "no unit", "out of bounds", "wrong word")


def load_kernels(path: Path) -> object:
    from perfmodel.costs.calibration_files import parse_entries

    return parse_entries(path.read_text(encoding="utf-8"), document=str(path))


def load_plan(path: Path) -> object:
    return load_plan_document(path, tables=TABLES, rank_count=1)


KINDS = [
    Kind(
        "topology",
        text_of("perfmodel/api/templates/topology.yaml"),
        load_topology,
        {
            "unknown key": ("pcie_switch: 4", "pcie_swich: 4", "vertices.pcie_swich (line {line})"),
            "missing key": ("name: my_host\n", "\n", "name"),
            "wrong type": ("leaf: {hosts: 32}", "leaf: 32", "fabric.leaf (line {line})"),
            "no unit": ("lanes: 18, bandwidth: 25 GB/s", "bandwidth: 25",
                        "links[0].bandwidth (line {line})"),
            "out of bounds": ("gpu: 8", "gpu: 9999", "vertices.gpu (line {line})"),
            "wrong word": ("rail_optimised", "railways", "fabric.kind (line {line})"),
        },
        repeated=("device:", "name: a\nname: b\ndevice:"),
    ),
    Kind(
        "device",
        "---\n" + text_of("topologies/devices/h100_sxm.yaml") + "...\n",
        load_device,
        {
            "unknown key": ("size: 81559 MiB", "size: 81559 MiB, sise: 1",
                            "memory.sise (line {line})"),
            "missing key": ("vendor: nvidia\n", "\n", "vendor"),
            "wrong type": ("count: 132", "count: many", "multiprocessors.count (line {line})"),
            "no unit": ("power: 700 W", "power: 700", "power (line {line})"),
            "out of bounds": ("clock: 1.98 GHz", "clock: 0 GHz", "clock (line {line})"),
            "wrong word": ("architecture: hopper", "architecture: gothic",
                           "architecture (line {line})"),
        },
        repeated=("power:", "name: b\npower:"),
    ),
    Kind(
        "stack",
        text_of("perfmodel/stacks/catalog/pytorch_eager.yaml"),
        load_stack,
        {
            "unknown key": ("execution: eager", "execution: eager\ncolour: red",
                            "colour (line {line})"),
            "missing key": ("name: pytorch_eager\n", "\n", "name"),
            "wrong type": ("fusions:", "host_speed_ratio: often\nfusions:",
                           "host_speed_ratio (line {line})"),
            "no unit": ("\n  launch: ", "\n  launch: 4 #", "host.launch (line {line})"),
            "out of bounds": ("overlaps:", "kernel_operations: {copy: -1}\noverlaps:",
                              "kernel_operations.copy (line {line})"),
            "wrong word": ("optimizer_kernels: ", "optimizer_kernels: fast #",
                           "optimizer_kernels (line {line})"),
        },
        repeated=("execution: eager", "execution: eager\nexecution: eager"),
    ),
    Kind(
        "workload",
        text_of("perfmodel/api/templates/dlrm.yaml"),
        load_workload,
        {
            "unknown key": ("width: 128", "width: 128\n  weight: 13",
                            "embedding.weight (line {line})"),
            "missing key": ("name: my_dlrm\n", "\n", "name"),
            "wrong type": ("batch: 65536", "batch: '65536'", "batch (line {line})"),
            "no unit": ("  precision: fp16", "  bucket_size: 25\n  precision: fp16",
                        "training.bucket_size (line {line})"),
            "out of bounds": ("features: 13", "features: 0", "dense.features (line {line})"),
            "wrong word": ("interaction: dot", "interaction: dots",
                           "dense.interaction (line {line})"),
        },
        repeated=("batch:", "name: b\nbatch:"),
    ),
    Kind(
        "scenario",
        text_of("perfmodel/api/templates/scenario.yaml"),
        load_scenario,
        {
            "unknown key": ("workload:", "workloads:", "workloads (line {line})"),
            "missing key": ("topology: dgx_h100", "", "topology"),
            "wrong type": ("hosts: 2", "hosts: two", "hosts (line {line})"),
            "out of bounds": ("\nset:", "\nseed: -1\nset:", "seed (line {line})"),
            "wrong word": ("# mode: isolated", "mode: soon #", "mode (line {line})"),
        },
        repeated=("hosts: 2", "hosts: 2\nhosts: 3"),
        without={"no unit": "all its numbers are counts"},
    ),
    Kind(
        "tables",
        text_of("perfmodel/api/templates/tables.yaml"),
        load_tables,
        {
            "unknown key": ("zipf: 1.1", "zapf: 1.1", "tables[1].zapf (line {line})"),
            "missing key": ("  - name: clicked_items\n    rows", "  - rows", "tables[1].name"),
            "wrong type": ("rows: 40000000", "rows: many", "tables[0].rows (line {line})"),
            "out of bounds": ("pooling_deviation: 12", "pooling_deviation: .inf",
                              "tables[1].pooling_deviation (line {line})"),
            "wrong word": ("dtype: fp32", "dtype: fp31", "tables[0].dtype (line {line})"),
        },
        repeated=("dtype: fp32", "dtype: fp32\n    dtype: fp32"),
        without={"no unit": "all its numbers are counts"},
    ),
    Kind(
        "tables in CSV",
        "name,rows,width,dtype,memory\na,100,32,fp32,device\nb,200,16,fp32,\n",
        load_tables,
        {
            "unknown key": ("dtype,memory", "dtype,memery", "row 0, column memery"),
            "missing key": ("\nb,", "\n,", "row 1, column name"),
            "wrong type": ("200", "many", "row 1, column rows"),
            "out of bounds": (",100,32,", ",0,32,", "row 0, column rows"),
            "wrong word": ("32,fp32,device\n", "32,fp31,device\n", "row 0, column dtype"),
        },
        without={"no unit": "all its numbers are counts"},
        repeated=("rows,width", "rows,rows"),
        ending=".csv",
    ),
    Kind(
        "plan",
        json.dumps(PLAN) + "\n",
        load_plan,
        {
            "unknown key": ('"t0": {', '"t0": {"colour": 1,', "ebc.t0.colour"),
            "missing key": ('"shard_offsets": [0, 0], ', "",
                            "ebc.t0.sharding_spec.shards[0].shard_offsets"),
            "wrong type": ('"ranks": [0]', '"ranks": 0', "ebc.t0.ranks"),
            "out of bounds": ("[100, 16]", "[-1, 16]",
                              "ebc.t0.sharding_spec.shards[0].shard_sizes[0]"),
            "wrong word": ("table_wise", "table_wide", "ebc.t0.sharding_type"),
        },
        without={"no unit": "all its numbers are counts"},
        repeated=('"t1":', '"t0":'),
        ending=".json",
    ),
    Kind(
        "calibration of kernels",
        KERNELS,
        load_kernels,
        {
            "unknown key": ('"variant"', '"variants": 1, "variant"', "entries[0].variants"),
            "missing key": ('"source": "made up", ', "", "source"),
            "wrong type": ("5.0", '"fast"', "entries[0].constants.launch_ns"),
            "out of bounds": ("0.1", "11.0", "entries[0].relative_sigma"),
        },
        without={
            "no unit": "names of constants carry the unit",
            "wrong word": "devices of a user's own may have any name",
        },
        repeated=('"licence"', '"date"'),
        ending=".json",
    ),
    Kind(
        "calibration of collectives",
        "---\n" + text_of("collectives/calibrations/nccl.yaml") + "...\n",
        load_calibration,
        {
            "unknown key": ("- name: hopper_nvswitch\n", "- name: hopper_nvswitch\n  colour: red\n",
                            "hosts[0].colour (line {line})"),
            "missing key": ("date: '2026-11-16'\n", "\n", "date"),
            "wrong type": ("constants: {launch_ns: 4079.99,", "constants: {launch_ns: fast,",
                           "hosts[0].constants.launch_ns (line {line})"),
            "out of bounds": ("spread_ns: 4011.01", "spread_ns: -1",
                              "hosts[1].constants.spread_ns (line {line})"),
            "wrong word": ("link_class: nvswitch", "link_class: bus",
                           "hosts[0].link_class (line {line})"),
        },
        repeated=("licence:", "hardware: x\nlicence:"),
        without={"no unit": "names of constants carry the unit"},
    ),
    Kind(
        "recipes",
        RECIPES,
        lambda path: load_recipes(str(path)),
        {
            "unknown key": ("match: gemm, ", "match: gemm, colour: red, ",
                            "recipes.faster.steps[0].select.colour (line {line})"),
            "missing key": ("    does: GEMMs take *factor* of their time.\n", "",
                            "recipes.faster.does"),
            "wrong type": ("{factor: $factor}", "{factor: fast}",
                           "recipes.faster.steps[1].scale.factor (line {line})"),
            "no unit": ("to: 20 us", "to: 20", "recipes.faster.steps[3].set.to (line {line})"),
            "out of bounds": ("{factor: 3}", "{factor: -3}",
                              "recipes.faster.steps[5].scale.factor (line {line})"),
            "wrong word": ("lane: compute", "lane: gpu",
                           "recipes.faster.steps[0].select.lane (line {line})"),
        },
        repeated=("    evidence: none", "    evidence: none\n    evidence: some"),
    ),
]  # fmt: skip
IDS = [kind.name for kind in KINDS]


def write(folder: Path, kind: Kind, content: str | bytes) -> Path:
    path = folder / f"document{kind.ending}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(kind: Kind, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        kind.load(path)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_every_kind_has_every_damage_or_a_reason(kind):
    assert sorted([*kind.damages, *kind.without]) == sorted(SIX)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_good_document_is_read(kind, tmp_path):
    assert kind.load(write(tmp_path, kind, kind.text)) is not None


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_all_faults_are_named_at_once_with_their_places(kind, tmp_path):
    text = kind.text
    for old, new, _ in kind.damages.values():
        assert old in text, old
        text = text.replace(old, new, 1)
    message = refusal(kind, write(tmp_path, kind, text))
    assert f": {len(kind.damages)} faults" in message, message
    for _, new, place in kind.damages.values():
        expected = place.replace("{line}", str(line_of(place, new, text)))
        # Faults of one cause share a line of the message.
        assert f"\n  {expected}" in message or f", {expected}" in message, (expected, message)


def line_of(place: str, new: str, text: str) -> int:
    """The line of *text* where *new* has the last key of *place*."""
    key = re.split(r"[.\]]", place.partition(" (")[0])[-1]
    lines = new.split("\n")
    inside = next((number for number, line in enumerate(lines) if key in line), 0)
    return text[: text.index(new)].count("\n") + inside + 1


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_an_unknown_key_has_a_suggestion_or_the_known_ones(kind, tmp_path):
    old, new, place = kind.damages["unknown key"]
    message = refusal(kind, write(tmp_path, kind, kind.text.replace(old, new, 1)))
    assert re.search(r"unknown key; (did you mean|known: )", message)
    assert place.partition(" (")[0] in message


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_what_is_no_document_at_all_is_refused_with_its_name(kind, tmp_path):
    assert kind.repeated is not None
    for content in (
        kind.text.replace(*kind.repeated, 1),
        "- 1\n- 2\n",
        kind.text[: len(kind.text) * 2 // 3].rstrip("\n"),
        b"\x00\xff\xfe\x80" * 50,
        "",
    ):
        path = write(tmp_path, kind, content)
        if isinstance(content, bytes) and kind.load is load_kernels:
            continue
        assert str(path) in refusal(kind, path)


RUNS = """id,device,n_gpus,gbs,iter_time_s,layers,hidden,heads,seq_len,recompute,compiled
one,h100_sxm,8,64,0.5,12,768,12,1024,,1
two,h100_sxm,8,64,0.5,12,768,12,1024,,1
"""
COLLECTIVES = """topology,hosts,nranks,collective,size_bytes,time_us,dtype
dgx_h100,1,8,all_reduce,1024,12.5,fp32
dgx_h100,1,8,all_reduce,2048,12.5,fp32
"""
MEASURED = [
    Kind("runs", RUNS, load_runs, {}, repeated=("heads", "hidden"), ending=".csv"),
    Kind("collectives", COLLECTIVES, lambda path: load_measurements([path]), {},
         repeated=("dtype", "hosts"), ending=".csv"),
]  # fmt: skip


@pytest.mark.parametrize("kind", MEASURED, ids=["runs", "collectives"])
def test_what_is_no_table_of_measurements_is_refused_with_its_name(kind, tmp_path):
    assert kind.load(write(tmp_path, kind, kind.text)) is not None
    assert kind.repeated is not None
    for content in (
        kind.text.replace(*kind.repeated, 1),
        kind.text.replace("device,", "").replace("topology,", ""),
        "- 1\n- 2\n",
        kind.text[: len(kind.text) * 2 // 3].rstrip("\n"),
        kind.text.partition("\n")[0] + "\n",
        b"\x00\xff\xfe\x80" * 50,
        "",
    ):
        path = write(tmp_path, kind, content)
        assert str(path) in refusal(kind, path), content


def test_a_measured_run_names_every_cell_that_cannot_be_read(tmp_path):
    text = RUNS.replace("two,h100_sxm,8,64,0.5", "one,h100_sxm,many,0,-1").replace(
        "1024,,1\n", "1024,perhaps,often,3\n"
    )
    good, bad = load_runs(write(tmp_path, MEASURED[0], text)).rows

    said = "; ".join(bad.faults)
    for column in ("n_gpus", "gbs", "iter_time_s", "recompute", "compiled"):
        assert f"column {column}: must be " in said
    assert "as many cells as the header" in said
    assert "id must be unique" in said
    assert len(bad.faults) == 7
    assert len(good.faults) == 3


def test_measured_collectives_name_every_row_that_cannot_be_read(tmp_path):
    rows = [
        "dgx_h100,1,8,all_reduce,1024,fast,fp32",
        "dgx_h100,1,8,all_reduce,1024,0,fp32",
        "dgx_h100,1,8,all_refuse,1024,12.5,fp32",
        "dgx_h100,3,8,all_reduce,1024,12.5,fp32",
        "dgx_h100,1,8,all_reduce,-5,12.5,fp32",
        "dgx_h100,1,8,all_reduce,1024,12.5,fp31",
    ]
    text = "\n".join([COLLECTIVES.partition("\n")[0], *rows, ""])
    message = refusal(MEASURED[1], write(tmp_path, MEASURED[1], text))
    assert f": {len(rows)} faults" in message
    for number in range(len(rows)):
        assert f"row {number}" in message


WHAT_IFS = {
    "unknown key": ("scale:match=a,factor=1,matsch=b", "matsch: unknown key; did you mean 'match'"),
    "missing key": ("scale:match=a", "factor: must be given, but is missing"),
    "wrong type": ("scale:match=a,factor=fast", "factor: must be a number, got 'fast'"),
    "no unit": ("set:match=a,to=20", "to: quantity: must carry its unit"),
    "out of bounds": ("scale:match=a,factor=-1", "factor: must be zero or more, got -1"),
    "wrong word": ("scale:match=a,factor=1,lane=gpu", "lane: must be one of any, host, device"),
    "repeated key": ("scale:match=a,match=b,factor=1", "each once"),
    "no mapping": ("scale:match=a,factor", "parameters must be key=value"),
    "cut": ("scale:match=a,factor=", "parameters must be key=value"),
    "empty": ("", "must be one of"),
}


@pytest.mark.parametrize("damage", WHAT_IFS)
def test_a_what_if_names_its_fault_and_its_parameter(damage):
    text, words = WHAT_IFS[damage]
    with pytest.raises(ScenarioError) as caught:
        parse_transformation(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"what-if {text!r}")


def test_a_what_if_names_all_its_faults_at_once():
    with pytest.raises(ScenarioError) as caught:
        parse_transformation("scale:factor=x,lane=y,color=z")
    for words in ("4 faults", "factor: ", "lane: ", "color: ", "match: "):
        assert words in str(caught.value)


SHIPPED = {
    "topology": ("topologies/catalog/*.yaml", "perfmodel/api/templates/topology.yaml"),
    "device": ("topologies/devices/*.yaml",),
    "stack": ("perfmodel/stacks/catalog/*.yaml",),
    "workload": (
        "perfmodel/workloads/specs/*.yaml",
        "perfmodel/api/templates/workload.yaml",
        "perfmodel/api/templates/dlrm.yaml",
    ),
    "scenario": ("perfmodel/api/templates/scenario.yaml",),
    "tables": ("perfmodel/api/templates/tables.yaml",),
    "recipes": ("perfmodel/whatif/recipes.yaml",),
    "calibration": ("collectives/calibrations/nccl.yaml", "perfmodel/costs/calibrations/**/*.json"),
}


def plain(value: Any) -> Any:
    """*value* as JSON has it: YAML reads a date as one."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


@pytest.mark.parametrize("kind", [kind.value for kind in api.SchemaKind])
def test_a_schema_is_valid_and_accepts_every_shipped_file(kind):
    schema = json.loads(json.dumps(api.json_schema(kind)))
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    for pattern in SHIPPED.get(kind, ()):
        files = sorted(ROOT.glob(pattern))
        assert files, pattern
        for file in files:
            text = file.read_text(encoding="utf-8")
            content = plain(load_yaml(file)) if file.suffix == ".yaml" else json.loads(text)
            assert not [fault.message for fault in check.iter_errors(content)], file.name


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_schema_refuses_an_unknown_key(kind, tmp_path):
    word = "calibration" if kind.name.startswith("calibration") else kind.name
    if word not in [one.value for one in api.SchemaKind]:
        return
    old, new, _ = kind.damages["unknown key"]
    path = write(tmp_path, kind, kind.text.replace(old, new, 1))
    content = plain(load_yaml(path)) if kind.ending == ".yaml" else json.loads(path.read_text())
    assert not jsonschema.Draft202012Validator(api.json_schema(word)).is_valid(content)
