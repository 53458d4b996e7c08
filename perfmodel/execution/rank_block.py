"""RankBlock: some ranks of a job in a process of their own, moved on round by round.

Rounds are numbered. The round that was made last may be asked for again and
gives the same report; an older one, or one too far ahead, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Block
from perfmodel.engine.layout import Int32s, Int64s
from perfmodel.execution.messages import Order, Report
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph


@dataclass(frozen=True, slots=True)
class Assignment:
    """The *ranks* of a block, and how many iterations it keeps in full."""

    ranks: range
    kept_iterations: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockTimeline:
    """One iteration of a block: ends of its tasks, and when its members were ready.

    Rows of *member_ready_ns* are those of the whole job with numbers *members*.
    """

    end_ns: Int64s
    members: Int64s
    member_ready_ns: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class BlockResult:
    """All that a block found out; *lane_now_ns* is iterations x its lanes x vectors."""

    timelines: tuple[BlockTimeline, ...]
    lane_now_ns: Int64s


class RankBlock:
    """A block that knows which round it is in."""

    def __init__(self, job: JobGraph, durations: DurationTable, assignment: Assignment) -> None:
        self._kept = assignment.kept_iterations
        ranks = np.arange(assignment.ranks.start, assignment.ranks.stop, dtype=np.int32)
        values_ns = _as_writable(durations.values_ns)
        self._block = Block(
            job,
            DurationTable(values_ns, durations.rank_offset),
            ranks=ranks,
            kept_iterations=self._kept,
        )
        self._block.begin_iteration()
        self.awaited = self._block.awaited()
        self._lane_now_ns: list[Int64s] = []
        self._next_round = 0
        self._last_report = b""

    @property
    def heads(self) -> Int32s:
        """The next task of every lane."""
        return self._block.heads

    def advance(self, message: bytes) -> bytes:
        """Make the round that *message* orders, and report; making it twice changes nothing."""
        order = Order.from_bytes(message)
        if order.number == self._next_round - 1:
            return self._last_report
        if order.number != self._next_round:
            raise ExecutionError(
                f"block of ranks from {int(self._block.layout.r_id[0])}: the next round must be "
                f"number {self._next_round}, got {order.number}."
            )
        if order.iteration > self._block.iteration:
            self._lane_now_ns.append(self._block.lane_now_ns())
            self._block.begin_iteration()
        arrivals = self._block.advance(order.resolved)
        self._next_round += 1
        report = Report(order.number, self._block.is_done, arrivals)
        self._last_report = report.to_bytes()
        return self._last_report

    def catch_up(self, log: Sequence[bytes]) -> None:
        """Make all rounds of the *log*."""
        for message in log:
            self.advance(message)

    def collect(self) -> BlockResult:
        """What was found out, once the last iteration is done."""
        last = self._block.iteration
        kept = range(last + 1 - self._kept, last + 1)
        return BlockResult(
            timelines=tuple(self._timeline(iteration) for iteration in kept),
            lane_now_ns=np.stack([*self._lane_now_ns, self._block.lane_now_ns()]),
        )

    def _timeline(self, iteration: int) -> BlockTimeline:
        ready_ns = self._block.member_ready_ns(iteration)
        members = np.flatnonzero(ready_ns[:, 0] >= 0)
        return BlockTimeline(self._block.end_ns(iteration), members, ready_ns[members])


def _as_writable(array: Int64s) -> Int64s:
    """The same memory, called writable. Nobody writes to it.

    Arrays in Ray's object store are read-only, and numba would compile the
    whole pass anew for such an array, which takes longer than most replays.
    """
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    # The holder keeps *array* alive; numpy keeps the holder.
    return np.asarray(SimpleNamespace(__array_interface__=interface, array=array))
