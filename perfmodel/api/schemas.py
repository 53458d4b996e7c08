"""Schemas: what the documents that perfmodel reads and writes have in them, as text and as JSON.

The words of a schema are those of the documentation and of the code that reads the files, so that
they cannot say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perfmodel.api.about import one_of

if TYPE_CHECKING:
    from pydantic import BaseModel

HERE = Path(__file__).parent
PACKAGES = HERE.parent


class SchemaKind(Enum):
    """What has a schema."""

    TOPOLOGY = "topology"
    DEVICE = "device"
    WORKLOAD = "workload"
    STACK = "stack"
    SCENARIO = "scenario"
    TABLES = "tables"
    PLAN = "plan"
    RUNS = "runs"
    CALIBRATION = "calibration"
    GEMM = "gemm"
    ATTENTION = "attention"
    MEMORY = "memory"
    COLLECTIVES = "collectives"
    PREDICT = "predict"
    COMPARE = "compare"
    RANK = "rank"
    SEARCH = "search"


def describe_schema(kind: SchemaKind | str) -> str:
    """The fields of a file that perfmodel reads, or of the JSON that it writes, as text."""
    kind = one_of(SchemaKind, kind)
    if kind is SchemaKind.WORKLOAD:
        return "\n".join(_workload())
    if kind is SchemaKind.RUNS:
        return "\n".join(_runs())
    if kind is SchemaKind.PREDICT:
        return (PACKAGES / "reports" / "SCHEMA.md").read_text(encoding="utf-8").strip()
    sections = {
        SchemaKind.TOPOLOGY: (_package("topologies"), "## A machine", "## How well"),
        SchemaKind.DEVICE: (_package("topologies"), "## A GPU", "## How well"),
        SchemaKind.STACK: (PACKAGES / "stacks", "## A stack file", "\n## "),
    }
    readers = {
        SchemaKind.GEMM: "perfmodel.costs.kernel_tables",
        SchemaKind.ATTENTION: "perfmodel.costs.kernel_tables",
        SchemaKind.MEMORY: "perfmodel.costs.kernel_tables",
        SchemaKind.COLLECTIVES: "collectives.measurements",
    }
    if kind in readers:
        return (import_module(readers[kind]).__doc__ or "").strip()
    if kind in sections:
        folder, begin, stop = sections[kind]
        return _section((folder / "README.md").read_text(encoding="utf-8"), begin, stop)
    text = (HERE / "schemas.md").read_text(encoding="utf-8")
    return _section(text, f"## {kind.value}", "\n## ")


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None  # our own packages are installed together
    assert spec.origin is not None
    return Path(spec.origin).parent


def _section(text: str, begin: str, stop: str) -> str:
    _, found, rest = text.partition(f"{begin}\n")
    assert found, f"the documentation has no section {begin!r}"
    return f"{begin}\n{rest.partition(stop)[0]}".strip()


def _workload() -> Iterator[str]:
    from perfmodel.workloads.dlrm.spec import DlrmSpec
    from perfmodel.workloads.transformer.spec import TransformerSpec

    yield "A workload is a YAML file; `perfmodel workload show NAME` prints one."
    yield "Fields can be changed with --set, such as --set batch=4096 or --set parallel.tp=4."
    for title, spec in (("transformer", TransformerSpec), ("dlrm", DlrmSpec)):
        yield f"\n## family: {title}\n"
        yield from _fields(spec)


def _fields(spec: type[BaseModel], prefix: str = "") -> Iterator[str]:
    from pydantic import BaseModel

    for name, field in spec.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield f"\n{prefix}{name}:  {' '.join((kind.__doc__ or '').split())}"
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            needed = "must be given" if field.is_required() else f"default {_word(field.default)}"
            yield f"  {prefix}{name}: {_words(kind)}; {needed}"


def _word(value: object) -> str:
    if value is None:
        return "left open"
    return str(value.value if isinstance(value, Enum) else value)


def _words(kind: Any) -> str:
    """The type in words; of an enum, what may stand there."""
    from typing import get_args, get_origin

    if get_origin(kind) is Annotated:
        return _words(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " | ".join(str(member.value) for member in kind)
    if get_origin(kind) is tuple:
        return f"list of {_words(get_args(kind)[0])}"
    inner = [one for one in get_args(kind) if one is not type(None)]
    if inner and not isinstance(kind, type):
        return " | ".join(dict.fromkeys(_words(one) for one in inner))
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _runs() -> Iterator[str]:
    from perfmodel.validation.runs_table import load_columns

    columns = load_columns()
    yield "A table of measured runs is CSV (or .csv.gz); other columns may stand beside these."
    for family, names in columns.required.items():
        yield f"A table of {family} runs must have: {', '.join(names)}."
    for section in ("common", "transformer", "dlrm"):
        yield f"\n## {section}\n"
        for name, column in getattr(columns, section).items():
            words = f" ({' | '.join(column.words)})" if column.words else ""
            yield f"  {name}: {column.kind}{words}; {column.meaning}"


_FORMS = {
    SchemaKind.TOPOLOGY: ("topologies.topology_file:TopologyFile",),
    SchemaKind.DEVICE: ("topologies.device:Device",),
    SchemaKind.WORKLOAD: (
        "perfmodel.workloads.transformer.spec:TransformerSpec",
        "perfmodel.workloads.dlrm.spec:DlrmSpec",
    ),
    SchemaKind.STACK: ("perfmodel.stacks.stack:SoftwareStack",),
    SchemaKind.TABLES: ("embeddings.table_files:TablesFile",),
    SchemaKind.PLAN: ("embeddings.plan_document:PlanFile",),
    SchemaKind.CALIBRATION: (
        "perfmodel.costs.calibration_files:CalibrationFile",
        "collectives.calibration:Calibration",
    ),
}
"""What a document of each kind is read as."""


def json_schema(kind: SchemaKind | str) -> dict[str, Any]:
    """The JSON Schema of a kind of document; of a table, that of its rows as mappings."""
    from perfmodel.base import forms

    kind = one_of(SchemaKind, kind)
    if kind in _FORMS:
        parts = [name.split(":") for name in _FORMS[kind]]
        found = [getattr(import_module(module), name) for module, name in parts]
        schema = forms.json_schema(*found)
        if kind is SchemaKind.STACK:
            # A file that extends another states only what it changes.
            schema["required"] = ["name"]
            del schema["properties"]["host"]["required"]
        return schema
    if kind is SchemaKind.SCENARIO:
        from perfmodel.prediction.scenario import JobScenario, Scenario
        from perfmodel.prediction.scenario_file import scenario_form

        return forms.json_schema(scenario_form(Scenario), scenario_form(JobScenario))
    text = describe_schema(kind)
    keys: dict[str, Any] = {
        key: {"description": meaning}
        for words, meaning in re.findall(
            r"^\| (`.*?) \| (.*) \|$", text.partition("\n## ")[0], re.M
        )
        for key in re.findall(r"`([a-z_]+)`", words)
    }
    row: dict[str, Any] = {"type": "object", "properties": keys}
    answers = (SchemaKind.PREDICT, SchemaKind.COMPARE, SchemaKind.RANK, SchemaKind.SEARCH)
    if kind is SchemaKind.RUNS:
        from perfmodel.validation.runs_table import load_columns

        columns = load_columns()
        row["required"] = list(columns.required["common"])
        for section in (columns.common, columns.transformer, columns.dlrm):
            for name, column in section.items():
                words = {"enum": ["", *column.words]} if column.kind == "word" else {}
                keys[name] = {"description": column.meaning, "type": "string", **words}
    shape = row if kind in answers else {"type": "array", "items": row}
    return {"$schema": forms.DIALECT, "description": text, **shape}
