"""RunTable: measured training runs as rows of checked cells.

`columns.yaml` lists the columns, their allowed values and their meaning. An empty cell means "not
stated", never zero. A cell that cannot be read is a fault of its row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from perfmodel.base.errors import MeasurementError, WorkloadError
from perfmodel.base.fields import Duration, Line, OneOf, Ratio
from perfmodel.base.forms import Form, load_document
from perfmodel.base.reading import iter_lines, quote, read_packed_text
from perfmodel.base.units import NS_PER_S
from perfmodel.stacks.optimizers import NO_OPTIMIZER, load_optimizers
from perfmodel.stacks.schedules import load_schedules
from perfmodel.workloads.families import FAMILIES
from perfmodel.workloads.transformer.axes import AXES

MAX_TABLE_BYTES = 256 * 2**20
COLUMNS_FILE = Path(__file__).parent / "columns.yaml"
_MEASURED = "iter_time_s"
_LEAST, _MOST = 1e-9, 1e15
_UNSUPPORTED = "unsupported"
_MOST_NAMED = 20
_SWITCHES = {"0": False, "1": True, "0.0": False, "1.0": True, "no": False, "yes": True}


@dataclass(frozen=True, slots=True)
class Column(Form):
    """A column that is read: the kind of its cells, and what its words mean.

    It is the *sets* field of the workload, such as `model.layers`; an empty cell sets it to
    *default*, or leaves it open if there is none. Tables may *also* call it by other names, and
    its words by *other_words*.
    """

    kind: Annotated[str, OneOf(("count", "natural", "number", "switch", "counts", "word", "text"))]
    meaning: Line
    words: Mapping[str, Any] = field(default_factory=dict)
    sets: str = ""
    default: str | int | bool | None = None
    also: tuple[str, ...] = ()
    other_words: Mapping[str, str] = field(default_factory=dict)

    def fault(self, text: str) -> str:
        """Why *text* is not allowed in this column; empty if it is."""
        if self.kind in _KINDS:
            read, rule = _KINDS[self.kind]
            try:
                read(text)
            except (ValueError, KeyError):
                return f"must be {rule}, got {quote(text)}"
            return ""
        if self.kind == "word" and text not in self.words:
            return f"must be one of {', '.join(self.words)}, got {quote(text)}"
        if self.words.get(text) == _UNSUPPORTED:
            return f"{text!r} is not supported yet"
        return ""


def _number(text: str) -> float:
    value = float(text)
    if not _LEAST <= value <= _MOST:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = _number(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


_KINDS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "count": (_count, "a whole number above zero"),
    "natural": (
        lambda text: int(_SWITCHES[text]) if text in _SWITCHES else _count(text),
        "a whole number",
    ),
    "number": (_number, "a number above zero"),
    "switch": (_SWITCHES.__getitem__, "0 or 1 (no or yes)"),
    "counts": (
        lambda text: [_count(part) for part in text.split("-")],
        "whole numbers above zero, joined by dashes",
    ),
}
"""How cells of a kind are read, and the rule that they follow."""


@dataclass(frozen=True, slots=True)
class Loader(Form):
    """What loading takes: for a batch, and more for each of its samples, over all ranks."""

    batch_ns: Duration
    sample_ns: Duration


@dataclass(frozen=True, slots=True)
class ColumnsFile(Form):
    """`columns.yaml`: columns by family, those that a table must have, and what flags mean.

    *loaders* are those of published runs that loading bounds, by framework.

    Rows with a flag under *apart* are scored separately; *unpadded* is the share of the sequence
    length that was computed, by flag.
    """

    common: Mapping[str, Column]
    families: Mapping[str, Mapping[str, Column]]
    required: Mapping[str, tuple[str, ...]]
    loaders: Mapping[str, Loader]
    apart: tuple[str, ...]
    unpadded: Mapping[str, Ratio]


@lru_cache(maxsize=1)
def load_columns() -> ColumnsFile:
    """The columns that are known; degrees, schedules and optimizers are those of their tables."""
    file = load_document(COLUMNS_FILE, MeasurementError).read(ColumnsFile)
    degrees = {
        axis.name: Column(
            "count",
            axis.meaning,
            sets=f"parallel.{axis.name}",
            default=1 if axis.is_always_told else None,
            also=axis.columns,
        )
        for axis in AXES.values()
        if not axis.is_derived
    }
    schedule = Column(
        "word",
        "the order in which pipeline stages take micro-batches",
        words=dict.fromkeys(load_schedules()),
        sets="parallel.schedule",
    )
    optimizers = dict.fromkeys((*load_optimizers(), NO_OPTIMIZER))
    kind = replace(file.common["optimizer_kind"], words=optimizers)
    return replace(
        file,
        common={**file.common, "optimizer_kind": kind},
        families={
            name: {**own, **degrees, "schedule": schedule} if FAMILIES[name].has_layouts else own
            for name, own in file.families.items()
        },
    )


@lru_cache(maxsize=8)
def columns_of(family: str) -> Mapping[str, Column]:
    """The columns that a table of *family* may have."""
    return {**load_columns().common, **load_columns().families[family]}


def required_columns(family: str) -> tuple[str, ...]:
    """The columns that a table of *family* must have."""
    required = load_columns().required
    return (*required["common"], *required[family])


@dataclass(frozen=True, slots=True)
class RunRow:
    """One measured run; reports call it *name*. *measured_s* is None if it did not run.

    *unread* are the columns of its table that are not known.
    """

    name: str | int
    family: str
    cells: Mapping[str, str]
    measured_s: float | None
    faults: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def tokens_ratio(self) -> float:
        """Share of the sequence length that was computed: below 1 if padding was skipped."""
        shares = load_columns().unpadded
        return min((shares.get(flag, 1.0) for flag in self.text("flag").split(";")), default=1.0)

    @property
    def load_ns(self) -> float | None:
        """What the loader of the run needs for a batch; None where batches are ready."""
        if (stated_s := self.value("load_s")) is not None:
            return float(stated_s) * NS_PER_S
        loader = load_columns().loaders.get(self.text("framework"))
        if loader is None:
            return None
        return loader.batch_ns + loader.sample_ns * (self.value("gbs") or 0)

    @property
    def group(self) -> str:
        """The line of a scoreboard: framework, device, and flags that are scored separately."""
        flags = [flag for flag in self.text("flag").split(";") if flag in load_columns().apart]
        return ", ".join([self.text("framework") or "?", self.text("device") or "?", *flags])

    def check(self) -> None:
        """Raise if a cell could not be read."""
        if self.faults:
            raise WorkloadError("; ".join(self.faults))

    def text(self, column: str) -> str:
        """The text of a cell; empty if not stated or if the table has no such column."""
        return self.cells.get(column, "")

    def value(self, column: str) -> Any:
        """What a cell says, read as its column says; None if not stated."""
        text = self.text(column)
        if not text:
            return None
        kind = columns_of(self.family)[column].kind
        return _KINDS[kind][0](text) if kind in _KINDS else text

    def section(self, name: str) -> dict[str, Any]:
        """The fields of section *name* of the workload that cells or defaults set."""
        found = {}
        for column, about in columns_of(self.family).items():
            section, _, key = about.sets.partition(".")
            value = self.value(column)
            value = about.default if value is None else value
            if section == name and value is not None:
                found[key] = value
        return found

    def meaning(self, column: str) -> Mapping[str, Any]:
        """What the word in *column* means; empty if not stated, or if the family has none such."""
        about = columns_of(self.family).get(column)
        return (about and about.words.get(self.text(column))) or {}


@dataclass(frozen=True, slots=True)
class RunTable:
    """All rows of a table, in its order."""

    family: str
    rows: tuple[RunRow, ...]


def of_source(tables: Sequence[RunTable], words: str | None) -> list[RunTable]:
    """*tables* with only the rows whose source contains *words*, ignoring case; none is empty."""
    if words is None:
        return list(tables)
    wanted = words.casefold()
    kept = [
        RunTable(
            table.family,
            tuple(row for row in table.rows if wanted in row.text("source").casefold()),
        )
        for table in tables
    ]
    if not any(table.rows for table in kept):
        known = sorted({row.text("source") for table in tables for row in table.rows})
        raise MeasurementError(
            f"--source {words!r}: no row has such a source. Sources: {'; '.join(known)}."
        )
    return [table for table in kept if table.rows]


def find_core_tables() -> list[Path]:
    """The measured runs that come with a clone of the repository."""
    folder = Path(__file__).parents[4] / "experiments" / "measured"
    found = sorted(folder.glob("core_*.csv"), reverse=True)
    if not found:
        raise MeasurementError(
            "validate runs: needs a FILE, because this installation has no measured runs. They "
            "are in experiments/measured of the repository: clone it, or give your own table."
        )
    return found


def load_runs(path: Path) -> RunTable:
    """The table in *path*, a CSV file that may be compressed with gzip."""
    text = read_packed_text(path, MeasurementError, MAX_TABLE_BYTES)
    lines = iter_lines(text, document=str(path), error_type=MeasurementError)
    header = next(lines, [])
    names = _known_names(header)
    milliseconds = {place for place, name in enumerate(header) if _plain(name).endswith("_ms")}
    family = _family_with(names)
    missing = [name for name in required_columns(family) if name not in names]
    if missing:
        known = columns_of(family)
        unread = ", ".join([name for name in names if name and name not in known][:_MOST_NAMED])
        raise MeasurementError(
            f"{path}: a table of {family} runs must have the columns "
            f"{', '.join(required_columns(family))}; missing: {', '.join(missing)}."
            + (f" These are not known: {unread}." if unread else "")
            + " Rename or add columns; `perfmodel schema runs` lists all."
        )
    in_seconds = (
        [_thousandth(cell) if place in milliseconds else cell for place, cell in enumerate(line)]
        for line in lines
    )
    rows = tuple(_iter_rows(names, in_seconds, family))
    if not rows:
        raise MeasurementError(f"{path}: must have at least one row, has only a header.")
    return RunTable(family, rows)


def _family_with(names: Sequence[str]) -> str:
    """The last family whose required columns are among *names*; the first if there is none."""
    known = load_columns()
    fitting = [one for one in known.families if set(known.required[one]) <= set(names)]
    return (fitting or list(known.families))[-1 if fitting else 0]


def _known_names(header: Sequence[str]) -> list[str]:
    """*header* with the names of our columns for those that tables also use.

    A column that is there under our name is not looked for under another. One of milliseconds has
    the name of the same in seconds.
    """
    families = [load_columns().common, *load_columns().families.values()]
    ours = {
        other: name
        for columns in families
        for name, column in columns.items()
        for other in (name, *column.also)
    }
    known = [ours.get(re.sub("_ms$", "_s", _plain(name)), name) for name in header]
    stated = set(header)
    return [name if one in stated else one for one, name in zip(known, header, strict=True)]


def _plain(name: str) -> str:
    """The name of a column in small letters: `Step Time (s)` is step_time_s."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _thousandth(cell: str) -> str:
    """A cell of milliseconds in seconds; what is no number stays, to be reported."""
    try:
        return str(float(cell) / 1000)
    except ValueError:
        return cell


def _iter_rows(
    names: Sequence[str], lines: Iterable[Sequence[str]], family: str
) -> Iterator[RunRow]:
    columns = columns_of(family)
    unread = tuple(name for name in names if name and name not in columns)
    words = {
        name: {word.casefold(): word for word in column.words} | dict(column.other_words)
        for name, column in columns.items()
        if column.kind == "word"
    }
    seen: set[str | int] = set()
    for number, line in enumerate(lines):
        cells = {
            name: words.get(name, {}).get(cell.strip().casefold(), cell.strip())
            for name, cell in zip(names, line, strict=False)
            if name in columns
        }
        found = ((name, columns[name].fault(text)) for name, text in cells.items() if text)
        faults = [f"column {name}: {fault}" for name, fault in found if fault]
        if len(line) != len(names):
            faults.append("must have as many cells as the header")
        name = cells.get("id") or number
        if name in seen:
            faults.append("id must be unique, but an earlier row has the same")
        seen.add(name)
        measured = cells.get(_MEASURED, "")
        is_measured = measured and not columns[_MEASURED].fault(measured)
        seconds = float(measured) if is_measured else None
        yield RunRow(name, family, cells, seconds, tuple(faults), unread)
