"""About perfmodel itself: files to start from, what is in a file, what an installation has.

The words of a schema are those of the documentation and of the code that reads the files, so that
they cannot say something else.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import perfmodel
from perfmodel.base.errors import InputError, OutputError
from perfmodel.base.writing import check_writable, write_file

if TYPE_CHECKING:
    from pydantic import BaseModel

HERE = Path(__file__).parent
PACKAGES = HERE.parent
OURS = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
NEEDED = ("ray", "numpy", "scipy", "pandas", "numba", "pyyaml", "matplotlib", "pyarrow", "typer",
          "rich", "jinja2", "pydantic", "orjson", "protobuf")  # fmt: skip
EXTRAS = {"torch": "emulate, calibrate gemm|attention|measure, indices in torch files"}


class TemplateKind(Enum):
    """What a template is there for."""

    WORKLOAD = "workload"
    DLRM = "dlrm"
    TOPOLOGY = "topology"
    TABLES = "tables"
    SCENARIO = "scenario"


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
    GEMM = "gemm"
    ATTENTION = "attention"
    MEMORY = "memory"
    COLLECTIVES = "collectives"
    PREDICT = "predict"
    COMPARE = "compare"
    RANK = "rank"
    SEARCH = "search"


_Kind = TypeVar("_Kind", bound=Enum)


def _one_of(kinds: type[_Kind], word: _Kind | str) -> _Kind:
    words = [str(kind.value) for kind in kinds]
    if isinstance(word, str) and word not in words:
        raise InputError(f"kind: must be one of {', '.join(words)}, got {word!r}.")
    return kinds(word) if isinstance(word, str) else word


def init(kind: TemplateKind | str, out: str | Path | None = None) -> str:
    """A commented file to start from, accepted as it is; written to *out* if that is given."""
    text = (HERE / "templates" / f"{_one_of(TemplateKind, kind).value}.yaml").read_text("utf-8")
    if out is not None:
        if Path(out).exists():
            raise OutputError(f"{out}: exists already, and is not overwritten. Name another file.")
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
        from importlib import import_module

        return (import_module(readers[kind]).__doc__ or "").strip()
    if kind in sections:
        folder, begin, stop = sections[kind]
        return _section((folder / "README.md").read_text(encoding="utf-8"), begin, stop)
    text = (HERE / "schemas.md").read_text(encoding="utf-8")
    return _section(text, f"## {kind.value}", "\n## ")


def _package(name: str) -> Path:
    from importlib.util import find_spec

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


def examine_installation(*, try_ray: bool = False) -> dict[str, Any]:
    """Versions, where packages come from, and what is missing; *try_ray* starts a Ray."""
    versions = {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    places = {name: _place(name) for name in OURS}
    faults = [f"{name} is not installed" for name in NEEDED if versions[name] is None]
    parents = {Path(place).parent for place in places.values() if place}
    if len(parents) > 1 or not all(places.values()):
        faults.append("packages of perfmodel come from different places; see `places`")
    found: dict[str, Any] = {
        "schema_version": 1,
        "perfmodel": perfmodel.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "temporary_space_gib": round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1),
        "versions": versions,
        "places": places,
        "ray": _try_ray() if try_ray else "not tried; --ray starts it",
        "faults": faults,
    }
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _place(name: str) -> str | None:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(spec.submodule_search_locations))


def _try_ray() -> str:
    from perfmodel.base.errors import ExecutionError
    from perfmodel.execution import open_executor

    try:
        with open_executor("ray", workers=1) as place:
            return f"starts and works ({sum(place.map(_add, 1, [1, 2]))} = 5)"
    except ExecutionError as fault:
        return f"does not start: {fault}"


def _add(shared: int, item: int) -> int:
    return shared + item
