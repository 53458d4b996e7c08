"""Sharders: placements by name, each from a simple cost a table.

The paper's place whole tables, greedy ones the dearest first. Those that other
systems are known for are in `framework_sharders.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from embeddings.balanced import (
    PlacementRule,
    exchange_weight,
    iter_balanced_plans,
)
from embeddings.cutting import spread_rows
from embeddings.framework_sharders import shard_as_hugectr, shard_as_hybrid, shard_as_torchrec
from embeddings.plan import ShardingPlan
from embeddings.plan_memory import piece_bytes
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask, place_greedily
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

__all__ = [
    "DEFAULT_SHARDER",
    "HYBRID_SHARDERS",
    "PAPER_SHARDERS",
    "SHARDERS",
    "ShardingTask",
    "build_named_plan",
    "iter_balanced",
    "place_greedily",
]


Sharder = Callable[[ShardingTask], ShardingPlan]
TableCost = Callable[[EmbeddingTable, ShardingTask], float]


def build_named_plan(name: str, task: ShardingTask) -> ShardingPlan:
    """The plan of the sharder called *name*."""
    known = SHARDERS | HYBRID_SHARDERS
    if name not in known:
        raise PlanError(f"sharder: must be one of {', '.join(known)}, got {name!r}.")
    return known[name](task)


def _greedy(name: str, cost: TableCost) -> Sharder:
    def shard(task: ShardingTask) -> ShardingPlan:
        costs = [cost(table, task) for table in task.tables]
        sizes = [piece_bytes(table, task.optimizer) for table in task.tables]
        return task.whole(place_greedily(costs, sizes, task), name)

    return shard


def size_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Bytes."""
    del task
    return float(table.size_bytes)


def lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read for a sample."""
    del task
    return table.width * table.pooling_factor


def norm_lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read for a sample, repeats within a batch not counted: our own definition.

    The paper's scripts name this cost and do not define it.
    """
    draws = task.batch_size * table.pooling_factor
    return table.width * float(table.popularity.distinct_rows(draws)) / task.batch_size


def size_lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read for a sample, more for larger tables (as DreamShard has it)."""
    return lookup_cost(table, task) * math.log10(max(table.rows, 10))


def _naive(task: ShardingTask) -> ShardingPlan:
    return task.whole([place % task.rank_count for place in range(len(task.tables))], "naive")


def _naive_chunk(task: ShardingTask) -> ShardingPlan:
    count = len(task.tables)
    ranks = [place * task.rank_count // count for place in range(count)]
    return task.whole(ranks, "naive_chunk")


def _random(task: ShardingTask) -> ShardingPlan:
    generator = random.Random(task.seed)
    ranks = [generator.randrange(task.rank_count) for _ in task.tables]
    return task.whole(ranks, "random")


def _size_even(task: ShardingTask) -> ShardingPlan:
    """Largest first, to the rank with fewest bytes of those with less than their share of tables.

    As NVIDIA's DLRM examples do it, which look at room no more than this does.
    """
    share = -(-len(task.tables) // task.rank_count)
    sizes = [piece_bytes(table, task.optimizer) for table in task.tables]
    used, held = [0] * task.rank_count, [0] * task.rank_count
    ranks = [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        is_open = (rank for rank in range(task.rank_count) if held[rank] < share)
        rank = min(is_open, key=lambda rank: used[rank])
        ranks[place] = rank
        used[rank] += sizes[place]
        held[rank] += 1
    return task.whole(ranks, "size_even")


def _balanced(task: ShardingTask) -> ShardingPlan:
    return next(iter_balanced(task))


def iter_balanced(task: ShardingTask) -> Iterator[ShardingPlan]:
    """All plans that the balanced sharder thinks of, the one it takes first."""
    rule = PlacementRule(
        data_parallel_below_bytes=task.data_parallel_below_bytes,
        batch_size=task.batch_size,
        min_width=task.min_width,
        max_shard_bytes=task.max_shard_bytes,
        room_bytes=None if task.room_bytes >= UNKNOWN_ROOM_BYTES else task.room_bytes,
        optimizer=task.optimizer,
        exchange_weight=exchange_weight(task.rank_count, task.ranks_per_host),
    )
    return iter_balanced_plans(
        task.tables, rank_count=task.rank_count, rule=rule, ranks_per_host=task.ranks_per_host
    )


def _row_wise(task: ShardingTask) -> ShardingPlan:
    return task.plan(spread_rows(task.tables, rank_count=task.rank_count), "row_wise")


SHARDERS: dict[str, Sharder] = {
    "naive": _naive,
    "naive_chunk": _naive_chunk,
    "random": _random,
    "size_greedy": _greedy("size_greedy", size_cost),
    "lookup_greedy": _greedy("lookup_greedy", lookup_cost),
    "norm_lookup_greedy": _greedy("norm_lookup_greedy", norm_lookup_cost),
    "size_lookup_greedy": _greedy("size_lookup_greedy", size_lookup_cost),
    "balanced": _balanced,
    "row_wise": _row_wise,
    "size_even": _size_even,
    "torchrec": shard_as_torchrec,
    "hugectr_auto": shard_as_hugectr,
}
"""Every sharder by name whose plans differ only in which rank holds what."""

HYBRID_SHARDERS: dict[str, Sharder] = {"hugectr_hybrid": shard_as_hybrid}
"""Those that also copy rows of a table to every rank."""

DEFAULT_SHARDER = "balanced"

PAPER_SHARDERS = tuple(SHARDERS)[:7]
"""The seven of the paper's scripts; all of them place whole tables."""
