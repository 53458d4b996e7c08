"""Waits that hold a device up, and those that do not."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from perfmodel.engine.breakdown import Window, break_down
from perfmodel.engine.history import History
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.time_parts import find_exposed_waits
from tests.reports.predictions import build_evidence
from tests.strategies import jobs


def test_a_rank_that_is_early_waits_for_the_late_one():
    evidence = build_evidence()

    # Rank 0 is ready at 11 us, rank 1 at 31 us: rank 0 stands still for 20 us.
    [wait] = find_exposed_waits(evidence.history, 0, evidence.window)
    assert wait.duration_ns == 20_000
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
        received = program.add_rendezvous(
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
    [wait] = find_exposed_waits(history, 0, Window(0, 115))
    assert wait.duration_ns == 30


@given(jobs())
def test_exposed_waits_add_up_to_the_waiting_part_of_the_breakdown(drawn):
    job, durations = drawn
    history = History(job, durations, replay(job, durations, iterations=3))
    ends_ns = history.replay.iteration_end_ns[:, 0]
    window = Window(int(ends_ns[0]), int(ends_ns[1]))

    for rank in range(job.rank_count):
        waits = find_exposed_waits(history, rank, window)
        breakdown = break_down(history, rank, window)
        assert sum(wait.duration_ns for wait in waits) == breakdown.waiting_for_ranks_ns
