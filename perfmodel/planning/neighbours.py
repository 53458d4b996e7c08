"""Neighbours: plans one step away, made where they promise most.

Steps take from the busiest ranks and give to the least busy ones: a piece
moves, two pieces swap, a table is split by columns or put together again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import ShardingTask
from embeddings.table import EmbeddingTable

NEAR = 6
"""How many of the busiest and of the least busy ranks take part in steps."""
MIN_WIDTH = 32
COPYING = 0.01
"""Share of steps that put a table on every rank or take it back.

They are few because each asks for a frame of its own.
"""
COPIED_BYTES = 2**23


@dataclass(frozen=True, slots=True, eq=False)
class Busy:
    """Nanoseconds of every rank's own work."""

    own_ns: NDArray[np.float64]


def split_table(place: int, table: EmbeddingTable, columns: int, rows: int) -> list[Shard]:
    """The table at *place* in *columns* x *rows* pieces, all on rank 0 for now."""
    bounds = [table.rows * piece // rows for piece in range(rows + 1)]
    width = table.width // columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in pairwise(bounds)
    ]


class Neighbourhood:
    """Steps from a plan whose ranks are as *busy* as said."""

    def __init__(self, task: ShardingTask, chance: random.Random, busy: Busy) -> None:
        self._task = task
        self._random = chance
        order = np.argsort(-busy.own_ns, kind="stable")
        near = min(NEAR, max(1, len(order) // 2))
        self._busiest = [int(rank) for rank in order[:near]]
        self._least = [int(rank) for rank in order[::-1][: 2 * near]]

    def propose(self, plan: ShardingPlan, count: int) -> list[ShardingPlan]:
        """Up to *count* plans one step from *plan*."""
        of_rank: dict[int, list[int]] = defaultdict(list)
        for number, shard in enumerate(plan.shards):
            of_rank[shard.rank].append(number)
        found: list[ShardingPlan] = []
        for _ in range(4 * count):
            if self._random.random() < COPYING:
                found += self._copy(plan)
            else:
                shards = self._step(plan, of_rank)
                found += [replace(plan, shards=tuple(shards))] if shards is not None else []
            if len(found) >= count:
                break
        return found

    def _step(self, plan: ShardingPlan, of_rank: dict[int, list[int]]) -> list[Shard] | None:
        # The busiest rank more often than the others.
        place = min(int(self._random.expovariate(0.7)), len(self._busiest) - 1)
        source = self._busiest[place]
        if not of_rank[source]:
            return None
        number = self._random.choice(of_rank[source])
        target = self._random.choice(self._least)
        if target == source:
            return None
        draw = self._random.random()
        if draw < 0.4:
            return self._move(plan.shards, number, target)
        if draw < 0.8:
            return self._swap(plan.shards, number, of_rank[target])
        return self._split(plan, number)

    def _copy(self, plan: ShardingPlan) -> list[ShardingPlan]:
        """A small table to every rank, or one from every rank back to one of them."""
        copied = list(plan.data_parallel)
        if copied and self._random.random() < 0.4:
            place = self._random.choice(copied)
            copied.remove(place)
            whole = split_table(place, plan.tables[place], 1, 1)[0]
            placed = replace(whole, rank=self._random.choice(self._least))
            return [replace(plan, shards=(*plan.shards, placed), data_parallel=tuple(copied))]
        small = [
            place
            for place, table in enumerate(plan.tables)
            if table.size_bytes <= COPIED_BYTES and place not in copied
        ]
        if not small:
            return []
        place = self._random.choice(small)
        shards = tuple(shard for shard in plan.shards if shard.table != place)
        if not shards:
            return []
        return [replace(plan, shards=shards, data_parallel=tuple(sorted([*copied, place])))]

    def _move(self, shards: Sequence[Shard], number: int, target: int) -> list[Shard]:
        changed = list(shards)
        changed[number] = replace(changed[number], rank=target)
        return changed

    def _swap(
        self, shards: Sequence[Shard], number: int, others: Sequence[int]
    ) -> list[Shard] | None:
        if not others:
            return None
        other = self._random.choice(others)
        changed = list(shards)
        changed[number] = replace(shards[number], rank=shards[other].rank)
        changed[other] = replace(shards[other], rank=shards[number].rank)
        return changed

    def _split(self, plan: ShardingPlan, number: int) -> list[Shard] | None:
        """Twice or half as many columns for the table of a piece, on ranks with little to do."""
        place = plan.shards[number].table
        table = plan.tables[place]
        old = [shard for shard in plan.shards if shard.table == place]
        if any(shard.rows != table.rows for shard in old):
            return None
        columns = 2 * len(old) if self._random.random() < 0.7 else len(old) // 2
        if columns < 1 or columns > plan.rank_count or table.width % (4 * columns):
            return None
        if columns > 1 and table.width // columns < MIN_WIDTH:
            return None
        kept = [shard.rank for shard in old]
        fresh = [rank for rank in self._least if rank not in kept]
        self._random.shuffle(fresh)
        ranks = (kept + fresh)[:columns] if columns > len(old) else kept[:columns]
        if len(ranks) < columns:
            return None
        pieces = split_table(place, table, columns, 1)
        others = [shard for shard in plan.shards if shard.table != place]
        return others + [
            replace(piece, rank=rank) for piece, rank in zip(pieces, ranks, strict=True)
        ]
