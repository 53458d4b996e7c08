"""TorchRec plans: JSON in the words of TorchRec's ShardingPlan and ParameterSharding.

    {module path: {parameter: {"sharding_type", "compute_kernel", "ranks",
      "sharding_spec": {"shards": [{"shard_offsets", "shard_sizes", "placement"}]}}}}

A data-parallel parameter has no shards. TorchRec writes grid sharding as
`grid_shard`, and column-wise sharding of a table-wise placed module as
`table_column_wise`; both are told from the shards themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.documents import FaultList
from perfmodel.base.errors import PlanError
from perfmodel.base.reading import parse_json, quote, read_text

MODULE = "embedding_bag_collection"
MAX_PLAN_BYTES = 256 * 2**20
_TYPES = {
    ShardingKind.TABLE_WISE: "table_wise",
    ShardingKind.ROW_WISE: "row_wise",
    ShardingKind.COLUMN_WISE: "column_wise",
    ShardingKind.TABLE_ROW_WISE: "table_row_wise",
    ShardingKind.GRID: "grid_shard",
    ShardingKind.DATA_PARALLEL: "data_parallel",
}
_SUMMED_IN_HOST = ("table_row_wise",)
"""Types whose partial sums TorchRec reduces inside a host before they travel."""
KNOWN_TYPES = (*_TYPES.values(), "table_column_wise")
_PARAMETER_KEYS = {"sharding_type", "compute_kernel", "ranks", "sharding_spec"}
_SHARD_KEYS = {"shard_offsets", "shard_sizes", "placement"}
_PLACEMENT = re.compile(r"rank:(\d+)(/\w+(:\d+)?)?")


def to_plan_document(plan: ShardingPlan, *, gpus_per_host: int | None = None) -> dict[str, Any]:
    """The plan as a JSON document."""
    per_host = gpus_per_host or plan.ranks_per_host or plan.rank_count
    parameters: dict[str, Any] = {}
    for place, table in enumerate(plan.tables):
        kind = plan.kinds[place]
        shards = sorted(shard for shard in plan.shards if shard.table == place)
        is_copied = kind is ShardingKind.DATA_PARALLEL
        is_cached = table.memory is TableMemory.HOST_CACHED
        parameters[table.name] = {
            "sharding_type": _type_of(plan, place),
            "compute_kernel": "dense"
            if is_copied
            else "fused_uvm_caching"
            if is_cached
            else "fused",
            "ranks": list(range(plan.rank_count))
            if is_copied
            else [shard.rank for shard in shards],
            "sharding_spec": None
            if is_copied
            else {"shards": [_shard_document(shard, per_host) for shard in shards]},
        }
    return {MODULE: parameters}


def list_unrunnable(plan: ShardingPlan) -> tuple[str, ...]:
    """Tables that TorchRec cannot run as *plan* places them.

    It divides rows over all ranks or over those of one host, in order, a grid into columns that
    are each divided so over one host, and copies whole tables only.
    """
    per_host = plan.ranks_per_host or plan.rank_count
    refused = []
    for place, table in enumerate(plan.tables):
        kind = _type_of(plan, place)
        columns: dict[int, list[int]] = {}
        if kind in ("row_wise", "table_row_wise", "grid_shard"):
            pieces = sorted(
                (shard.first_row, shard) for shard in plan.shards if shard.table == place
            )
            for _, shard in pieces:
                columns.setdefault(shard.first_column, []).append(shard.rank)
        size = plan.rank_count if kind == "row_wise" else per_host
        is_even = all(
            ranks == list(range(ranks[0], ranks[0] + size)) and ranks[0] % size == 0
            for ranks in columns.values()
        )
        if not is_even or any(plan.frequent_rows[place : place + 1]):
            refused.append(table.name)
    return tuple(refused)


def _type_of(plan: ShardingPlan, place: int) -> str:
    """TorchRec's word; by rows of a host is said only where partial sums are added there."""
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


