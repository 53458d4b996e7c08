"""TorchRec plans: JSON in the words of TorchRec's ShardingPlan and ParameterSharding.

    {module path: {parameter: {"sharding_type", "compute_kernel", "ranks",
      "sharding_spec": {"shards": [{"shard_offsets", "shard_sizes", "placement"}]}}}}

A data-parallel parameter has no shards. TorchRec writes grid sharding as
`grid_shard`, and column-wise sharding of a table-wise placed module as
`table_column_wise`; both are recognised by their shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.errors import PlanError
from perfmodel.base.fields import OneOf, Parsed
from perfmodel.base.forms import Document, Form
from perfmodel.base.reading import parse_json, read_text

MODULE = "embedding_bag_collection"
CACHED, UNCACHED = "fused_uvm_caching", "fused_uvm"
"""Kernels of TorchRec for tables in host memory, with a cache on the device and without."""
NO_CACHE = 1e-9
"""The cached ratio of a table without a cache."""
MAX_PLAN_BYTES = 256 * 2**20
_TYPES = {kind: kind.value for kind in ShardingKind} | {ShardingKind.GRID: "grid_shard"}
KNOWN_TYPES = (*_TYPES.values(), "table_column_wise")
_PLACEMENT = re.compile(r"rank:(\d+)(/\w+(:\d+)?)?")


def to_plan_document(plan: ShardingPlan, *, gpus_per_host: int | None = None) -> dict[str, Any]:
    """The plan as a JSON document."""
    per_host = gpus_per_host or plan.ranks_per_host or plan.rank_count
    parameters: dict[str, Any] = {}
    for place, table in enumerate(plan.tables):
        kind = plan.kinds[place]
        shards = sorted(plan.shards_of_table[place])
        is_copied = kind is ShardingKind.DATA_PARALLEL
        is_cached = table.memory is TableMemory.HOST_CACHED
        parameters[table.name] = {
            "sharding_type": _type_of(plan, place),
            "compute_kernel": "dense" if is_copied else CACHED if is_cached else "fused",
            "ranks": list(range(plan.rank_count))
            if is_copied
            else [shard.rank for shard in shards],
            "sharding_spec": None
            if is_copied
            else {"shards": [_shard_document(shard, per_host) for shard in shards]},
        }
        if is_cached and not is_copied:
            parameters[table.name]["cache_params"] = {"load_factor": table.cached_ratio}
    return {MODULE: parameters}


def list_unrunnable(plan: ShardingPlan, framework: str = "torchrec") -> tuple[str, ...]:
    """Tables that *framework*, `torchrec` or `hugectr`, cannot run as *plan* places them."""
    return tuple(plan.tables[place].name for place in find_unrunnable(plan, framework))


def find_unrunnable(plan: ShardingPlan, framework: str) -> tuple[int, ...]:
    """The places of tables that *framework* cannot run as *plan* places them.

    HugeCTR splits tables row-wise over any GPUs, copies them, or keeps their frequent rows.

    TorchRec divides rows over all ranks or over those of one host, in order, a grid into columns
    that are each divided so over one host, and copies whole tables only.
    """
    if framework == "hugectr":
        by_columns = (ShardingKind.COLUMN_WISE, ShardingKind.GRID)
        return tuple(
            place
            for place, table in enumerate(plan.tables)
            if plan.kinds[place] in by_columns or not table.is_pooled
        )
    per_host = plan.ranks_per_host or plan.rank_count
    refused = []
    for place in range(len(plan.tables)):
        kind = _type_of(plan, place)
        columns: dict[int, list[int]] = {}
        if kind in ("row_wise", "table_row_wise", "grid_shard"):
            for shard in sorted(plan.shards_of_table[place], key=attrgetter("first_row")):
                columns.setdefault(shard.first_column, []).append(shard.rank)
        size = plan.rank_count if kind == "row_wise" else per_host
        is_even = all(
            ranks == list(range(ranks[0], ranks[0] + size)) and ranks[0] % size == 0
            for ranks in columns.values()
        )
        if not is_even or any(plan.frequent_rows[place : place + 1]):
            refused.append(place)
    return tuple(refused)


def _type_of(plan: ShardingPlan, place: int) -> str:
    """TorchRec's name; table-row-wise only if partial sums are added inside the host."""
    if place in plan.summed_places:
        return _TYPES[ShardingKind.TABLE_ROW_WISE]
    kind = plan.kinds[place]
    return _TYPES[ShardingKind.ROW_WISE if kind is ShardingKind.TABLE_ROW_WISE else kind]


def _shard_document(shard: Shard, per_host: int) -> dict[str, Any]:
    return {
        "shard_offsets": [shard.first_row, shard.first_column],
        "shard_sizes": [shard.rows, shard.width],
        "placement": f"rank:{shard.rank}/cuda:{shard.rank % per_host}",
    }


