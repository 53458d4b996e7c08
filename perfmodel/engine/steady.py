"""Steady state: the time from one iteration to the next once it repeats.

A max-plus system settles into a rhythm: after some iterations every one, or
every c-th, is a copy of an earlier one, shifted. Lanes that run ahead (a fast
host) may have a rhythm of their own; what counts is the slowest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfmodel.engine.layout import Int64s
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


def _is_periodic(answer: Replay, cyclicity: int) -> bool:
    """Whether two cycles in a row took the same time, and no lane is slower than that."""
    ends = answer.iteration_end_ns
    if len(ends) < 2 * cyclicity + 1:
        return False
    cycle = ends[-1] - ends[-1 - cyclicity]
    steps = np.diff(ends[-2 * cyclicity - 1 :], axis=0)
    lanes = answer.lane_now_ns[-1] - answer.lane_now_ns[-1 - cyclicity]
    return bool(np.array_equal(steps[:cyclicity], steps[cyclicity:]) and (lanes <= cycle).all())


def _mean_period(answer: Replay, cyclicity: int) -> Int64s:
    ends = answer.iteration_end_ns
    total = ends[-1] - ends[-1 - cyclicity]
    # Rounded half up, so that the answer is the same everywhere.
    period: Int64s = (2 * total + cyclicity) // (2 * cyclicity)
    return period
