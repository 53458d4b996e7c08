"""RemoteTimelines: the results of a replay over blocks, which the blocks keep.

They are fetched on demand. Rows are in the order of ranks, as in a replay in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.history import first_of_each
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Kept, Replay, Timeline
from perfmodel.engine.stall import explain_stall
from perfmodel.execution.parts import Division
from perfmodel.execution.rounds import BlockWorkers, run_rounds
from perfmodel.graph.job import JobGraph

MOST_FETCHED_BYTES = 2**32
"""The driver never holds a column larger than this: half a billion ends of tasks."""


class RemoteTimelines:
    """The columns of *kept* iterations, as the blocks of a *division* hold them."""

    def __init__(
        self, workers: BlockWorkers, division: Division, kept: range, *, vector_count: int
    ) -> None:
        self._workers, self._division, self._kept = workers, division, kept
        self._vector_count = vector_count
        self._near: Kept | None = None
        self._is_wanted = True
        self.is_open = True

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        if self._near is not None:
            return self._near.end_ns(iteration, rows)
        bounds = self._division.task_bounds
        start, stop, _ = rows.indices(int(bounds[-1]))
        self._check(stop - start)
        if stop - start == bounds[-1]:
            return np.concatenate(self._workers.ask_all("end_ns", iteration, slice(None)))
        parts = []
        for block, (first, end) in enumerate(pairwise(bounds.tolist())):
            if start < end and first < stop:
                here = slice(max(start - first, 0), min(stop, end) - first)
                parts.append(self._workers.ask(block, "end_ns", iteration, here))
        return np.concatenate(parts)

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        if self._near is not None:
            return self._near.member_ready_ns(iteration)
        count = self._division.member_count
        self._check(count)
        ready_ns = np.empty((count, self._vector_count), dtype=np.int64)
        for block, part in enumerate(self._workers.ask_all("member_ready_ns", iteration)):
            ready_ns[self._division.members_of(block)] = part
        return ready_ns

    def by_rank(self, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all ranks, where their tasks are."""
        asked = [(last, function, *words) for last in self._last]
        return [found for block in self._workers.ask_each("by_rank", asked) for found in block]

    def at_rank(self, rank: int, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)`, where the tasks of *rank* are."""
        block = next(index for index, of in enumerate(self._division.blocks) if rank in of)
        return self._workers.ask(block, "at_rank", self._last[block], function, *words)

    def release(self) -> None:
        """Give up the columns; no one can read them after the blocks are gone."""
        self._is_wanted = False

    def close(self) -> None:
        """Fetch everything that fits before the blocks are dropped."""
        if self._is_wanted and self._fits(int(self._division.task_bounds[-1]) * len(self._kept)):
            self._near = Kept(
                self._kept.start,
                tuple(self.end_ns(index, slice(None)) for index in self._kept),
                tuple(self.member_ready_ns(index) for index in self._kept),
            )
        self.is_open = False

    @cached_property
    def _last(self) -> list[Int64s]:
        """For every block, the last members of its shared rendezvous; see `last_signals`."""
        rows = np.concatenate(self._workers.ask_all("last_signals"))
        parts = []
        for iteration in np.unique(rows[:, 0]).tolist():
            found = first_of_each(rows[rows[:, 0] == iteration, 1:])
            parts.append(np.column_stack([np.full(len(found), iteration), found]))
        last = np.concatenate(parts) if parts else rows
        return [last[has_part[last[:, 1]]] for has_part in self._division.has_part]

    def _fits(self, rows: int) -> bool:
        return rows * self._vector_count * 8 <= MOST_FETCHED_BYTES

    def _check(self, rows: int) -> None:
        if not self.is_open:
            raise ExecutionError(
                "ray: the timelines of this replay were lost with the workers that held them. "
                "Read them before the workers are released."
            )
        if not self._fits(rows):
            raise ExecutionError(
                f"ray: {rows:,} rows of a timeline are more than the {MOST_FETCHED_BYTES:,} bytes "
                "that this process takes of a replay on many machines. Look at it rank by rank, "
                "or fold the job."
            )


def replay_blocks(
    workers: BlockWorkers, job: JobGraph, division: Division, kept: range, *, vector_count: int
) -> Replay:
    """Replay *job* on *workers*, one per block of *division*, which hold *kept* iterations."""
    if not run_rounds(workers, division, vector_count=vector_count):
        heads = workers.ask_all("heads")
        # The next task of every lane, in the iteration of the block that is furthest behind.
        behind = min(one.iteration for one in heads)
        stopped = [one.heads if one.iteration == behind else one.stops for one in heads]
        raise explain_stall(job, np.concatenate(stopped))
    lane_now_ns = np.concatenate(workers.ask_all("lane_now_ns"), axis=1)
    keeper = RemoteTimelines(workers, division, kept, vector_count=vector_count)
    return Replay(tuple(Timeline(index, keeper) for index in kept), lane_now_ns, keeper)
