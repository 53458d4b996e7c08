"""Samples on paper, and one real call on this machine."""

from __future__ import annotations

import pytest

from perfmodel.extensions.measurements.calibration.measure.clock import (
    LEAST_NS,
    Sample,
    join_samples,
    sample_cpu,
    sum_up,
    time_call,
)


@pytest.mark.parametrize(
    ("sample", "slept_ns", "quiet_ns"),
    [
        # It ran for 60 of 100 ns and lost the other 40 to a neighbour.
        (Sample(wall_ns=100, ran_ns=60, waited_ns=40, helper_waited_ns=0), 0, 60),
        # 100 - 20 - 10 = 70 ns asleep, of which a helper waited 30 for a core: 20 + 40.
        (Sample(wall_ns=100, ran_ns=20, waited_ns=10, helper_waited_ns=30), 70, 60),
        # Helpers cannot take off more than the sleep.
        (Sample(wall_ns=100, ran_ns=90, waited_ns=0, helper_waited_ns=500), 10, 90),
    ],
)
def test_time_without_a_core_is_taken_off(sample, slept_ns, quiet_ns):
    assert sample.slept_ns == slept_ns
    assert sample.quiet_ns == quiet_ns


def test_the_rank_that_slept_least_came_last_and_tells_the_time():
    early = Sample(wall_ns=200, ran_ns=50, waited_ns=0, helper_waited_ns=0)
    late = Sample(wall_ns=120, ran_ns=50, waited_ns=0, helper_waited_ns=20)

    # The late one slept 70 ns, 20 of them while a helper had no core: 50 + 50.
    assert join_samples([early, late]).quiet_ns == 100


def test_the_calm_half_of_the_samples_decides():
    timing = sum_up([Sample(10_000, 10_000, 0, 0)] * 2 + [Sample(90_000, 30_000, 60_000, 0)] * 2)
    assert timing.duration_ns == 10_000
    # 2 x 60 of 2 x 10 + 2 x 90 us were lost.
    assert timing.lost_ratio == pytest.approx(0.6)


def test_calls_of_a_sample_share_its_time_and_none_is_free():
    assert sum_up([Sample(80_000, 80_000, 0, 0)], calls=4).duration_ns == 20_000
    assert sum_up([Sample(10, 10, 0, 0)]).duration_ns == LEAST_NS


def test_a_real_call_takes_the_time_it_computes():
    def call() -> int:
        return sum(range(20_000))

    short = time_call(call, stopwatch=sample_cpu, samples=5)
    long = time_call(lambda: [call() for _ in range(10)], stopwatch=sample_cpu, samples=5)

    assert 3 < long.duration_ns / short.duration_ns < 30
