"""Steady state: the time from one iteration to the next once it repeats.

A max-plus system settles into a rhythm: after some iterations every one, or
every c-th, is a copy of an earlier one, shifted. Lanes that run ahead (a fast
host) may have a rhythm of their own; what counts is the slowest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.layout import Int32s, Int64s
from perfmodel.engine.replay import Replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

FIRST_ITERATIONS = 6
MOST_ITERATIONS = 96
LONGEST_CYCLE = 4

Replayer = Callable[[JobGraph, DurationTable, int], Replay]


@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """The rhythm of a job: *period_ns* by vector, over *cyclicity* iterations each.

    Where a job has not settled within MOST_ITERATIONS, *is_settled* is False
    and the period is the mean over the second half of the iterations.
    """

    period_ns: Int64s
    cyclicity: int
    is_settled: bool
    replay: Replay


def find_period(replay: Replayer, job: JobGraph, durations: DurationTable) -> SteadyState:
    """Replay more and more iterations of *job* until its rhythm shows."""
    iterations = FIRST_ITERATIONS
    while True:
        answer = replay(job, durations, iterations)
        for cyclicity in range(1, LONGEST_CYCLE + 1):
            if _is_periodic(answer, cyclicity):
                return SteadyState(_mean_period(answer, cyclicity), cyclicity, True, answer)
        if iterations >= MOST_ITERATIONS:
            half = iterations // 2
            return SteadyState(_mean_period(answer, half), half, False, answer)
        iterations = min(2 * iterations, MOST_ITERATIONS)


def mean_of_second_half_ns(ends_ns: Int64s) -> NDArray[np.float64]:
    """Mean iteration time over the second half of iterations that end at *ends_ns*, by vector."""
    count = len(ends_ns)
    span = max(count // 2, 1)
    before_ns = ends_ns[-1 - span] if count > 1 else 0
    times: NDArray[np.float64] = (ends_ns[-1] - before_ns) / span
    return times


@numba.njit(cache=True, nogil=True)
def is_repeated(
    ends_ns: Int64s, count: int, lanes_ns: Int64s, lane_rows: Int32s, cyclicity: int, reach: int
) -> bool:
    """Whether two cycles in a row took the same time, and no lane is slower than that.

    *ends_ns* are those of *count* iterations; `lanes_ns[i % len(lanes_ns), row]` for
    the *lane_rows* is when the lanes of iteration i were done, on all ranks. All iterations that
    dependencies *reach* back to repeat those a cycle before: what comes in bursts, as batches of
    three loaders do, looks like a rhythm of its own within one.
    """
    span = max(cyclicity, reach)
    if count < span + cyclicity + 1:
        return False
    length_ns = ends_ns[count - 1] - ends_ns[count - 1 - cyclicity]
    for step in range(span):
        late_ns = ends_ns[count - 1 - step] - ends_ns[count - 2 - step]
        first = count - 1 - step - cyclicity
        if late_ns != ends_ns[first] - ends_ns[first - 1]:
            return False
    history = lanes_ns.shape[0]
    for row in lane_rows:
        now = lanes_ns[(count - 1) % history, row]
        then = lanes_ns[(count - 1 - cyclicity) % history, row]
        for place in range(len(now)):
            if now[place] - then[place] > length_ns:
                return False
    return True


@numba.njit(cache=True, nogil=True)
def mean_period_ns(total_ns: int, count: int) -> int:
    """The mean of *count* iterations, rounded half up so that it is the same everywhere."""
    return (2 * total_ns + count) // (2 * count)


def _is_periodic(answer: Replay, cyclicity: int) -> bool:
    ends, lanes = answer.iteration_end_ns, answer.lane_now_ns
    rows = np.arange(lanes.shape[1], dtype=np.int32)
    return all(
        is_repeated(
            np.ascontiguousarray(ends[:, vector]),
            len(ends),
            np.ascontiguousarray(lanes[:, :, vector : vector + 1]),
            rows,
            cyclicity,
            # As many iterations are kept as dependencies reach, and one for the past.
            len(answer.timelines) - 1,
        )
        for vector in range(ends.shape[1])
    )


def _mean_period(answer: Replay, cyclicity: int) -> Int64s:
    ends = answer.iteration_end_ns
    totals = (ends[-1] - ends[-1 - cyclicity]).tolist()
    return np.array([mean_period_ns(total, cyclicity) for total in totals], dtype=np.int64)