def from_plan_document(
    content: Any,
    *,
    tables: Sequence[EmbeddingTable],
    rank_count: int,
    ranks_per_host: int | None = None,
    document: str = "plan",
) -> ShardingPlan:
    """The plan in *content*; *document* names it in errors."""
    faults = FaultList(document)
    place_of = {table.name: place for place, table in enumerate(tables)}
    shards: list[Shard] = []
    copied: list[int] = []
    in_host: list[int] = []
    seen: set[str] = set()
    for where, name, parameter in _parameters(content, faults):
        if name in seen:
            faults.add(where, "placed twice: another module has a table of that name")
        elif name not in place_of:
            faults.add(where, f"no such table among {len(tables)}: {', '.join(place_of)[:200]}")
        elif _is_known(where, parameter, faults):
            if parameter["sharding_type"] == "data_parallel":
                copied.append(place_of[name])
            else:
                shards += _read_shards(where, parameter, place_of[name], faults)
            if parameter["sharding_type"] in _SUMMED_IN_HOST:
                in_host.append(place_of[name])
        seen.add(name)
    faults.check(PlanError)
    return ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=tuple(sorted(shards)),
        data_parallel=tuple(sorted(copied)),
        name=Path(document).stem,
        ranks_per_host=ranks_per_host,
        summed_in_host=tuple(sorted(in_host)) if _has_hosts(rank_count, ranks_per_host) else (),
    )


def _has_hosts(rank_count: int, ranks_per_host: int | None) -> bool:
    """Whether there are several hosts, all of the same size."""
    per_host = ranks_per_host or rank_count
    return rank_count > per_host and rank_count % per_host == 0


def _parameters(content: Any, faults: FaultList) -> list[tuple[str, str, Any]]:
    """Place, name and content of every parameter; `{"plan": ...}` around it is taken off."""
    if isinstance(content, Mapping) and set(content) == {"plan"}:
        content = content["plan"]
    if not isinstance(content, Mapping) or not content:
        faults.add("file", "must be a mapping of module paths")
        return []
    found = []
    for module, parameters in content.items():
        if not isinstance(parameters, Mapping):
            faults.add(str(module), "must be a mapping of parameters")
            continue
        found += [(f"{module}.{name}", str(name), value) for name, value in parameters.items()]
    return found


def _is_known(where: str, parameter: Any, faults: FaultList) -> bool:
    if not isinstance(parameter, Mapping):
        faults.add(where, "must be a mapping with sharding_type and sharding_spec")
        return False
    unknown = sorted(set(map(str, parameter)) - _PARAMETER_KEYS)
    if unknown:
        faults.add(where, f"unknown key {', '.join(unknown)}")
    word = parameter.get("sharding_type")
    if word not in KNOWN_TYPES:
        faults.add(
            f"{where}.sharding_type",
            f"unknown sharding type {quote(word)}; must be one of {', '.join(KNOWN_TYPES)}",
        )
        return False
    return not unknown


def _read_shards(where: str, parameter: Any, place: int, faults: FaultList) -> list[Shard]:
    spec = parameter.get("sharding_spec")
    entries = spec.get("shards") if isinstance(spec, Mapping) else None
    if not isinstance(entries, list) or not entries:
        faults.add(f"{where}.sharding_spec.shards", "must be a list of shards")
        return []
    found = []
    for number, entry in enumerate(entries):
        shard = _read_shard(f"{where}.sharding_spec.shards[{number}]", entry, place, faults)
        if shard is not None:
            found.append(shard)
    stated, held = parameter.get("ranks"), sorted(shard.rank for shard in found)
    is_whole = len(found) == len(entries)
    is_list = isinstance(stated, list)
    if stated is not None and not is_list:
        faults.add(f"{where}.ranks", f"must be a list of ranks, got {quote(stated)}")
    elif is_list and is_whole and sorted(map(str, stated)) != sorted(map(str, held)):
        faults.add(f"{where}.ranks", "must be the ranks of the shards' placements")
    return found


def _read_shard(where: str, entry: Any, place: int, faults: FaultList) -> Shard | None:
    if not isinstance(entry, Mapping) or set(entry) != _SHARD_KEYS:
        faults.add(where, f"must have exactly {', '.join(sorted(_SHARD_KEYS))}")
        return None
    rank = _read_rank(entry["placement"])
    pairs = (entry["shard_offsets"], entry["shard_sizes"])
    if rank is None:
        faults.add(
            f"{where}.placement",
            f"must be like rank:1/cuda:1, got {str(entry['placement'])[:80]!r}",
        )
    if not all(_is_pair(pair) for pair in pairs):
        faults.add(where, "shard_offsets and shard_sizes must be two whole numbers each")
        return None
    if rank is None:
        return None
    (first_row, first_column), (rows, width) = pairs
    return Shard(place, rank, first_row, rows, first_column, width)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(value) is int for value in pair)


def _read_rank(placement: Any) -> int | None:
    if isinstance(placement, Mapping) and type(placement.get("rank")) is int:
        rank: int = placement["rank"]
        return rank
    match = _PLACEMENT.fullmatch(placement) if isinstance(placement, str) else None
    return int(match.group(1)) if match else None
