"""About perfmodel itself: files to start from, the schemas of documents, the installation.

Schemas come from the documentation and from the code that reads the files, so that they are true.
"""

from __future__ import annotations

import operator
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import perfmodel
from perfmodel.base.errors import InputError, OutputError
from perfmodel.base.extensions import load_extension
from perfmodel.base.identity import locate_packages, program_identity
from perfmodel.base.writing import check_writable, write_file

if TYPE_CHECKING:
    from pydantic import BaseModel

HERE = Path(__file__).parent
PACKAGES = HERE.parent
NEEDED = ("ray", "numpy", "scipy", "pandas", "numba", "pyyaml", "matplotlib", "pyarrow", "typer",
          "rich", "jinja2", "pydantic", "orjson", "protobuf", "defusedxml")  # fmt: skip
EXTRAS = {
    "torch": "indices in torch files",
    "starlette": "ui",
    "uvicorn": "ui",
}


class TemplateKind(Enum):
    """The kinds of templates."""

    WORKLOAD = "workload"
    DLRM = "dlrm"
    TOPOLOGY = "topology"
    DEVICE = "device"
    TABLES = "tables"
    SCENARIO = "scenario"
    PRICES = "prices"


class SchemaKind(Enum):
    """The kinds of documents that have a schema."""

    TOPOLOGY = "topology"
    DEVICE = "device"
    WORKLOAD = "workload"
    STACK = "stack"
    SCENARIO = "scenario"
    PRICES = "prices"
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


_Kind = TypeVar("_Kind", bound=Enum)


def _one_of(kinds: type[_Kind], name: _Kind | str) -> _Kind:
    """The member of *kinds* with this *name*."""
    try:
        return kinds(name)
    except ValueError:
        known = ", ".join(str(kind.value) for kind in kinds)
        raise InputError(f"kind: must be one of {known}, got {name!r}.") from None


def init(kind: TemplateKind | str, out: str | Path | None = None) -> str:
    """A commented file to start from, accepted as it is; written to *out* if it is given."""
    chosen = _one_of(TemplateKind, kind)
    # The prices that are shipped are as good a start as any.
    folder = PACKAGES / "prediction" if chosen is TemplateKind.PRICES else HERE / "templates"
    text = (folder / f"{chosen.value}.yaml").read_text("utf-8")
    if out is not None:
        if Path(out).exists():
            raise OutputError(f"{out}: exists already and is not overwritten. Name another file.")
        check_writable("--out", Path(out))
        write_file(Path(out), text)
    return text


def describe_schema(kind: SchemaKind | str) -> str:
    """The fields of a file that perfmodel reads, or of the JSON that it writes, as text."""
    kind = _one_of(SchemaKind, kind)
    if kind is SchemaKind.WORKLOAD:
        return "\n".join(_workload())
    if kind is SchemaKind.RUNS:
        return "\n".join(_runs())
    if kind is SchemaKind.PREDICT:
        return (PACKAGES / "reports" / "SCHEMA.md").read_text(encoding="utf-8").strip()
    sections = {
        SchemaKind.TOPOLOGY: (PACKAGES.parent / "topologies", "## A machine", "## How well"),
        SchemaKind.DEVICE: (PACKAGES.parent / "topologies", "## A GPU", "## How well"),
        SchemaKind.STACK: (PACKAGES / "stacks", "## A stack file", "\n## "),
    }
    if kind in (SchemaKind.GEMM, SchemaKind.ATTENTION, SchemaKind.MEMORY, SchemaKind.COLLECTIVES):
        reader = import_module("collectives.measurements")
        if kind is not SchemaKind.COLLECTIVES:
            reader = load_extension("measurements", "kernel_tables")
        return (reader.__doc__ or "").strip()
    if kind in sections:
        folder, begin, stop = sections[kind]
        return _section((folder / "README.md").read_text(encoding="utf-8"), begin, stop)
    text = (HERE / "schemas.md").read_text(encoding="utf-8")
    return _section(text, f"## {kind.value}", "\n## ")


def _section(text: str, begin: str, stop: str) -> str:
    _, found, rest = text.partition(f"{begin}\n")
    assert found, f"the documentation has no section {begin!r}"
    return f"{begin}\n{rest.partition(stop)[0]}".strip()


def _workload() -> Iterator[str]:
    from perfmodel.workloads.families import FAMILIES

    yield "A workload is a YAML file; `perfmodel workload show NAME` prints one."
    yield "Fields can be changed with --set, such as --set batch=4096 or --set parallel.tp=4."
    for name, family in FAMILIES.items():
        yield f"\n## family: {name}\n"
        yield from _fields(family.spec_type)