def load_plan_document(
    path: str | Path, *, tables: Sequence[EmbeddingTable], rank_count: int,
    ranks_per_host: int | None = None,
) -> ShardingPlan:  # fmt: skip
    """Read the plan in *path* for *tables*."""
    path = Path(path)
    text = read_text(path, PlanError, MAX_PLAN_BYTES)
    content = parse_json(text, document=str(path), error_type=PlanError)
    return from_plan_document(
        content,
        tables=tables,
        rank_count=rank_count,
        ranks_per_host=ranks_per_host,
        document=str(path),
    )


def _parse_rank(placement: Any) -> int:
    if isinstance(placement, Mapping) and type(placement.get("rank")) is int:
        rank: int = placement["rank"]
        return rank
    match = _PLACEMENT.fullmatch(placement) if isinstance(placement, str) else None
    if match is None:
        raise PlanError(f"must be like rank:1/cuda:1, got {str(placement)[:80]!r}")
    return int(match.group(1))


_Whole = Annotated[int, Field(strict=True, ge=0)]
_Pair = Annotated[tuple[_Whole, ...], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class PlacedShard(Form):
    """A shard in a plan: where it begins in its table, how large it is, and its rank."""

    shard_offsets: _Pair
    shard_sizes: _Pair
    placement: Annotated[int, Parsed(_parse_rank, "rank:1/cuda:1")]

    def of_table(self, place: int) -> Shard:
        """The shard as one of the table at *place*."""
        (first_row, first_column), (rows, width) = self.shard_offsets, self.shard_sizes
        return Shard(place, self.placement, first_row, rows, first_column, width)


@dataclass(frozen=True, slots=True)
class ShardingSpec(Form):
    """The shards of a parameter."""

    shards: Annotated[tuple[PlacedShard, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class PlacedParameter(Form):
    """A parameter in a plan; one that is copied to all ranks has no shards."""

    sharding_type: Annotated[str, OneOf(KNOWN_TYPES)]
    compute_kernel: Any = None
    ranks: list[_Whole] | None = None
    sharding_spec: ShardingSpec | None = None
    cache_params: Any = None

    def in_memory(self, table: EmbeddingTable) -> EmbeddingTable:
        """*table* in the memory that the kernel reads it from."""
        if self.compute_kernel == UNCACHED:
            return replace(table, memory=TableMemory.HOST_CACHED, cached_ratio=NO_CACHE)
        if self.compute_kernel != CACHED:
            return table
        stated = self.cache_params.get("load_factor") if isinstance(self.cache_params, dict) else 0
        ratio = table.cached_ratio
        if isinstance(stated, int | float) and 0 < stated <= 1:
            ratio = float(stated)
        return replace(table, memory=TableMemory.HOST_CACHED, cached_ratio=ratio)

    def __post_init__(self) -> None:
        if self.sharding_type == "data_parallel":
            return
        if self.sharding_spec is None:
            raise PlanError("must have a sharding_spec with a list of shards")
        held = sorted(shard.placement for shard in self.sharding_spec.shards)
        if self.ranks is not None and sorted(self.ranks) != held:
            raise PlanError("ranks must be the ranks of the shards' placements")


PlanFile = Annotated[dict[str, dict[str, PlacedParameter]], Field(min_length=1)]
"""Module paths to parameters by their names."""


def from_plan_document(
    content: Any,
    *,
    tables: Sequence[EmbeddingTable],
    rank_count: int,
    ranks_per_host: int | None = None,
    document: str = "plan",
) -> ShardingPlan:
    """The plan in *content*, or in its only key `plan`; *document* names it in errors."""
    if isinstance(content, Mapping) and set(content) == {"plan"}:
        content = content["plan"]
    file = Document(document, content, PlanError)
    modules: dict[str, dict[str, PlacedParameter]] = file.read(cast("Any", PlanFile))
    faults = file.faults()
    place_of = {table.name: place for place, table in enumerate(tables)}
    found: dict[str, PlacedParameter] = {}
    for module, parameters in modules.items():
        for name, parameter in parameters.items():
            if name in found:
                rule = "placed twice: another module has a table of that name"
                faults.add(f"{module}.{name}", rule)
            elif name not in place_of:
                rule = f"no such table among {len(tables)}: {', '.join(place_of)[:200]}"
                faults.add(f"{module}.{name}", rule)
            found[name] = parameter
    faults.check(PlanError)
    per_host = ranks_per_host or rank_count
    has_hosts = rank_count > per_host and rank_count % per_host == 0
    shards = [
        shard.of_table(place_of[name])
        for name, parameter in found.items()
        if parameter.sharding_type != "data_parallel" and parameter.sharding_spec is not None
        for shard in parameter.sharding_spec.shards
    ]

    def of_type(word: str) -> tuple[int, ...]:
        return tuple(
            sorted(place_of[name] for name, one in found.items() if one.sharding_type == word)
        )

    return ShardingPlan(
        tables=tuple(
            found[table.name].in_memory(table) if table.name in found else table for table in tables
        ),
        rank_count=rank_count,
        shards=tuple(sorted(shards)),
        data_parallel=of_type("data_parallel"),
        name=Path(document).stem,
        ranks_per_host=ranks_per_host,
        # TorchRec adds partial sums of these inside a host before they travel.
        summed_in_host=of_type("table_row_wise") if has_hosts else (),
    )
