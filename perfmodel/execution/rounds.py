"""Rounds: one replay over several blocks, until every block is done.

A block hears of resolved rendezvous at once and never waits for unrelated blocks. It reports
what others wait for first, and continues while that message is sent. A block continues until
it lacks information: when no message is pending and tasks are left, the replay is stalled.
The blocks keep their results, which are fetched on demand. Rows are in the order of ranks, as in a
replay in one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals, join_arrivals, no_arrivals
from perfmodel.engine.history import first_of_each
from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import LocalTimelines, Replay, Timeline
from perfmodel.engine.stall import explain_stall
from perfmodel.execution.parts import Division
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import offsets

_HEADER = 5
MOST_FETCHED_BYTES = 2**32
"""The driver never holds a column larger than this: half a billion ends of tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """An order to a block for round *number*, or the report of the block after it.

    The *arrivals* of an order are resolved rendezvous; without any, the block walks on. Those of a
    report are its members that are ready. A block that *can_walk* stopped before all lanes that
    could run.
    """

    number: int
    arrivals: Arrivals
    is_done: bool = False
    can_walk: bool = False

    def to_bytes(self) -> bytes:
        """The message as bytes, which Ray sends unchanged: a third less per round than arrays.

        All int64: number, both flags, rows, vectors; then rows x (iteration, group, sequence); then
        rows x vectors of ready_ns. Groups have the numbers of the whole job.
        """
        rows, vectors = self.arrivals.ready_ns.shape
        header = np.array([self.number, self.is_done, self.can_walk, rows, vectors], dtype=np.int64)
        columns = (header, self.arrivals.rendezvous, self.arrivals.ready_ns)
        return b"".join([column.tobytes() for column in columns])

    @classmethod
    def from_bytes(cls, message: bytes) -> Message:
        """The message that these bytes hold."""
        # A copy, because numba would compile the pass anew for arrays that cannot be written.
        numbers = np.frombuffer(message, dtype=np.int64).copy()
        number, is_done, can_walk, rows, vectors = numbers[:_HEADER].tolist()
        pairs, ready_ns = np.split(numbers[_HEADER:], [3 * rows])
        arrivals = Arrivals(pairs.reshape(rows, 3), ready_ns.reshape(rows, vectors))
        return cls(number, arrivals, bool(is_done), bool(can_walk))


class BlockWorkers(Protocol):
    """The workers of a replay, by the number of their block."""

    def tell(self, orders: Mapping[int, Sequence[Arrivals]]) -> None:
        """Send blocks their orders, in sequence, without waiting for them to finish."""
        ...

    def hear(self) -> Sequence[tuple[int, Message]]:
        """Wait for the next reports, at least one; those of a block come in order."""
        ...

    def ask(self, block: int, method: str, *words: Any) -> Any:
        """What a *method* of a block that has no pending order returns."""
        ...

    def ask_each(self, method: str, words: Sequence[Sequence[Any]]) -> list[Any]:
        """The same of all blocks at once, each with its own *words*."""
        ...

    def ask_all(self, method: str, *words: Any) -> list[Any]:
        """The same of all blocks at once."""
        ...


