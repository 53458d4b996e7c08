"""Table files: tables from YAML, CSV or a TorchRec configuration in JSON.

TorchRec's EmbeddingBagConfig says `num_embeddings` and `embedding_dim`; it has no pooling factors,
so those are 1 unless `pooling_factor` is added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from embeddings.distribution import UNIFORM, IndexDistribution, ReuseHistogram, Zipf
from embeddings.index_files import load_index_data
from embeddings.plan import ShardingKind
from embeddings.table import (
    MOST_LOOKUPS,
    MOST_ROWS,
    MOST_TABLES,
    MOST_WIDTH,
    EmbeddingTable,
    TableMemory,
    spread_hot_rows,
)
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import PlanError
from perfmodel.base.fields import Parsed, ReadAs
from perfmodel.base.forms import Document, load_document
from perfmodel.base.reading import parse_json, parse_rows, quote, read_text

MAX_TABLE_FILE_BYTES = 64 * 2**20
MOST_RANKS = 2**20


def _refuse_switch(rule: str, value: Any) -> Any:
    if value is True or value is False:
        raise ValueError(f"must be {rule}, got {value}")
    return value


def _parse_switch(value: Any) -> bool:
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError(f"must be true or false, got {quote(value)}")
    return words[str(value).lower()]


def _parse_format(value: Any) -> DType:
    return parse_dtype(str(value).rpartition(".")[2])


def _parse_distribution(value: Any) -> IndexDistribution:
    if value == "uniform":
        return UNIFORM
    keys = set(value) if isinstance(value, dict) else set()
    if keys == {"zipf"}:
        return Zipf(value["zipf"])
    if keys == {"lookup_shares", "mean_reuse", "draws"}:
        shares, reuse = tuple(value["lookup_shares"]), tuple(value["mean_reuse"])
        return ReuseHistogram(shares, reuse, value["draws"])
    raise PlanError(
        "must be uniform, {zipf: 1.05} or {lookup_shares, mean_reuse, draws}, "
        f"got {str(value)[:80]!r}"
    )


def _parse_words(value: Any) -> tuple[str, ...]:
    """A list, or in a CSV cell words joined by +; TorchRec's word for a grid is its own."""
    words = value.split("+") if isinstance(value, str) else value
    known = {kind.value: kind.value for kind in ShardingKind} | {"grid_shard": "grid"}
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        raise ValueError(f"must be of {', '.join(known)}, got {quote((wrong or [''])[0])}")
    return tuple(known[word] for word in words)


def _parse_ranks(value: Any) -> tuple[int, ...]:
    """A list, or text such as 0-3,8."""
    parts = value.split(",") if isinstance(value, str) else [str(one) for one in value]
    ranks: set[int] = set()
    for part in parts:
        low, _, high = part.strip().partition("-")
        if not (low.isdigit() and (high or low).isdigit() and int(high or low) < MOST_RANKS):
            raise ValueError(f"must be ranks such as 0-3,8, got {quote(part)}")
        ranks |= set(range(int(low), int(high or low) + 1))
    return tuple(sorted(ranks))


def _check_pooling(value: Any) -> Any:
    """Refuse a number: TorchRec's word is a way to add up, not how many rows there are."""
    if str(value).strip().replace(".", "", 1).isdigit():
        raise ValueError(f"must be SUM or MEAN, got {value}. Lookups per sample are pooling_factor")
    return value


# A cell of a CSV file is text, so a number may be written as one.
_Whole = Annotated[int, BeforeValidator(partial(_refuse_switch, "a whole number"))]
_Number = Annotated[
    float, Field(allow_inf_nan=False), BeforeValidator(partial(_refuse_switch, "a number"))
]
_Switch = Annotated[bool, Parsed(_parse_switch, "true")]
_Format = Annotated[DType, Parsed(_parse_format, "fp16")]
_DistributionWords = str | dict[str, _Number | list[_Number]]


