"""RunTable: measured training runs as rows of checked cells.

Only this reader knows how the tables are written. An empty cell means "not
stated", never zero; a cell that should hold a number and does not is a fault.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perfmodel.base.documents import FaultList
from perfmodel.base.errors import MeasurementError

MAX_TABLE_BYTES = 256 * 2**20


class RunFamily(Enum):
    """What was trained, told apart by the columns of the table."""

    TRANSFORMER = "transformer"
    DLRM = "dlrm"


_COMMON = (
    "source", "software", "gpu", "n_gpus", "n_nodes", "gpus_per_node", "intra_node", "inter_node",
    "precision", "gbs", "iter_time_s",
)  # fmt: skip
_COLUMNS = {
    RunFamily.TRANSFORMER: (
        "layers", "hidden", "heads", "ffn", "vocab", "seq_len", "mbs", "tp", "pp", "dp",
        "sharding", "act_recompute", "attn_impl",
    ),
    RunFamily.DLRM: (
        "dense_features", "n_tables", "table_rows", "emb_dim", "multi_hot", "bottom_mlp",
        "top_mlp", "interaction", "optimizer",
    ),
}  # fmt: skip
_COUNTS = (
    "n_gpus", "n_nodes", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "head_dim",
    "ffn", "vocab", "seq_len", "gbs", "mbs", "grad_accum", "tp", "pp", "vpp", "dp", "cp", "ep",
    "dense_features", "rows_total", "emb_dim",
)  # fmt: skip
_SWITCHES = {"0": False, "1": True, "0.0": False, "1.0": True}


@dataclass(frozen=True, slots=True)
class RunRow:
    """One measured run; *name* is what reports call it, *measured_s* None where nothing ran."""

    name: str | int
    cells: Mapping[str, str]
    measured_s: float | None

    @property
    def group(self) -> str:
        """Source and GPU: what a scoreboard has one line for."""
        return f"{self.text('source')}, {self.text('gpu')}"

    @property
    def hosts(self) -> int | None:
        """Machines, where stated."""
        return self.count("n_nodes")

    @property
    def ranks_per_host(self) -> int | None:
        """GPUs used of each machine, where stated."""
        return self.count("gpus_per_node")

    def text(self, column: str) -> str:
        """A cell as it stands; empty where not stated or where the table has no such column."""
        return self.cells.get(column, "")

    def count(self, column: str) -> int | None:
        """A whole number, or None where not stated."""
        text = self.text(column)
        return int(float(text)) if text else None

    def switch(self, column: str) -> bool | None:
        """Yes or no, or None where not stated."""
        return _SWITCHES[self.text(column)] if self.text(column) else None


@dataclass(frozen=True, slots=True)
class RunTable:
    """All rows of a table, in its order."""

    family: RunFamily
    rows: tuple[RunRow, ...]

    def of_source(self, words: str) -> RunTable:
        """The rows whose source contains *words*, in any case."""
        wanted = words.casefold()
        kept = tuple(row for row in self.rows if wanted in row.text("source").casefold())
        if not kept:
            known = sorted({row.text("source") for row in self.rows})
            raise MeasurementError(
                f"--source {words!r}: no row has such a source. Sources: {'; '.join(known)}."
            )
        return RunTable(self.family, kept)


def load_runs(path: Path) -> RunTable:
    """The table in *path*, a CSV file that may be compressed with gzip."""
    reader = csv.DictReader(io.StringIO(_read(path)))
    columns = tuple(reader.fieldnames or ())
    family = _family(path, columns)
    faults = FaultList(str(path))
    rows = [_row(number, raw, faults) for number, raw in enumerate(reader)]
    _check_names(rows, faults)
    faults.check(MeasurementError)
    if not rows:
        raise MeasurementError(f"{path}: must hold at least one row, has only a heading.")
    return RunTable(family, tuple(rows))


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as unpacked:
                data = unpacked.read(MAX_TABLE_BYTES + 1)
        if len(data) > MAX_TABLE_BYTES:
            raise MeasurementError(f"{path}: must be at most {MAX_TABLE_BYTES} bytes unpacked.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MeasurementError(f"{path}: must be text (UTF-8), but it holds binary data.") from None
    except (OSError, EOFError) as fault:
        reason = getattr(fault, "strerror", None) or "not a complete gzip file"
        raise MeasurementError(f"{path}: cannot be read ({reason}).") from None


def _family(path: Path, columns: Sequence[str]) -> RunFamily:
    family = RunFamily.DLRM if "n_tables" in columns else RunFamily.TRANSFORMER
    missing = [name for name in _COMMON + _COLUMNS[family] if name not in columns]
    if missing:
        raise MeasurementError(
            f"{path}: a table of {family.value} runs must have the columns "
            f"{', '.join(_COMMON + _COLUMNS[family])}; missing: {', '.join(missing)}."
        )
    return family


def _row(number: int, raw: Mapping[str | None, object], faults: FaultList) -> RunRow:
    cells = {
        column: value.strip()
        for column, value in raw.items()
        if isinstance(column, str) and isinstance(value, str)
    }
    name = cells.get("id") or number
    place = f"row {name}"
    if None in raw or any(value is None for value in raw.values()):
        faults.add(place, f"must have {len(raw)} cells, as the heading has; has more or fewer")
    for column in _COUNTS:
        if cells.get(column) and not _is_count(cells[column]):
            message = f"must be a whole number above zero, got {cells[column]!r}"
            faults.add(f"{place}, column {column}", message)
            cells[column] = ""
    for column in ("gated_ffn", "tied_emb"):
        if cells.get(column) and cells[column] not in _SWITCHES:
            faults.add(f"{place}, column {column}", f"must be 0 or 1, got {cells[column]!r}")
            cells[column] = ""
    return RunRow(name, cells, _measured(cells.get("iter_time_s", ""), place, faults))


def _is_count(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and value >= 1 and value == int(value)


def _measured(text: str, place: str, faults: FaultList) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        faults.add(f"{place}, column iter_time_s", f"must be seconds above zero, got {text!r}")
        return None
    return value


def _check_names(rows: Sequence[RunRow], faults: FaultList) -> None:
    seen: set[str | int] = set()
    for row in rows:
        if row.name in seen:
            faults.add(f"row {row.name}", "its id must be its own, but another row has it too")
        seen.add(row.name)