class Exchange:
    """Resolves the rendezvous that cross blocks.

    A rendezvous is resolved once every block with members that others wait for
    has reported when its last member was ready; the latest time counts. Each result is sent
    once, and only to blocks with members in the group.
    """

    def __init__(self, division: Division, awaited: Sequence[Int64s], *, vector_count: int) -> None:
        """*awaited* lists, for every block, the rendezvous that it reports to."""
        self._has_part = division.has_part
        is_crossing = self._has_part.sum(axis=0) > 1
        self._start = offsets(np.where(is_crossing, division.rendezvous, 0))
        self._expected: NDArray[np.int32] = np.zeros(int(self._start[-1]), dtype=np.int32)
        for rows in awaited:
            self._expected[self._start[rows[:, 0]] + rows[:, 1]] += 1
        self._vector_count = vector_count
        # By iteration: missing reports and latest time of every rendezvous.
        self._reports: dict[int, tuple[NDArray[np.int32], Int64s]] = {}
        self._open: dict[int, int] = {}

    def take(self, said: Iterable[Arrivals]) -> dict[int, Arrivals]:
        """Take the reports in *said*; return what they resolve, by block."""
        found = [self._take(arrivals) for arrivals in said if len(arrivals)]
        if not any(len(resolved) for resolved in found):
            return {}
        resolved = join_arrivals(found)
        news = {}
        for block, has_part in enumerate(self._has_part):
            mine = has_part[resolved.rendezvous[:, 1]]
            if mine.all():
                news[block] = resolved
            elif mine.any():
                news[block] = Arrivals(resolved.rendezvous[mine], resolved.ready_ns[mine])
        return news

    def _take(self, said: Arrivals) -> Arrivals:
        complete = np.zeros(len(said), dtype=np.bool_)
        latest_ns = np.empty_like(said.ready_ns)
        for iteration in np.unique(said.rendezvous[:, 0]).tolist():
            missing, ready_ns = self._of_iteration(iteration)
            of_now = np.flatnonzero(said.rendezvous[:, 0] == iteration)
            rows = self._start[said.rendezvous[of_now, 1]] + said.rendezvous[of_now, 2]
            missing[rows] -= 1
            ready_ns[rows] = np.maximum(ready_ns[rows], said.ready_ns[of_now])
            complete[of_now] = missing[rows] == 0
            latest_ns[of_now] = ready_ns[rows]
            self._open[iteration] -= int(complete[of_now].sum())
            if self._open[iteration] == 0:
                del self._reports[iteration], self._open[iteration]
        return Arrivals(said.rendezvous[complete], latest_ns[complete])

    def _of_iteration(self, iteration: int) -> tuple[NDArray[np.int32], Int64s]:
        if iteration not in self._reports:
            ready_ns = np.zeros((len(self._expected), self._vector_count), dtype=np.int64)
            self._reports[iteration] = (self._expected.copy(), ready_ns)
            self._open[iteration] = int((self._expected > 0).sum())
        return self._reports[iteration]


def run_rounds(workers: BlockWorkers, division: Division, *, vector_count: int) -> bool:
    """Advance all blocks as far as possible; return whether all finished."""
    exchange = Exchange(division, workers.ask_all("awaited"), vector_count=vector_count)
    walk_on = no_arrivals(vector_count)
    blocks = range(len(division.blocks))
    # Pending orders of every block, True for those with resolved rendezvous.
    sent: list[deque[bool]] = [deque([False]) for _ in blocks]
    walks_on = [False] * len(blocks)
    undone = set(blocks)
    workers.tell({block: [walk_on] for block in blocks})
    while any(sent):
        reports = workers.hear()
        news = exchange.take(report.arrivals for _, report in reports)
        for block, report in reports:
            if sent[block].popleft():
                walks_on[block] = report.can_walk
            if report.is_done:
                undone.discard(block)
        orders = {}
        for block in sorted(undone & {*news, *(block for block, _ in reports)}):
            if block in news:
                # A block that had more to do last time is ordered at once to continue.
                orders[block] = [news[block], walk_on] if walks_on[block] else [news[block]]
            elif not sent[block] and any(of == block and r.can_walk for of, r in reports):
                orders[block] = [walk_on]
        for block, of_block in orders.items():
            sent[block].extend(len(order) > 0 for order in of_block)
        if orders:
            workers.tell(orders)
    return not undone


class RemoteTimelines:
    """The columns of *kept* iterations, as the blocks of a *division* hold them."""

    def __init__(
        self, workers: BlockWorkers, division: Division, kept: range, *, vector_count: int
    ) -> None:
        self._workers, self._division, self._kept = workers, division, kept
        self._vector_count = vector_count
        self._local: LocalTimelines | None = None
        self._is_wanted = True
        self.is_open = True

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        if self._local is not None:
            return self._local.end_ns(iteration, rows)
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
        if self._local is not None:
            return self._local.member_ready_ns(iteration)
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
            self._local = LocalTimelines(
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
    store = RemoteTimelines(workers, division, kept, vector_count=vector_count)
    return Replay(tuple(Timeline(index, store) for index in kept), lane_now_ns, store)