def _fields(spec: type[BaseModel], prefix: str = "") -> Iterator[str]:
    from pydantic import BaseModel

    for name, field in spec.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield f"\n{prefix}{name}:  {' '.join((kind.__doc__ or '').split())}"
            yield from _fields(kind, f"{prefix}{name}.")
        else:
            default = "left open" if field.default is None else field.default
            default = default.value if isinstance(default, Enum) else default
            needed = "must be given" if field.is_required() else f"default {default}"
            yield f"  {prefix}{name}: {_words(kind)}; {needed}"


def _words(kind: Any) -> str:
    """The type as text; of an enum, its values."""
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
    columns = load_extension("measurements", "validation.runs_table").load_columns()
    yield "A table of measured runs is CSV (or .csv.gz); other columns are allowed."
    for family, names in columns.required.items():
        yield f"A table of {family} runs must have: {', '.join(names)}."
    for title, section in {"common": columns.common, **columns.families}.items():
        yield f"\n## {title}\n"
        for name, column in section.items():
            words = f" ({' | '.join(column.words)})" if column.words else ""
            yield f"  {name}: {column.kind}{words}; {column.meaning}"


_FORMS = {
    SchemaKind.TOPOLOGY: ("topologies.topology_file:TopologyFile",),
    SchemaKind.DEVICE: ("topologies.device:Device",),
    SchemaKind.STACK: ("perfmodel.stacks.stack:SoftwareStack",),
    SchemaKind.PRICES: ("perfmodel.prediction.whole_run:RunRates",),
    SchemaKind.TABLES: ("embeddings.table_files:TablesFile",),
    SchemaKind.PLAN: ("embeddings.plan_document:PlanFile",),
    SchemaKind.CALIBRATION: (
        "perfmodel.costs.calibration_files:CalibrationFile",
        "collectives.calibration:Calibration",
    ),
}
"""What a document of each kind is read as."""


def _let_drop(schema: dict[str, Any]) -> None:
    """Let any key below *schema* have no value: it drops what it would inherit."""
    below = schema.get("properties", {})
    for key, value in below.items():
        _let_drop(value)
        below[key] = {"anyOf": [value, {"type": "null"}]}
    if isinstance(more := schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = {"anyOf": [more, {"type": "null"}]}


def json_schema(kind: SchemaKind | str) -> dict[str, Any]:
    """The JSON Schema of a kind of document; of a table, that of its rows as mappings."""
    from perfmodel.base import forms

    kind = _one_of(SchemaKind, kind)
    if kind in _FORMS:
        parts = [name.split(":") for name in _FORMS[kind]]
        found = [getattr(import_module(module), name) for module, name in parts]
        schema = forms.json_schema(*found)
        if kind is SchemaKind.STACK:
            # A file that extends another states only what it changes.
            schema["required"] = ["name"]
            del schema["properties"]["host"]["required"]
            _let_drop(schema)
        return schema
    if kind is SchemaKind.WORKLOAD:
        from perfmodel.workloads.families import FAMILIES

        return forms.json_schema(*(family.spec_type for family in FAMILIES.values()))
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
        columns = load_extension("measurements", "validation.runs_table").load_columns()
        row["required"] = list(columns.required["common"])
        for section in (columns.common, *columns.families.values()):
            for name, column in section.items():
                words = {"enum": ["", *column.words]} if column.kind == "word" else {}
                keys[name] = {"description": column.meaning, "type": "string", **words}
    shape = row if kind in answers else {"type": "array", "items": row}
    return {"$schema": forms.DIALECT, "description": text, **shape}


def examine_installation(*, try_ray: bool = False) -> dict[str, Any]:
    """Versions, where packages come from, and what is missing; *try_ray* starts a Ray."""
    versions = {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    places = {name: place and str(place) for name, place in locate_packages().items()}
    faults = [f"{name} is not installed" for name in NEEDED if versions[name] is None]
    parents = {Path(place).parent for place in places.values() if place}
    if len(parents) > 1 or not all(places.values()):
        faults.append("packages of perfmodel come from different places; see `places`")
    from perfmodel.base.compiling import cache_folder

    found: dict[str, Any] = {
        "schema_version": 1,
        "perfmodel": perfmodel.__version__,
        "program": program_identity(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "temporary_space_gib": round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1),
        "versions": versions,
        "places": places,
        "compile_cache": cache_folder(),
        "ray": _try_ray() if try_ray else "not tried; --ray starts it",
        "faults": faults,
    }
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _try_ray() -> str:
    from perfmodel.base.errors import ExecutionError
    from perfmodel.execution import open_executor

    try:
        with open_executor("ray", workers=1) as place:
            return f"starts and works ({sum(place.map(operator.add, 1, [1, 2]))} = 5)"
    except ExecutionError as fault:
        return f"does not start: {fault}"
