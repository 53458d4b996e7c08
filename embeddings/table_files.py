"""Table files: tables from YAML, CSV or a TorchRec configuration in JSON.

TorchRec's EmbeddingBagConfig says `num_embeddings` and `embedding_dim`; it
knows no pooling factors, so those are 1 unless `pooling_factor` is added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embeddings.distribution import UNIFORM, IndexDistribution, ReuseHistogram, Zipf
from embeddings.index_files import load_index_data
from embeddings.table import MOST_TABLES, EmbeddingTable, TableMemory
from perfmodel.base.documents import FaultList, load_yaml
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, PlanError
from perfmodel.base.reading import parse_json, parse_rows, read_text

MAX_TABLE_FILE_BYTES = 64 * 2**20
_TORCHREC_WORDS = {"num_embeddings": "rows", "embedding_dim": "width", "data_type": "dtype"}
_IGNORED = {"feature_names", "pooling", "init_fn"}
_KEYS = {
    "name", "rows", "width", "pooling_factor", "pooling_deviation", "dtype", "distribution",
    "zipf", "is_weighted", "is_pooled", "memory", "cached_ratio",
}  # fmt: skip


def load_tables(
    path: str | Path, *, indices: str | Path | None = None
) -> tuple[EmbeddingTable, ...]:
    """The tables in *path*, with distribution and pooling as in the file *indices* if given."""
    path = Path(path)
    entries = _load_entries(path)
    faults = FaultList(str(path))
    tables = [_read_table(number, entry, faults) for number, entry in enumerate(entries)]
    found = [table for table in tables if table is not None]
    counts = Counter(table.name for table in found)
    for name in sorted(name for name, count in counts.items() if count > 1):
        faults.add(name, "two tables have this name")
    faults.check(PlanError)
    return tuple(found) if indices is None else _with_indices(found, indices)


def _with_indices(
    tables: Sequence[EmbeddingTable], indices: str | Path
) -> tuple[EmbeddingTable, ...]:
    data = load_index_data(indices)
    if len(data.names) != len(tables):
        raise PlanError(
            f"{indices}: must hold indices of {len(tables)} tables, got {len(data.names)}."
        )
    return tuple(data.describe_table(table, place) for place, table in enumerate(tables))


def _load_entries(path: Path) -> list[Any]:
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        content: Any = load_yaml(path, error_type=PlanError)
    elif suffix in (".csv", ".json"):
        text = read_text(path, PlanError, MAX_TABLE_FILE_BYTES)
        if suffix == ".json":
            content = parse_json(text, document=str(path), error_type=PlanError)
        else:
            content = _parse_csv(path, text)
    else:
        raise PlanError(f"{path}: must end in .yaml, .csv or .json, got {suffix or 'nothing'!r}.")
    if isinstance(content, Mapping):
        unknown = sorted(set(map(str, content)) - {"tables", "source", "description"})
        if unknown or "tables" not in content:
            raise PlanError(
                f"{path}: must hold `tables:`, a list (and source, description); "
                f"got {', '.join(map(str, content)) or 'nothing'}."
            )
        content = content["tables"]
    if not isinstance(content, list) or not content:
        raise PlanError(f"{path}: must list at least one table.")
    if len(content) > MOST_TABLES:
        raise PlanError(f"{path}: must list at most {MOST_TABLES} tables, got {len(content)}.")
    return content


def _parse_csv(path: Path, text: str) -> list[dict[str, Any]]:
    rows = parse_rows(text, document=str(path), error_type=PlanError)
    return [{key: value for key, value in row.items() if value} for row in rows]


def _read_table(number: int, entry: Any, faults: FaultList) -> EmbeddingTable | None:
    where = f"tables[{number}]"
    if not isinstance(entry, Mapping):
        faults.add(where, "must be a mapping with name, rows and width")
        return None
    words = {_TORCHREC_WORDS.get(key, key): value for key, value in entry.items()}
    words = {key: value for key, value in words.items() if key not in _IGNORED}
    before = len(faults.faults)
    for key in sorted(set(map(str, words)) - _KEYS):
        faults.add(f"{where}.{key}", f"unknown key; known are {', '.join(sorted(_KEYS))}")
    for key in ("name", "rows", "width"):
        if key not in words:
            faults.add(f"{where}.{key}", "must be given")
    values = {
        key: _read_value(f"{where}.{key}", key, value, faults)
        for key, value in words.items()
        if key in _KEYS
    }
    if len(faults.faults) > before:
        return None
    zipf = values.pop("zipf", None)
    try:
        table = EmbeddingTable(**values)
        return table if zipf is None else replace(table, distribution=Zipf(zipf))
    except PlanError as fault:
        faults.add(where, str(fault))
        return None


def _read_value(where: str, key: str, value: Any, faults: FaultList) -> Any:
    try:
        return _CONVERTERS[key](value)
    except InputError as fault:
        faults.add(where, str(fault))
    except (TypeError, ValueError, KeyError, OverflowError):
        rule = _RULES.get(_CONVERTERS[key], "cannot be read")
        faults.add(where, f"{rule}, got {str(value)[:80]!r}")
    return None


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    return number


def _switch(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


def _format(value: Any) -> DType:
    return parse_dtype(str(value).rpartition(".")[2])


def _distribution(value: Any) -> IndexDistribution:
    if value == "uniform":
        return UNIFORM
    if isinstance(value, Mapping) and set(value) == {"zipf"}:
        return Zipf(_number(value["zipf"]))
    if isinstance(value, Mapping) and set(value) == {"lookup_shares", "mean_reuse", "draws"}:
        return ReuseHistogram(
            tuple(_number(share) for share in value["lookup_shares"]),
            tuple(_number(reuse) for reuse in value["mean_reuse"]),
            _number(value["draws"]),
        )
    raise PlanError(
        "must be uniform, {zipf: 1.05} or {lookup_shares, mean_reuse, draws}, "
        f"got {str(value)[:80]!r}"
    )


_RULES = {_whole: "must be a whole number, such as 1200000", _number: "must be a number"}
_CONVERTERS: dict[str, Any] = {
    "name": str,
    "rows": _whole,
    "width": _whole,
    "pooling_factor": _number,
    "pooling_deviation": _number,
    "dtype": _format,
    "distribution": _distribution,
    "zipf": _number,
    "is_weighted": _switch,
    "is_pooled": _switch,
    "memory": TableMemory,
    "cached_ratio": _number,
}
