"""Throttle: allocations on the GPUs of one host share the driver.

The driver of a host serves one allocation or free at a time, round robin, so n concurrent calls
take n times as long each. A task states its time alone; a replay shows which calls overlap.

Leaves out: that overlapping calls return together even if one asked for less.
Source: recorded V100 hosts, where three ranks that allocate at once wait 4.1 ms and 9.2 ms for
calls that take a lone rank 1.5 and 3.5 ms, and return within 0.1 ms.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.extensions.recordings.recorded_job import rank_parts
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Int64s

if TYPE_CHECKING:
    from perfmodel.engine.settle import Effects, Floats, Round

ALLOCATION = "allocation alone"
"""The name of the op of such tasks."""
_USUAL_GPUS_PER_HOST = 8


def allocations_by_host(graph: JobGraph) -> list[tuple[Int64s, Int64s]]:
    """For every host with allocations on several ranks: their rows, and the rank of each."""
    is_allocation = np.array(
        [isinstance(op, Fixed) and op.name == ALLOCATION for op in graph.ops], dtype=bool
    )
    rows_of: dict[int, dict[int, Int64s]] = {}
    for rank, (program, part) in enumerate(rank_parts(graph)):
        rows = part.start + np.flatnonzero(is_allocation[program.op])
        if len(rows):
            rows_of.setdefault(host_of(rank, graph.facts.gpus_per_host), {})[rank] = rows
    return [
        (
            np.concatenate(list(of_host.values())),
            np.repeat(list(of_host), [len(rows) for rows in of_host.values()]),
        )
        for of_host in rows_of.values()
        if len(of_host) > 1
    ]


@dataclass(frozen=True, slots=True, eq=False)
class SharedDriver:
    """The rule of one host: its allocations, by row, and the rank of each."""

    calls: Int64s
    rank: Int64s

    def __call__(self, last: Round, found: Effects) -> None:
        """Lengthen the allocations that overlap."""
        own_ns = last.alone_ns[self.calls]
        times_ns = (last.start_ns[self.calls], last.end_ns[self.calls])
        found.lost_ns[0, self.calls] += throttled_ns(*times_ns, own_ns, self.rank) - own_ns


def host_of(rank: int, gpus_per_host: int) -> int:
    """The host of *rank*; a host has eight GPUs if the number is unknown."""
    return rank // (gpus_per_host or _USUAL_GPUS_PER_HOST)


def alone_ns(start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """The time alone of calls of one host that were recorded from *start_ns* to *end_ns*."""
    moments = np.unique(np.concatenate([start_ns, end_ns]))
    begins, ends = (np.searchsorted(moments, times) for times in (start_ns, end_ns))
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, ends, -1)
    at_once = np.maximum(np.cumsum(change)[: len(moments) - 1], 1)
    served = np.concatenate([[0.0], np.cumsum(np.diff(moments) / at_once)])
    alone: Int64s = np.rint(served[ends] - served[begins]).astype(np.int64)
    return alone


def throttled_ns(start_ns: Int64s, end_ns: Int64s, own_ns: Floats, rank: Int64s) -> Floats:
    """The time of calls of one host that take *own_ns* alone, slowed down where they overlap.

    *start_ns* and *end_ns* are those of a replay. If a call ends later than it did there, the
    later calls of its rank start as much later.
    """
    order = np.lexsort((start_ns, rank)).tolist()
    next_of = {one: after for one, after in pairwise(order) if rank[one] == rank[after]}
    coming = [(float(start_ns[call]), call) for call in set(order) - set(next_of.values())]
    heapq.heapify(coming)
    waiting: list[tuple[float, int]] = []
    # The driver's own clock runs slower the more calls it serves at once.
    now_ns = served_ns = 0.0
    came_ns = start_ns.astype(np.float64)
    left_ns = came_ns.copy()

    def follow(call: int, later_ns: float, *, is_over: bool) -> None:
        """Start the next call of the rank; another thread's may start before this one is over."""
        after = next_of.get(call)
        if after is not None and bool(start_ns[after] >= end_ns[call]) is is_over:
            heapq.heappush(coming, (max(float(start_ns[after]) + later_ns, now_ns), after))

    while coming or waiting:
        until_ns = coming[0][0] if coming else np.inf
        if waiting:
            done_ns, call = waiting[0]
            over_ns = now_ns + (done_ns - served_ns) * len(waiting)
            if over_ns <= until_ns:
                heapq.heappop(waiting)
                now_ns, served_ns, left_ns[call] = over_ns, done_ns, over_ns
                follow(call, over_ns - float(end_ns[call]), is_over=True)
                continue
            served_ns += (until_ns - now_ns) / len(waiting)
        now_ns, call = heapq.heappop(coming)
        came_ns[call] = now_ns
        heapq.heappush(waiting, (served_ns + float(own_ns[call]), call))
        follow(call, now_ns - float(start_ns[call]), is_over=False)
    return np.maximum(np.rint(left_ns - came_ns), own_ns)
