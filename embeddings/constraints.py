"""Constraints: how a table may be cut and which ranks may hold it, as TorchRec's planner asks.

Makers of plans do not know them. A table that a plan places otherwise is placed again, by the
first kind that is allowed, the largest table first, on the ranks that hold the fewest bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

LEAST_WIDTH = 32
"""Narrower columns than TorchRec's least partition are not made."""


def find_broken(plan: ShardingPlan) -> tuple[int, ...]:
    """The places of tables whose constraints *plan* does not keep."""
    return tuple(place for place in range(len(plan.tables)) if not _is_kept(plan, place))


def conform(plan: ShardingPlan) -> ShardingPlan:
    """*plan* with every table whose constraints it breaks placed again; itself if it keeps all."""
    broken = find_broken(plan)
    if not broken:
        return plan
    kept = [shard for shard in plan.shards if shard.table not in broken]
    load = [0] * plan.rank_count
    for shard in kept:
        load[shard.rank] += _size(plan.tables[shard.table], shard)
    copied = [place for place in plan.data_parallel if place not in broken]
    for place in sorted(broken, key=lambda place: (-plan.tables[place].size_bytes, place)):
        shards = _place(plan, place, load)
        kept += shards
        copied += [] if shards else [place]
        for shard in shards:
            load[shard.rank] += _size(plan.tables[place], shard)
    rows = tuple(0 if place in broken else count for place, count in enumerate(plan.frequent_rows))
    return replace(
        plan,
        shards=tuple(sorted(kept)),
        data_parallel=tuple(sorted(copied)),
        summed_in_host=tuple(place for place in plan.summed_in_host if place not in broken),
        frequent_rows=rows if any(rows) else (),
    )


def _is_kept(plan: ShardingPlan, place: int) -> bool:
    table = plan.tables[place]
    held = {shard.rank for shard in plan.shards_of_table[place]} or set(range(plan.rank_count))
    is_kind = not table.sharding_types or plan.kinds[place].value in table.sharding_types
    return is_kind and (not table.ranks or held <= set(table.ranks))


def _size(table: EmbeddingTable, shard: Shard) -> int:
    return shard.rows * shard.width * table.dtype.size_bytes


def _place(plan: ShardingPlan, place: int, load: Sequence[int]) -> list[Shard]:
    """Pieces of the table at *place* by the first kind that can be done; none if it is copied."""
    table = plan.tables[place]
    outside = [rank for rank in table.ranks if rank >= plan.rank_count]
    if outside:
        raise PlanError(
            f"table {table.name!r}: its ranks must be from 0 to {plan.rank_count - 1}, "
            f"got {outside[0]}. Name others, or take more GPUs."
        )
    ranks = list(table.ranks or range(plan.rank_count))
    emptiest = sorted(ranks, key=lambda rank: (load[rank], rank))
    for word in table.sharding_types or (plan.kinds[place].value, "table_wise"):
        kind = ShardingKind(word)
        if kind is ShardingKind.DATA_PARALLEL and len(ranks) == plan.rank_count:
            return []
        if kind is ShardingKind.TABLE_WISE:
            return [Shard(place, emptiest[0], 0, table.rows, 0, table.width)]
        if kind is ShardingKind.COLUMN_WISE and len(ranks) > 1 and table.width >= 2 * LEAST_WIDTH:
            return _by_columns(place, table, emptiest)
        if kind is ShardingKind.ROW_WISE and len(ranks) > 1:
            return _by_rows(place, table, ranks)
        if kind is ShardingKind.TABLE_ROW_WISE:
            of_host = [rank for rank in ranks if plan.host_of(rank) == plan.host_of(emptiest[0])]
            if 1 < len(of_host) < plan.rank_count:
                return _by_rows(place, table, of_host)
    raise PlanError(
        f"table {table.name!r}: may be {' or '.join(table.sharding_types)} on {len(ranks)} of "
        f"{plan.rank_count} ranks, and none of these can be made. Allow another sharding type."
    )


def _by_rows(place: int, table: EmbeddingTable, ranks: Sequence[int]) -> list[Shard]:
    """Equal blocks of rows in the order of ranks; the last ones of a small table get none."""
    block = -(-table.rows // len(ranks))
    starts = range(0, table.rows, block)
    return [
        Shard(place, rank, first, min(block, table.rows - first), 0, table.width)
        for rank, first in zip(ranks, starts, strict=False)
    ]


def _by_columns(place: int, table: EmbeddingTable, ranks: Sequence[int]) -> list[Shard]:
    count = min(len(ranks), table.width // LEAST_WIDTH)
    edges = [table.width * number // count for number in range(count + 1)]
    return [
        Shard(place, ranks[number], 0, table.rows, edges[number], edges[number + 1] - edges[number])
        for number in range(count)
    ]
