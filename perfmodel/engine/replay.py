"""Replay: iterations of a job laid one after another, and when everything happened.

A lane goes on in the next iteration where it stopped in the last, so that a
host that is ahead stays ahead. One iteration alone is the isolated case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.engine.block import Block
from perfmodel.engine.layout import Int64s, max_distance
from perfmodel.engine.stall import explain_stall
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every task of one iteration ended, and every member of a rendezvous was ready.

    Rows of *end_ns* are the tasks of rank 0 in program order, then of rank 1,
    and so on; columns are duration vectors. They come in parts where blocks of
    ranks were replayed apart, and are put together only if somebody looks.
    """

    iteration: int
    end_parts_ns: tuple[Int64s, ...]
    member_ready_ns: Int64s

    @cached_property
    def end_ns(self) -> Int64s:
        """When every task ended."""
        if len(self.end_parts_ns) == 1:
            return self.end_parts_ns[0]
        return np.concatenate(self.end_parts_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The answer of the engine: the last iterations in full, of all the time lanes reached.

    *lane_now_ns* is iterations x lanes of all ranks x vectors.
    """

    timelines: tuple[Timeline, ...]
    lane_now_ns: Int64s

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


def kept_iterations(job: JobGraph, iterations: int) -> int:
    """How many iterations must be kept: as far as dependencies reach, and one for the past."""
    return min(iterations, max(max_distance(job), 1) + 1)


def replay(job: JobGraph, durations: DurationTable, *, iterations: int = 1) -> Replay:
    """Replay *iterations* of *job* in this process."""
    check_job(job)
    durations.check(job)
    kept = kept_iterations(job, iterations)
    block = Block(job, durations, kept_iterations=kept)
    lane_now_ns = []
    for _ in range(iterations):
        block.begin_iteration()
        block.advance()
        if not block.is_done:
            raise explain_stall(job, block.heads)
        lane_now_ns.append(block.lane_now_ns())
    return Replay(
        timelines=tuple(
            Timeline(index, (block.end_ns(index),), block.member_ready_ns(index))
            for index in range(iterations - kept, iterations)
        ),
        lane_now_ns=np.stack(lane_now_ns),
    )
