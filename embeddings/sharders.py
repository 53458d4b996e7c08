"""Sharders: placements by name, each from a simple cost a table.

Greedy ones take the dearest table first and put it on the rank that has least
to do among those with room; a tie goes to the rank with less memory used, then
to the lower one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from embeddings.balanced import PlacementRule, build_balanced_plan
from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_memory import piece_bytes
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB


@dataclass(frozen=True, slots=True)
class ShardingTask:
    """What a sharder is asked: place *tables* on *rank_count* ranks with *room_bytes* each.

    *room_bytes* is for weights and optimizer state. *seed* decides only the
    random sharder.
    """

    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    room_bytes: int
    batch_size: int
    optimizer: str = "sgd"
    ranks_per_host: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.tables or self.rank_count < 1:
            raise PlanError("sharding task: needs at least one table and one rank.")

    def whole(self, ranks: Sequence[int], name: str) -> ShardingPlan:
        """The table-wise plan that puts table i on ranks[i]."""
        shards = tuple(
            Shard(place, ranks[place], 0, table.rows, 0, table.width)
            for place, table in enumerate(self.tables)
        )
        return self._plan(shards, name)

    def plan(self, shards: Sequence[Shard], name: str) -> ShardingPlan:
        """The plan of *shards*."""
        return self._plan(tuple(sorted(shards)), name)

    def _plan(self, shards: tuple[Shard, ...], name: str) -> ShardingPlan:
        return ShardingPlan(
            tables=self.tables,
            rank_count=self.rank_count,
            shards=shards,
            name=name,
            ranks_per_host=self.ranks_per_host,
        )


Sharder = Callable[[ShardingTask], ShardingPlan]
TableCost = Callable[[EmbeddingTable, ShardingTask], float]


def build_named_plan(name: str, task: ShardingTask) -> ShardingPlan:
    """The plan of the sharder called *name*."""
    if name not in SHARDERS:
        raise PlanError(f"sharder: must be one of {', '.join(SHARDERS)}, got {name!r}.")
    return SHARDERS[name](task)


def place_greedily(costs: Sequence[float], sizes: Sequence[int], task: ShardingTask) -> list[int]:
    """A rank for every piece: dearest first, to the rank with least cost that has room."""
    work, used = np.zeros(task.rank_count), np.zeros(task.rank_count)
    ranks = [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
        is_roomy = used + sizes[piece] <= task.room_bytes
        if not is_roomy.any():
            raise PlanError(
                f"sharder: no rank has room for a piece of {sizes[piece] / BYTES_PER_GIB:.1f} GiB; "
                f"the emptiest of {task.rank_count} has "
                f"{(task.room_bytes - used.min()) / BYTES_PER_GIB:.1f} GiB left. "
                "Take more ranks, or a sharder that splits tables."
            )
        least = np.where(is_roomy, work, np.inf)
        rank = int(np.where(least == least.min(), used, np.inf).argmin())
        work[rank] += costs[piece]
        used[rank] += sizes[piece]
        ranks[piece] = rank
    return ranks


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
    return table.width * table.popularity.distinct_rows(draws) / task.batch_size


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


def _torchrec_like(task: ShardingTask) -> ShardingPlan:
    """As TorchRec's planner goes about it: a cost from pooling factors alone, greedy, split.

    Leaves out: its proposers and exact cost formulas; a table that no rank can
    hold or that is dearer than a rank's share is split by columns, then by rows.
    """
    costs = [_torchrec_cost(table) for table in task.tables]
    share = sum(costs) / task.rank_count
    pieces: list[Shard] = []
    for place, table in enumerate(task.tables):
        pieces += _split(place, table, costs[place] / share, task)
    tables = task.tables
    piece_costs = [
        costs[piece.table]
        * (piece.rows * piece.width)
        / (tables[piece.table].rows * tables[piece.table].width)
        for piece in pieces
    ]
    whole = task.plan(pieces, "torchrec_like")
    sizes = [piece_bytes(whole.table_of(piece), task.optimizer) for piece in pieces]
    ranks = place_greedily(piece_costs, sizes, task)
    placed = [
        Shard(piece.table, rank, piece.first_row, piece.rows, piece.first_column, piece.width)
        for piece, rank in zip(pieces, ranks, strict=True)
    ]
    return task.plan(placed, "torchrec_like")


def _torchrec_cost(table: EmbeddingTable) -> float:
    return table.width * (table.pooling_factor + 2)


def _split(place: int, table: EmbeddingTable, shares: float, task: ShardingTask) -> list[Shard]:
    columns = 1
    while shares / columns > 1 and table.width % (2 * columns) == 0:
        if table.width // (2 * columns) < 32 or 2 * columns > task.rank_count:
            break
        columns *= 2
    size = piece_bytes(table, task.optimizer) / columns
    rows = min(max(1, math.ceil(size / (0.5 * task.room_bytes))), task.rank_count, table.rows)
    bounds = [table.rows * piece // rows for piece in range(rows + 1)]
    width = table.width // columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in pairwise(bounds)
    ]


def _balanced(task: ShardingTask) -> ShardingPlan:
    rule = PlacementRule(max_shard_bytes=max(1, task.room_bytes // 2))
    plan = build_balanced_plan(task.tables, rank_count=task.rank_count, rule=rule)
    return task.plan(plan.shards, "balanced")


SHARDERS: dict[str, Sharder] = {
    "naive": _naive,
    "naive_chunk": _naive_chunk,
    "random": _random,
    "size_greedy": _greedy("size_greedy", size_cost),
    "lookup_greedy": _greedy("lookup_greedy", lookup_cost),
    "norm_lookup_greedy": _greedy("norm_lookup_greedy", norm_lookup_cost),
    "size_lookup_greedy": _greedy("size_lookup_greedy", size_lookup_cost),
    "torchrec_like": _torchrec_like,
    "balanced": _balanced,
}
"""Every sharder by name."""

PAPER_SHARDERS = tuple(SHARDERS)[:7]
"""The seven of the paper's scripts; all of them place whole tables."""
