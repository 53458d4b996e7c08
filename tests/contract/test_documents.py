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
import yaml

from collectives.calibration import load_calibration
from collectives.measurements import load_measurements
from embeddings.plan_document import load_plan_document
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel import api
from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import InputError, ScenarioError
from perfmodel.extensions.measurements.validation.runs_table import load_runs
from perfmodel.extensions.whatif.parsing import parse_transformation
from perfmodel.prediction.scenario_file import load_scenario
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import load_workload
from topologies import load_device, load_topology

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kind:
    """A kind of document: a good one, how it is read, and six values to spoil.

    `documents.yaml` has them and explains the fields.
    """

    name: str
    text: str
    load: Callable[[Path], object]
    damages: dict[str, tuple[str, str, str]]
    repeated: tuple[str, str] | None = None
    ending: str = ".yaml"
    without: dict[str, str] = field(default_factory=dict)


TABLES = tuple(EmbeddingTable(f"t{number}", 100, 16) for number in range(2))
SIX = ("unknown key", "missing key", "wrong type", "no unit", "out of bounds", "wrong word")


def load_kernels(path: Path) -> object:
    from perfmodel.costs.calibration_files import parse_entries

    return parse_entries(path.read_text(encoding="utf-8"), document=str(path))


def load_plan(path: Path) -> object:
    return load_plan_document(path, tables=TABLES, rank_count=1)


LOADERS: dict[str, Callable[[Path], object]] = {
    "topology": load_topology,
    "device": load_device,
    "stack": load_stack,
    "workload": load_workload,
    "scenario": load_scenario,
    "tables": load_tables,
    "tables in CSV": load_tables,
    "plan": load_plan,
    "calibration of kernels": load_kernels,
    "calibration of collectives": load_calibration,
}


def build_kind(name: str, file: str = "", text: str = "", **given: Any) -> Kind:
    if file:
        text = (ROOT / file).read_text(encoding="utf-8").removeprefix("---\n")
        text = "---\n" + text.removesuffix("...\n") + "...\n"
    return Kind(name, text, LOADERS[name], **given)


DOCUMENTS = yaml.safe_load(Path(__file__).with_name("documents.yaml").read_text(encoding="utf-8"))
KINDS = [build_kind(name, **given) for name, given in DOCUMENTS.items()]
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
