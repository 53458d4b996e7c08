"""When a rhythm is accepted, and what its period is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.engine.replay import (
    Replay,
    find_period,
    is_repeated,
    mean_of_second_half_ns,
    mean_period_ns,
    replay,
)
from perfmodel.graph.program import Dependency, LaneKind
from tests.builders import JobSketch, job_of

BEHIND = "host tick 10; gpu kernel 10 <tick+300; loader batch {}"
"""Iteration k of the kernel ends at 320 + 10 k; the loader goes at a pace of its own."""


def test_a_rhythm_is_not_accepted_while_a_lane_is_slower():
    steady = find_period(replay, *job_of(BEHIND.format(15)))
    # The loader, at 15 + 15 k, overtakes the kernel after 61 iterations.
    assert steady.replay.iteration_end_ns[:3, 0].tolist() == [320, 330, 340]
    assert steady.is_settled
    assert steady.period_ns.tolist() == [15]


@pytest.mark.parametrize(("lane_ns", "is_accepted"), [(9, True), (10, True), (11, False)])
def test_a_lane_may_be_as_slow_as_the_iteration_and_no_slower(lane_ns, is_accepted):
    ends_ns = np.array([100, 110, 120], dtype=np.int64)
    lanes_ns = np.array([[[0]], [[0]], [[lane_ns]]], dtype=np.int64)
    rows = np.zeros(1, dtype=np.int32)
    assert is_repeated(ends_ns, 3, lanes_ns, rows, 1, 1) is is_accepted


def test_two_cycles_in_a_row_must_take_the_same_time_step_by_step():
    # Steps of 10, 20, 10, 20: a rhythm of two. Steps of 10, 20, 20, 10 are none, though both
    # halves take 30.
    lanes_ns = np.zeros((5, 1, 1), dtype=np.int64)
    rows = np.zeros(1, dtype=np.int32)
    repeated = np.array([0, 10, 30, 40, 60], dtype=np.int64)
    turned = np.array([0, 10, 30, 50, 60], dtype=np.int64)
    assert is_repeated(repeated, 5, lanes_ns, rows, 2, 1)
    assert not is_repeated(turned, 5, lanes_ns, rows, 2, 1)
    # Four iterations cannot show two cycles of two.
    assert not is_repeated(repeated, 4, lanes_ns, rows, 2, 1)
    # Nor is what stands behind them looked at.
    assert not is_repeated(np.array([0, 10, 30, 40, -20]), 4, lanes_ns, rows, 2, 1)


def test_every_vector_must_repeat_itself():
    job, durations = job_of(BEHIND.format(5))
    slower_ns = job_of(BEHIND.format(15))[1].values_ns
    both = replace(durations, values_ns=np.hstack([durations.values_ns, slower_ns]))
    assert find_period(replay, job, both).period_ns.tolist() == [10, 15]


def test_a_period_is_rounded_half_up():
    # 5 / 2 = 2.5, 7 / 3 = 2.33.
    assert (mean_period_ns(5, 2), mean_period_ns(7, 3), mean_period_ns(6, 3)) == (3, 2, 2)


def test_the_mean_is_over_the_second_half_of_the_iterations():
    # 10, 20, 30 and 40 ns: the last two take 70. One alone takes what it takes.
    ends_ns = np.array([[10], [30], [60], [100]])
    assert mean_of_second_half_ns(ends_ns).tolist() == [35.0]
    assert mean_of_second_half_ns(ends_ns[:1]).tolist() == [10.0]
    # Of three it is the last one: 60 - 30.
    assert mean_of_second_half_ns(ends_ns[:3]).tolist() == [30.0]


@pytest.mark.parametrize(("reach", "is_accepted"), [(2, True), (3, False), (4, False)])
def test_all_that_dependencies_reach_must_repeat_itself(reach, is_accepted):
    # Steps of 9, 9, 50, 1, 1 and 1: the last three are a rhythm where nobody looks further back.
    ends_ns = np.cumsum([9, 9, 50, 1, 1, 1])
    lanes_ns, rows = np.zeros((6, 1, 1), dtype=np.int64), np.zeros(1, dtype=np.int32)
    assert is_repeated(ends_ns, 6, lanes_ns, rows, 1, reach) is is_accepted


@pytest.mark.parametrize(
    ("loaders", "cyclicity", "period_ns"), [(1, 1, 100), (2, 2, 50), (3, 3, 33), (4, 4, 25)]
)
def test_batches_that_come_in_bursts_have_the_rhythm_of_all_loaders(loaders, cyclicity, period_ns):
    sketch = JobSketch()
    rank = sketch.rank(loader=LaneKind.LOADER, gpu=LaneKind.COMPUTE)
    batch = rank.task("batch", "loader", 0)
    rank.task("step", "gpu", 1, after=["batch"])
    # Each loader takes 100 ns for a batch, and they take turns.
    rank.builder.add_dependency(batch, Dependency(batch, lag_ns=100, distance=loaders))
    steady = find_period(replay, *sketch.build())
    assert (steady.period_ns.tolist(), steady.cyclicity) == ([period_ns], cyclicity)


def in_steps_of(*steps_ns):
    """A replay in which iterations take so long, in turn."""

    def made(job, durations, iterations):
        ends_ns = np.cumsum(np.resize(steps_ns, iterations))
        return Replay((), ends_ns.astype(np.int64).reshape(-1, 1, 1))

    return made


@pytest.mark.parametrize(
    ("steps_ns", "iterations", "cyclicity", "period_ns"),
    [
        ((7,), 6, 1, 7),
        ((7, 4), 6, 2, 6),
        ((1, 5, 2), 12, 3, 3),
        ((1, 5, 2, 9), 12, 4, 4),
        # Beyond four at a time it is the mean of 48: nine times 21, and 9 + 4 + 1.
        ((1, 5, 2, 9, 4), 96, 48, 4),
    ],
)
def test_rhythms_of_up_to_four_iterations_are_found(steps_ns, iterations, cyclicity, period_ns):
    steady = find_period(in_steps_of(*steps_ns), *job_of("gpu step 1"))
    assert steady.replay.iteration_count == iterations
    assert (steady.cyclicity, steady.is_settled) == (cyclicity, len(steps_ns) < 5)
    assert steady.period_ns.tolist() == [period_ns]
