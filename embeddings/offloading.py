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
    chosen = [steps[0] for steps in ways]
    left -= sum(table.held_bytes(task.optimizer) for table in chosen)
    queue = [
        _best_step(place, steps, chosen[place], task, left) for place, steps in enumerate(ways)
    ]
    heapq.heapify(queue)
    while queue:
        _, place, number = heapq.heappop(queue)
        if number == _NO_STEP:
            continue
        taken = ways[place][number]
        added = taken.held_bytes(task.optimizer) - chosen[place].held_bytes(task.optimizer)
        if added <= left:
            left -= added
            chosen[place] = taken
        # Otherwise other tables took the room meanwhile, and a smaller step may fit.
        heapq.heappush(queue, _best_step(place, ways[place], chosen[place], task, left))
    return tuple(chosen)


def _ways(table: EmbeddingTable) -> list[EmbeddingTable]:
    """*table* with ever larger caches, then on the device."""
    cached = [
        replace(table, memory=TableMemory.HOST_CACHED, cached_ratio=ratio) for ratio in CACHE_RATIOS
    ]
    return [*cached, replace(table, memory=TableMemory.DEVICE)]


def _best_step(
    place: int, ways: Sequence[EmbeddingTable], now: EmbeddingTable, task: ShardingTask, left: float
) -> tuple[float, int, int]:
    """What the best step from *now* saves per byte (negative, for a heap), and the way it leads to.

    Of equally good ones the largest that fits in *left* bytes.
    """
    held = now.held_bytes(task.optimizer)
    found = [
        (_saved_per_byte(now, ways[number], task), number)
        for number in range(ways.index(now) + 1, len(ways))
        if ways[number].held_bytes(task.optimizer) - held <= left
    ]
    if not found:
        return 0.0, place, _NO_STEP
    saved, number = max((round(saved, 12), number) for saved, number in found)
    return -saved, place, number


def _saved_per_byte(less: EmbeddingTable, more: EmbeddingTable, task: ShardingTask) -> float:
    added = more.held_bytes(task.optimizer) - less.held_bytes(task.optimizer)
    saved = fetched_bytes(less, task.batch_size) - fetched_bytes(more, task.batch_size)
    return saved / max(added, 1)


def fetched_bytes(table: EmbeddingTable, batch_size: int) -> float:
    """Bytes of rows that a batch fetches from host memory."""
    if table.memory is not TableMemory.HOST_CACHED:
        return 0.0
    draws = batch_size * table.pooling_factor
    rows = missed_rows(table.popularity, table.cached_ratio * table.rows, draws)
    return float(rows) * table.width * table.dtype.size_bytes
