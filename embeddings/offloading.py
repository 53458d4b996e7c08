"""Offloading: tables in host memory, with caches on the GPUs, where the GPUs have no room for all.

A table in host memory keeps its most recent rows in a cache on the device. How many rows of a batch
the cache lacks follows from the distribution of its indices. Every table starts with the smallest
cache; the room that is left goes step by step to the table whose traffic it reduces most per byte,
until the table is on the device as a whole.

Leaves out: the size of host memory, rows that are hot only for a while, and SSDs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embeddings.balanced import iter_balanced_plans
from embeddings.plan import ShardingPlan
from embeddings.popularity import Floats, Popularity
from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable, TableMemory

OFFLOADED = "host_cached"
"""The name of plans with tables in host memory."""
CACHE_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
"""Sizes of caches that are tried, as shares of the rows."""
_FILLED = 0.95
"""Share of the room that is given away: pieces of different sizes do not fill ranks exactly."""
_ENDLESS = 1e300
_NO_STEP = -1


def missed_rows(
    popularity: Popularity, cached_rows: float | Floats, draws: float
) -> float | Floats:
    """Rows that *draws* draws ask for and that the *cached_rows* most recent ones lack."""
    # Where all rows fit the window is infinite, and no batch is new to it.
    before = np.minimum(popularity.window_draws(cached_rows), _ENDLESS)
    return popularity.distinct_rows(before + draws) - popularity.distinct_rows(before)


def exceeds_devices(task: ShardingTask) -> bool:
    """Whether the tables of *task* need more than all ranks have, however they are placed."""
    return sum(task.needs) > task.rank_count * task.room_bytes


def build_offloaded_plan(task: ShardingTask) -> ShardingPlan:
    """The balanced plan of the tables of *task*, with some in host memory to make it fit."""
    plan = next(iter_balanced_plans(replace(task, tables=offload_tables(task))))
    return replace(plan, name=OFFLOADED)


def offload_tables(task: ShardingTask) -> tuple[EmbeddingTable, ...]:
    """The tables of *task*, in the memory that makes a batch fetch the fewest bytes from hosts."""
    buffers = sum(
        task.buffer_bytes(table.sample_numbers, table.pooling_factor) for table in task.tables
    )
    left = _FILLED * task.rank_count * task.room_bytes - buffers
    ways = [_ways(table) for table in task.tables]
    steps = [_Steps(place, of_table, task) for place, of_table in enumerate(ways)]
    chosen = [0] * len(ways)
    left -= sum(int(one.held_bytes[0]) for one in steps)
    queue = [one.best(0, left) for one in steps]
    heapq.heapify(queue)
    while queue:
        _, place, number = heapq.heappop(queue)
        if number == _NO_STEP:
            continue
        added = steps[place].held_bytes[number] - steps[place].held_bytes[chosen[place]]
        if added <= left:
            left -= added
            chosen[place] = number
        # Otherwise other tables took the room meanwhile, and a smaller step may fit.
        heapq.heappush(queue, steps[place].best(chosen[place], left))
    return tuple(of_table[number] for of_table, number in zip(ways, chosen, strict=True))


def _ways(table: EmbeddingTable) -> list[EmbeddingTable]:
    """*table* with ever larger caches, then on the device."""
    cached = [
        replace(table, memory=TableMemory.HOST_CACHED, cached_ratio=ratio) for ratio in CACHE_RATIOS
    ]
    return [*cached, replace(table, memory=TableMemory.DEVICE)]


class _Steps:
    """Steps of the table at *place* from a smaller cache to a larger one: *ways*, and their bytes.

    A way holds bytes on the device, and a batch fetches rows from host memory.
    """

    def __init__(self, place: int, ways: Sequence[EmbeddingTable], task: ShardingTask) -> None:
        self._place = place
        self._fetched = np.append(_fetched(ways[0], task.batch_size, np.array(CACHE_RATIOS)), 0.0)
        self.held_bytes = np.array([way.held_bytes(task.optimizer) for way in ways])

    def best(self, now: int, left: float) -> tuple[float, int, int]:
        """What the best step from *now* saves per byte (negative, for a heap), and where it leads.

        Of equally good ones the largest that fits in *left* bytes.
        """
        added = self.held_bytes[now + 1 :] - self.held_bytes[now]
        saved = (self._fetched[now] - self._fetched[now + 1 :]) / np.maximum(added, 1)
        saved = np.where(added <= left, saved.round(12), -np.inf)
        if not saved.size or saved.max() == -np.inf:
            return 0.0, self._place, _NO_STEP
        number = len(self.held_bytes) - 1 - int(saved[::-1].argmax())
        return -float(saved.max()), self._place, number


def fetched_bytes(table: EmbeddingTable, batch_size: int) -> float:
    """Bytes of rows that a batch fetches from host memory."""
    if table.memory is not TableMemory.HOST_CACHED:
        return 0.0
    return float(_fetched(table, batch_size, table.cached_ratio))


def _fetched(
    table: EmbeddingTable, batch_size: int, cached_ratio: float | Floats
) -> float | Floats:
    """The same with caches of *cached_ratio* of the rows."""
    draws = batch_size * table.pooling_factor
    rows = missed_rows(table.popularity, cached_ratio * table.rows, draws)
    return rows * table.width * table.dtype.size_bytes
