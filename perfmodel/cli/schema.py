"""`perfmodel schema`: what files that perfmodel reads and writes have in them.

The words are those of the documentation and of the code that reads the files,
so that they cannot say something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

app = typer.Typer(rich_markup_mode=None)
HERE = Path(__file__).parent
PACKAGES = HERE.parent

EPILOG = """\b
Examples:
  perfmodel schema workload
  perfmodel schema predict | less
\b
`perfmodel init KIND` writes a commented file of some of these kinds.
"""


class Kind(Enum):
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


@app.command(epilog=EPILOG)
def schema(kind: Annotated[Kind, typer.Argument(help="What to describe.")]) -> None:
    """Print the fields of a file that perfmodel reads, or of the JSON that it writes."""
    print(describe(kind))


def describe(kind: Kind) -> str:
    """The schema of *kind* as text."""
    if kind is Kind.WORKLOAD:
        return "\n".join(_workload())
    if kind is Kind.RUNS:
        return "\n".join(_runs())
    if kind is Kind.PREDICT:
        return (PACKAGES / "reports" / "SCHEMA.md").read_text(encoding="utf-8").strip()
    sections = {
        Kind.TOPOLOGY: (_package("topologies"), "## A machine", "## How well"),
        Kind.DEVICE: (_package("topologies"), "## A GPU", "## How well"),
        Kind.STACK: (PACKAGES / "stacks", "## A stack file", "\n## "),
    }
    readers = {
        Kind.GEMM: "perfmodel.costs.gemm.table",
        Kind.ATTENTION: "perfmodel.costs.attention.table",
        Kind.MEMORY: "perfmodel.costs.memory.table",
        Kind.COLLECTIVES: "collectives.measurements",
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
    from perfmodel.base.documents import load_yaml
    from perfmodel.validation.runs_table import COLUMNS_FILE

    document = load_yaml(COLUMNS_FILE)
    yield "A table of measured runs is CSV (or .csv.gz); other columns may stand beside these."
    for family, names in document["required"].items():
        yield f"A table of {family} runs must have: {', '.join(names)}."
    for section in ("common", "transformer", "dlrm"):
        yield f"\n## {section}\n"
        for name, column in document[section].items():
            words = f" ({' | '.join(column['words'])})" if "words" in column else ""
            yield f"  {name}: {column['kind']}{words}; {column['meaning']}"
