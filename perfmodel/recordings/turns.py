"""Turns: allocations on the GPUs of one host share the driver.

The driver of a host serves one allocation or free at a time and goes round
among those that ask, so n of them at once take n times as long each. A task
states what it takes alone; who meets whom is found after a replay.

Leaves out: that those which meet return together even where one asked for less.
Source: recorded V100 hosts, where three ranks that allocate at once wait 4.1 ms
and 9.2 ms for what takes a lone rank 1.5 and 3.5 ms, and return within 0.1 ms.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Int64s

ALLOCATION = "allocation alone"
"""The name of the op of such tasks."""
_USUAL_GPUS_PER_HOST = 8


def allocations_by_host(graph: JobGraph) -> list[HostCalls]:
    """The allocations of every host that has some on several ranks."""
    is_one = np.array(
        [isinstance(op, Fixed) and op.name == ALLOCATION for op in graph.ops], dtype=bool
    )
    firsts = np.concatenate([[0], np.cumsum(graph.task_counts())])
    rows_of: dict[int, list[tuple[int, Int64s]]] = {}
    for rank in range(graph.rank_count):
        rows = firsts[rank] + np.flatnonzero(is_one[graph.program_of(rank).op])
        if len(rows):
            rows_of.setdefault(host_of(rank, graph.facts.gpus_per_host), []).append((rank, rows))
    return [
        HostCalls(
            np.concatenate([rows for _, rows in of_host]),
            np.concatenate([np.full(len(rows), rank) for rank, rows in of_host]),
        )
        for of_host in rows_of.values()
        if len(of_host) > 1
    ]


def host_of(rank: int, gpus_per_host: int) -> int:
    """The host of *rank*; hosts have eight GPUs where nobody said how many."""
    return rank // (gpus_per_host or _USUAL_GPUS_PER_HOST)


def alone_ns(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """What calls of one host, recorded from *start_ns* to *end_ns*, take without each other."""
    moments = np.unique(np.concatenate([start_ns, end_ns]))
    begins, ends = (np.searchsorted(moments, times) for times in (start_ns, end_ns))
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, ends, -1)
    at_once = np.maximum(np.cumsum(change)[: len(moments) - 1], 1)
    served = np.concatenate([[0.0], np.cumsum(np.diff(moments) / at_once)])
    alone: Int64s = np.rint(served[ends] - served[begins]).astype(np.int64)
    return alone


@dataclass(frozen=True, slots=True, eq=False)
class HostCalls:
    """The allocations of one host: their rows in the job, in order, and the rank of each."""

    rows: Int64s
    rank: Int64s

    def shared_ns(self, start_ns: Int64s, end_ns: Int64s, own_ns: Int64s) -> Int64s:
        """What calls that take *own_ns* alone take where they meet others of their host.

        *start_ns* and *end_ns* are those of a replay, all by row of the job. What a rank does
        after a call begins as much later as that call ends later than it did there.
        """
        served = _Served(start_ns[self.rows], end_ns[self.rows], own_ns[self.rows], self.rank)
        return served.lengths_ns()


class _Served:
    """Calls as they are served: by a clock that runs slower the more there are at once."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s, own_ns: Int64s, rank: Int64s) -> None:
        self.start_ns, self.end_ns, self.own_ns = start_ns, end_ns, own_ns
        order = np.lexsort((start_ns, rank))
        self.next_of = {
            one: after for one, after in pairwise(order.tolist()) if rank[one] == rank[after]
        }
        firsts = set(order.tolist()) - set(self.next_of.values())
        self.coming = [(float(start_ns[call]), call) for call in firsts]
        heapq.heapify(self.coming)
        self.waiting: list[tuple[float, int]] = []
        self.now_ns = self.served_ns = 0.0
        self.came_ns = start_ns.astype(np.float64)

    def lengths_ns(self) -> Int64s:
        """How long every call takes."""
        left_ns = self.came_ns.copy()
        while self.coming or self.waiting:
            until_ns = self.coming[0][0] if self.coming else np.inf
            if self.waiting:
                done_ns, call = self.waiting[0]
                end_ns = self.now_ns + (done_ns - self.served_ns) * len(self.waiting)
                if end_ns <= until_ns:
                    heapq.heappop(self.waiting)
                    self.now_ns, self.served_ns, left_ns[call] = end_ns, done_ns, end_ns
                    self._follow(call, end_ns - float(self.end_ns[call]), is_over=True)
                    continue
                self.served_ns += (until_ns - self.now_ns) / len(self.waiting)
            self._come(*heapq.heappop(self.coming))
        return np.maximum(np.rint(left_ns - self.came_ns).astype(np.int64), self.own_ns)

    def _come(self, at_ns: float, call: int) -> None:
        self.now_ns, self.came_ns[call] = at_ns, at_ns
        heapq.heappush(self.waiting, (self.served_ns + float(self.own_ns[call]), call))
        self._follow(call, at_ns - float(self.start_ns[call]), is_over=False)

    def _follow(self, call: int, later_ns: float, *, is_over: bool) -> None:
        """Let the next call of the rank come; another thread's may come before this is over."""
        after = self.next_of.get(call)
        if after is not None and bool(self.start_ns[after] >= self.end_ns[call]) is is_over:
            at_ns = max(float(self.start_ns[after]) + later_ns, self.now_ns)
            heapq.heappush(self.coming, (at_ns, after))
