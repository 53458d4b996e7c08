"""Collectives that overlap on a link slow each other down; others do not."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.costs.estimates import Bound
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.replay import replay
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.interference import overlap_losses, settle_interference
from tests.builders import JobSketch

GPU_LINK, NIC = (1.0, 0.0), (0.0, 1.0)


def run(job, durations, iterations):
    return replay(job, durations, iterations=iterations)


def two_collectives(first_use, second_use, *, second_after_ns: int = 0) -> PricedJob:
    """Two ranks that make two all-reduces of 1000 ns on two streams."""
    sketch = JobSketch()
    for _ in range(2):
        rank = sketch.rank(
            gpu=LaneKind.COMPUTE, one=LaneKind.COMMUNICATION, two=LaneKind.COMMUNICATION
        )
        rank.task("before", "gpu", second_after_ns)
        rank.meet("first", "one", 1000, slot=0)
        rank.meet("second", "two", 1000, slot=1, after=["before"])
    sketch.group(0, 1, slot=0, name="first group")
    sketch.group(0, 1, slot=1, name="second group")
    job, durations = sketch.build()
    use = {"before": (0.0, 0.0), "first": first_use, "second": second_use}
    count = len(durations.values_ns)
    labels = [job.label_of(rank, task) for rank in range(2) for task in range(3)]
    return PricedJob(
        job=job,
        durations=durations,
        float_ns=durations.values_ns[:, 0].astype(np.float64),
        relative_sigma=np.zeros(count),
        provenance=np.zeros(count, dtype=np.int8),
        family=np.zeros(count, dtype=np.int8),
        bound=np.full(count, Bound.LINK, dtype=np.int8),
        link_use=np.array([use[label] for label in labels]),
    )


def longest_ns(priced: PricedJob) -> float:
    settled = settle_interference(run, priced)
    return float(settled.priced.float_ns.max())


def test_two_all_reduces_on_one_nic_each_take_the_time_of_both():
    # Each gets half of the wire all the time: 2 x 1000.
    assert longest_ns(two_collectives(NIC, NIC)) == pytest.approx(2000, rel=1e-3)


def test_two_all_reduces_on_different_links_do_not_slow_each_other():
    priced = two_collectives(NIC, GPU_LINK)
    assert settle_interference(run, priced).priced is priced


def test_collectives_that_leave_room_for_each_other_keep_their_time():
    # 0.4 + 0.5 of the wire: both fit.
    assert longest_ns(two_collectives((0.0, 0.4), (0.0, 0.5))) == 1000


def test_collectives_one_after_the_other_keep_their_time():
    assert longest_ns(two_collectives(NIC, NIC, second_after_ns=3000)) == 3000  # the task before


def test_half_an_overlap_costs_half_as_much():
    # The first runs 0-500 alone, has 500 left and shares until 1500; the
    # second has shared 1000 by then, that is 500 of work, and ends at 2000.
    priced = two_collectives(NIC, NIC, second_after_ns=500)
    settled = settle_interference(run, priced)
    first_ns, second_ns = settled.priced.float_ns[1:3]
    assert first_ns == pytest.approx(1500, rel=1e-2)
    assert second_ns == pytest.approx(1500, rel=1e-2)


def test_three_at_once_each_lose_two_thirds():
    starts, ends = np.zeros(3, dtype=np.int64), np.full(3, 900, dtype=np.int64)
    assert overlap_losses(starts, ends, np.ones((3, 1))) == pytest.approx([2 / 3] * 3)