class TableEntry(BaseModel):
    """A table as a file states it, in our words or those of TorchRec."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        min_length=1,
        coerce_numbers_to_str=True,
        validation_alias=AliasChoices("name", "table_name", "table"),
    )
    rows: _Whole = Field(
        ge=1, le=MOST_ROWS, validation_alias=AliasChoices("rows", "num_embeddings", "num_rows")
    )
    width: _Whole = Field(
        ge=1, le=MOST_WIDTH, validation_alias=AliasChoices("width", "embedding_dim", "dim")
    )
    pooling_factor: _Number = Field(1.0, ge=0, le=MOST_LOOKUPS)
    pooling_deviation: _Number = Field(0.0, ge=0, le=MOST_LOOKUPS)
    dtype: _Format = Field(DType.FP32, validation_alias=AliasChoices("dtype", "data_type"))
    distribution: Annotated[Any, ReadAs(_DistributionWords, _parse_distribution)] = UNIFORM
    zipf: _Number | None = None
    is_weighted: _Switch = False
    is_pooled: _Switch = True
    memory: TableMemory = TableMemory.DEVICE
    cached_ratio: _Number = 0.2
    sharding_types: Annotated[Any, ReadAs(str | list[str], _parse_words)] = ()
    ranks: Annotated[Any, ReadAs(str | list[int], _parse_ranks)] = ()
    feature_names: Any = None
    pooling: Annotated[Any, BeforeValidator(_check_pooling)] = None
    init_fn: Any = None

    def build(self) -> EmbeddingTable:
        """The table; what TorchRec states beyond it has no effect on time.

        Every feature that shares it looks up as many rows as the pooling factor says.
        """
        ignored = ("feature_names", "pooling", "init_fn", "zipf")
        values = {name: value for name, value in self if name not in ignored}
        if isinstance(self.feature_names, list) and len(self.feature_names) > 1:
            values["features"] = len(self.feature_names)
            values["pooling_factor"] = self.pooling_factor * values["features"]
        values["distribution"] = self.distribution if self.zipf is None else Zipf(self.zipf)
        return EmbeddingTable(**values)


class TablesFile(BaseModel):
    """A file of tables."""

    model_config = ConfigDict(extra="forbid")

    tables: tuple[Annotated[EmbeddingTable, ReadAs(TableEntry, TableEntry.build)], ...]
    source: Any = None
    description: Any = None


def load_tables(
    path: str | Path, *, indices: str | Path | None = None
) -> tuple[EmbeddingTable, ...]:
    """The tables in *path*, with distribution and pooling as in the file *indices* if given."""
    document = _load(Path(path))
    entries = document.content.get("tables", [None])
    if isinstance(entries, list) and not 1 <= len(entries) <= MOST_TABLES:
        raise PlanError(
            f"{path}: must list at least one table and at most {MOST_TABLES} tables, "
            f"got {len(entries)}."
        )
    tables = document.read(TablesFile).tables
    counts = Counter(table.name for table in tables)
    faults = document.faults()
    for place, table in enumerate(tables):
        if counts[table.name] > 1:
            faults.add(f"tables[{place}].name", f"two tables have this name, got {table.name!r}")
    faults.check(PlanError)
    return spread_hot_rows(tables if indices is None else _with_indices(tables, indices))


def _load(path: Path) -> Document:
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return load_document(path, PlanError)
    if suffix not in (".csv", ".json"):
        raise PlanError(f"{path}: must end in .yaml, .csv or .json, got {suffix or 'nothing'!r}.")
    text = read_text(path, PlanError, MAX_TABLE_FILE_BYTES)
    if suffix == ".json":
        content = parse_json(text, document=str(path), error_type=PlanError)
        return Document(str(path), content if isinstance(content, dict) else {"tables": content},
                        PlanError)  # fmt: skip
    rows = parse_rows(text, document=str(path), error_type=PlanError)
    entries = [{key: value for key, value in row.items() if value} for row in rows]
    return Document(str(path), {"tables": entries}, PlanError, _in_table)


def _in_table(path: str) -> str:
    """A path of a document that was a table, such as `row 2, column rows`."""
    path = re.sub(r"^tables\[(\d+)\]\.?", r"row \1, column ", path)
    return path.removesuffix(", column ")


def _with_indices(
    tables: Sequence[EmbeddingTable], indices: str | Path
) -> tuple[EmbeddingTable, ...]:
    data = load_index_data(indices)
    if len(data.names) != len(tables):
        raise PlanError(
            f"{indices}: must hold indices of {len(tables)} tables, got {len(data.names)}."
        )
    known = {name: place for place, name in enumerate(data.names)}
    left = [table.name for table in tables if table.name not in known]
    if left and len(left) < len(tables):
        raise PlanError(
            f"{indices}: it names some of the tables, but {', '.join(left)[:200]} are "
            "missing. Name all tables, or none of them, in their order."
        )
    return tuple(
        data.describe_table(table, place if left else known[table.name])
        for place, table in enumerate(tables)
    )
