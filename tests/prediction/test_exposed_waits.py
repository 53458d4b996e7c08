"""Waits that hold a device up, and those that do not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given

from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window, break_down
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.time_parts import _take, _waits, find_exposed_waits
from tests.reports.predictions import build_evidence
from tests.strategies import jobs


def test_a_rank_that_is_early_waits_for_the_late_one():
    evidence = build_evidence()

    # Rank 0 is ready at 11 us, rank 1 at 31 us: rank 0 stands still for 20 us.
    [(_, exposed_ns)] = find_exposed_waits(evidence.history, 0, evidence.window)
    assert exposed_ns == 20_000
    assert find_exposed_waits(evidence.history, 1, evidence.window) == []


def test_a_receive_that_was_posted_early_costs_only_what_the_device_idles():
    builder = JobBuilder()
    rows = []
    for is_late in (False, True):
        program = builder.new_program()
        compute = program.add_lane("compute", LaneKind.COMPUTE)
        network = program.add_lane("network", LaneKind.COMMUNICATION)
        work = program.add_task(compute, Fixed("work", 0), label="work")
        after = [work] if is_late else []
        received = program.add_task(
            network, Fixed("receive", 0), label="receive", slot=0, after=after
        )
        program.add_task(compute, Fixed("rest", 0), label="rest", after=[received])
        builder.add_rank(builder.add_program(program.build()))
        # Compute lane: work, rest; network lane: receive.
        rows.append(np.array([100 if is_late else 70, 10, 5]))
    builder.add_group("pair", [0, 1], slot=0)
    job = builder.build(JobFacts("early receive"))
    durations = build_durations(job, rows)
    history = History(job, durations, replay(job, durations))

    # Rank 0 waits from 0 to 100, but computes until 70: 30 are lost.
    [(_, exposed_ns)] = find_exposed_waits(history, 0, Window(0, 115))
    assert exposed_ns == 30


@given(jobs())
def test_exposed_waits_add_up_to_the_waiting_part_of_the_breakdown(drawn):
    job, durations = drawn
    history = History(job, durations, replay(job, durations, iterations=3))
    ends_ns = history.replay.iteration_end_ns[:, 0]
    window = Window(int(ends_ns[0]), int(ends_ns[1]))

    for rank in range(job.rank_count):
        waits = find_exposed_waits(history, rank, window)
        breakdown = break_down(history, rank, window)
        assert sum(exposed_ns for _, exposed_ns in waits) == breakdown.waiting_for_ranks_ns


def test_spans_that_come_in_order_of_their_ends_take_what_is_left():
    covered: list[tuple[int, int]] = []

    def taken(from_ns: int, to_ns: int) -> list[tuple[int, int]]:
        return [gap for gap in _take(covered, from_ns, to_ns) if gap[0] != gap[1]]

    assert taken(10, 20) == [(10, 20)]
    assert taken(12, 20) == []
    assert taken(30, 40) == [(30, 40)]
    # 20 to 30 and 40 to 50 are free; all of it is one span from then on.
    assert sorted(taken(15, 50)) == [(20, 30), (40, 50)]
    assert covered == [(10, 50)]
    assert sorted(taken(5, 60)) == [(5, 10), (50, 60)]
    assert taken(60, 70) == [(60, 70)]
    assert covered == [(5, 70)]


def test_waits_are_clipped_and_come_in_order_of_their_ends():
    ready = {0: [0, 10, 5, 30, 30], 1: [90, 90, 95, 130, 95]}
    start = {0: [50, 20, 5, 70, 40], 1: [99, 95, 95, 140, 95]}
    history = SimpleNamespace(
        iterations=[0, 1],
        ready_ns=lambda iteration, rank: np.array(ready[iteration]),
        start_ns=lambda iteration, rank: np.array(start[iteration]),
    )
    found = [
        (from_ns, to_ns, at.iteration, at.rank, at.task)
        for from_ns, to_ns, at in _waits(history, 3, Window(15, 96))
    ]
    assert found == [
        (15, 20, 0, 3, 1),
        (30, 40, 0, 3, 4),
        (15, 50, 0, 3, 0),
        (30, 70, 0, 3, 3),
        (90, 95, 1, 3, 1),
        (90, 96, 1, 3, 0),
    ]
