"""Replay: iterations of a job laid one after another, and when everything happened.

A lane goes on in the next iteration where it stopped in the last, so that a
host that is ahead stays ahead. One iteration alone is the isolated case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from perfmodel.engine.block import Block
from perfmodel.engine.layout import FlatJob, Int64s, max_distance
from perfmodel.engine.sieve import lay_out_sound
from perfmodel.engine.stall import explain_stall
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


class TimelineStore(Protocol):
    """Whoever has the columns of a replay, by kept iteration."""

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        ...

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        ...


class Reducer(Protocol):
    """Whoever keeps the columns elsewhere, and has work done there; see `History`."""

    @property
    def is_open(self) -> bool:
        """Whether those who keep them are still there."""
        ...

    def by_rank(self, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all ranks."""
        ...

    def at_rank(self, rank: int, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)` where *rank* is."""
        ...

    def release(self) -> None:
        """Nobody will look at the columns once those who keep them are gone."""
        ...


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every task of one iteration ended, and every member of a rendezvous was ready.

    Rows of *end_ns* are the tasks of rank 0 in program order, then of rank 1,
    and so on; columns are duration vectors. The *keeper* may be far away: a
    column is fetched when somebody first looks.
    """

    iteration: int
    keeper: TimelineStore

    @cached_property
    def end_ns(self) -> Int64s:
        """When every task ended."""
        return self.keeper.end_ns(self.iteration, slice(None))

    @cached_property
    def member_ready_ns(self) -> Int64s:
        """When every member of a rendezvous was ready."""
        return self.keeper.member_ready_ns(self.iteration)

    def ends_of(self, rows: slice) -> Int64s:
        """When the tasks of some neighbouring *rows* ended; the others stay where they are."""
        if "end_ns" in self.__dict__:
            return self.end_ns[rows]
        return self.keeper.end_ns(self.iteration, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The keeper in this process: columns by iteration, counted on from the *first* kept."""

    first: int
    end_columns_ns: tuple[Int64s, ...]
    ready_columns_ns: tuple[Int64s, ...]

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        return self.end_columns_ns[iteration - self.first][rows]

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        return self.ready_columns_ns[iteration - self.first]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The answer of the engine: the last iterations in full, of all the time lanes reached.

    *lane_now_ns* is iterations x lanes of all ranks x vectors. *remote* is where the
    timelines are, unless they are here.
    """

    timelines: tuple[Timeline, ...]
    lane_now_ns: Int64s
    remote: Reducer | None = None

    @property
    def iteration_count(self) -> int:
        """Number of iterations replayed, kept or not."""
        return len(self.lane_now_ns)

    @property
    def iteration_end_ns(self) -> Int64s:
        """When the last lane of each iteration was done: iterations x vectors."""
        ends: Int64s = self.lane_now_ns.max(axis=1)
        return ends

    @property
    def last(self) -> Timeline:
        """The last iteration."""
        return self.timelines[-1]


def kept_of_reach(reach: int, iterations: int) -> int:
    """How many iterations must be kept: as far as dependencies *reach*, and one for the past."""
    return min(iterations, max(reach, 1) + 1)


def replay(
    job: JobGraph,
    durations: DurationTable,
    *,
    iterations: int = 1,
    layout: FlatJob | None = None,
) -> Replay:
    """Replay *iterations* of *job* in this process.

    *layout* is the job's where the caller has it already.
    """
    layout = layout or lay_out_sound(job)
    durations.check(job)
    kept = kept_of_reach(max_distance(job), iterations)
    block = Block(layout, durations, kept_iterations=kept)
    lane_now_ns = []
    for _ in range(iterations):
        block.begin_iteration()
        block.advance()
        if not block.is_done:
            raise explain_stall(job, block.heads)
        lane_now_ns.append(block.lane_now_ns())
    last = range(iterations - kept, iterations)
    keeper = Kept(
        first=last.start,
        end_columns_ns=tuple(block.end_ns(index) for index in last),
        ready_columns_ns=tuple(block.member_ready_ns(index) for index in last),
    )
    return Replay(tuple(Timeline(index, keeper) for index in last), np.stack(lane_now_ns))
