"""Sampling: the interval, from replays of costs drawn again and again.

Samples are further duration vectors of one pass. A big job replays them a few
at a time, to bound memory; the answer does not depend on how many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.steady import Replayer, mean_of_second_half_ns
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.answer import Interval

LOW, HIGH = 0.05, 0.95
MAX_MOMENTS = 2**25
"""Tasks x vectors that one replay of samples may hold: 256 MiB an iteration kept."""


def replay_samples(
    replay: Replayer, job: JobGraph, samples: DurationTable, *, iterations: int
) -> NDArray[np.float64]:
    """The iteration time of every vector of *samples*.

    Of several iterations it is the mean over the second half.
    """
    at_once = max(MAX_MOMENTS // max(job.task_count, 1), 1)
    times = []
    for first in range(0, samples.vector_count, at_once):
        part = np.ascontiguousarray(samples.values_ns[:, first : first + at_once])
        answer = replay(job, DurationTable(part, samples.rank_offset), iterations)
        times.append(mean_of_second_half_ns(answer.iteration_end_ns))
    return np.concatenate(times)


def build_interval(times_ns: NDArray[np.float64], *, nominal_ns: int) -> Interval:
    """The middle 90 % of *times_ns*, stretched to hold *nominal_ns* where it must be."""
    low_ns, high_ns = np.quantile(times_ns, [LOW, HIGH])
    return Interval(min(round(low_ns), nominal_ns), max(round(high_ns), nominal_ns))
