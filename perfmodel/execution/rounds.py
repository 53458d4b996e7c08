"""Rounds: one replay over several blocks, until every block is done.

A block hears of resolved rendezvous at once and never waits for unrelated blocks. It reports
what others wait for first, and continues while that message is sent. A block continues until
it lacks information: when no message is pending and tasks are left, the replay is stalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.block import Arrivals, join_arrivals, no_arrivals
from perfmodel.engine.layout import Int64s
from perfmodel.execution.parts import Division
from perfmodel.graph.program import offsets

_HEADER = 5


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
