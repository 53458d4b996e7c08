"""Rounds: one replay over several blocks, until every block is done.

A block hears of resolved rendezvous at once and never waits for unrelated blocks. It reports
what others wait for first, and continues while that message is sent. A block continues until
it lacks information: when no message is pending and tasks are left, the replay is stalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.block import Arrivals, join_arrivals, no_arrivals
from perfmodel.engine.layout import Int64s
from perfmodel.execution.messages import Report
from perfmodel.execution.parts import Crossings
from perfmodel.graph.program import offsets


class BlockWorkers(Protocol):
    """The workers of a replay, by the number of their block."""

    @property
    def awaited(self) -> Sequence[Int64s]:
        """For every block, the rendezvous that it reports to: rows of group, sequence."""
        ...

    def tell(self, orders: Mapping[int, Sequence[Arrivals]]) -> None:
        """Send blocks their orders, in sequence, without waiting for them to finish."""
        ...

    def hear(self) -> Sequence[tuple[int, Report]]:
        """Wait for the next reports, at least one; those of a block come in order."""
        ...


class Exchange:
    """Resolves the rendezvous that cross blocks.

    A rendezvous is resolved once every block with members that others wait for
    has reported when its last member was ready; the latest time counts. Each result is sent
    once, and only to blocks with members in the group.
    """

    def __init__(
        self, crossings: Crossings, awaited: Sequence[Int64s], *, vector_count: int
    ) -> None:
        """*awaited* lists, for every block, the rendezvous that it reports to."""
        is_crossing = crossings.has_part.sum(axis=0) > 1
        self._has_part = crossings.has_part
        self._start = offsets(np.where(is_crossing, crossings.rendezvous, 0))
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


def run_rounds(workers: BlockWorkers, crossings: Crossings, *, vector_count: int) -> bool:
    """Advance all blocks as far as possible; return whether all finished."""
    exchange = Exchange(crossings, workers.awaited, vector_count=vector_count)
    walk_on = no_arrivals(vector_count)
    blocks = range(len(crossings.has_part))
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
                # A block that had more to do last time is told at once to continue.
                orders[block] = [news[block], walk_on] if walks_on[block] else [news[block]]
            elif not sent[block] and any(of == block and r.can_walk for of, r in reports):
                orders[block] = [walk_on]
        for block, of_block in orders.items():
            sent[block].extend(len(order) > 0 for order in of_block)
        if orders:
            workers.tell(orders)
    return not undone
