"""Sharders: placements by name, each from a simple cost per table.

Those of the paper place whole tables, greedy ones the most expensive first. Those
of other systems are in `framework_sharders.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np

from embeddings.framework_sharders import shard_as_hugectr, shard_as_hybrid, shard_as_torchrec
from embeddings.plan import ShardingPlan
from embeddings.sharding_task import Placer, Rule, cut_table, place_greedily, spread_rows
from embeddings.sharding_task import ShardingTask as ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

Sharder = Callable[[ShardingTask], ShardingPlan]
TableCost = Callable[[EmbeddingTable, ShardingTask], float]


def build_named_plan(name: str, task: ShardingTask) -> ShardingPlan:
    """The plan of the sharder called *name*."""
    known = SHARDERS | HYBRID_SHARDERS
    if name not in known:
        raise PlanError(f"sharder: must be one of {', '.join(known)}, got {name!r}.")
    return known[name](task)


def size_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Bytes."""
    del task
    return float(table.size_bytes)


def lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read per sample."""
    del task
    return table.width * table.pooling_factor


def norm_lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read per sample, without repeats within a batch: our own definition.

    The paper's scripts name this cost and do not define it.
    """
    draws = task.batch_size * table.pooling_factor
    return table.width * float(table.popularity.distinct_rows(draws)) / task.batch_size


def size_lookup_cost(table: EmbeddingTable, task: ShardingTask) -> float:
    """Numbers read per sample, more for larger tables (as in DreamShard)."""
    return lookup_cost(table, task) * math.log10(max(table.rows, 10))


def _greedy(name: str, cost: TableCost, task: ShardingTask) -> ShardingPlan:
    costs = [cost(table, task) for table in task.tables]
    return task.whole(place_greedily(costs, task.needs, task), name)


def _naive(task: ShardingTask) -> ShardingPlan:
    return task.whole([place % task.rank_count for place in range(len(task.tables))], "naive")


def _naive_chunk(task: ShardingTask) -> ShardingPlan:
    count = len(task.tables)
    return task.whole([place * task.rank_count // count for place in range(count)], "naive_chunk")


def _random(task: ShardingTask) -> ShardingPlan:
    generator = random.Random(task.seed)
    return task.whole([generator.randrange(task.rank_count) for _ in task.tables], "random")


def _size_even(task: ShardingTask) -> ShardingPlan:
    """Largest first, to the rank with fewest bytes of those with less than their share of pieces.

    As in NVIDIA's DLRM examples. If that does not fit, the largest pieces are halved by columns
    until it does: their threshold for slicing, lowered.
    """
    cuts = [1] * len(task.tables)
    # No cut saves memory, so of tables that do not fit everything is cut, in few rounds.
    is_too_much = sum(task.needs) > task.rank_count * task.room_bytes
    while True:
        shards = [
            shard
            for place, (table, columns) in enumerate(zip(task.tables, cuts, strict=True))
            for shard in cut_table(place, table, columns=columns, rows=1)
        ]
        pieces = [task.tables[shard.table].of_width(shard.width) for shard in shards]
        sizes = [piece.held_bytes(task.optimizer) for piece in pieces]
        placer = Placer(
            task.rank_count, math.inf, Rule.LEAST_WORK, most=-(-len(shards) // task.rank_count)
        )
        order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
        ranks = placer.place(order, sizes, sizes)
        needs = [task.needed_bytes(piece) for piece in pieces]
        used = np.bincount(ranks, weights=needs, minlength=task.rank_count)
        wide = [
            (sizes[number], shard.table)
            for number, shard in enumerate(shards)
            if shard.width % 2 == 0 and 2 * cuts[shard.table] <= task.rank_count
        ]
        if used.max() <= task.room_bytes or not wide:
            placed = zip(shards, ranks.tolist(), strict=True)
            return task.plan([shard.on_rank(rank) for shard, rank in placed], "size_even")
        largest = max(size for size, _ in wide)
        for place in {place for size, place in wide if is_too_much or size == largest}:
            cuts[place] *= 2


def _balanced(task: ShardingTask) -> ShardingPlan:
    from embeddings.balanced import iter_balanced_plans  # a search, and only this sharder needs it

    return next(iter_balanced_plans(task))


_COSTS: dict[str, TableCost] = {
    "size_greedy": size_cost,
    "lookup_greedy": lookup_cost,
    "norm_lookup_greedy": norm_lookup_cost,
    "size_lookup_greedy": size_lookup_cost,
}
SHARDERS: dict[str, Sharder] = {
    "naive": _naive,
    "naive_chunk": _naive_chunk,
    "random": _random,
    **{name: partial(_greedy, name, cost) for name, cost in _COSTS.items()},
    "balanced": _balanced,
    "row_wise": lambda task: task.plan(
        spread_rows(task.tables, rank_count=task.rank_count), "row_wise"
    ),
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
