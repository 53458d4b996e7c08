"""Condensed jobs take the nanoseconds of the jobs they were made from."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from perfmodel.engine.condensed import FIXED, RankKind, condense_job, evaluate_variants
from perfmodel.engine.replay import replay
from perfmodel.engine.steady import find_period
from perfmodel.graph.builder import Dependency
from perfmodel.graph.program import LaneKind
from tests.builders import JobSketch
from tests.strategies import JobSize, jobs


def run(job, durations, iterations):
    return replay(job, durations, iterations=iterations)


def evaluate(job, durations):
    """One rank alone as a condensed job whose first task is left to the variant."""
    program, row = job.program_of(0), durations.of_rank(job, 0)
    changing = np.full(program.task_count, FIXED, dtype=np.int32)
    changing[0] = 0
    kind = RankKind(program, row, changing)
    own_ns = row[:1].reshape(1, 1, 1)
    kinds = np.zeros((1, 1), dtype=np.int8)
    return evaluate_variants(condense_job([kind, kind]), kinds, own_ns)


def test_a_rhythm_is_not_accepted_while_a_lane_is_slower():
    sketch = JobSketch()
    rank = sketch.rank(clock=LaneKind.HOST, gpu=LaneKind.COMPUTE, loader=LaneKind.LOADER)
    tick = rank.task("tick", "clock", 10)
    rank.task("kernel", "gpu", 10, after=[Dependency(tick, lag_ns=300)])
    rank.task("batch", "loader", 15)

    # As in a replay: 320 + 10 k until the loader overtakes it.
    found = evaluate(*sketch.build())
    assert found.isolated_ns.tolist() == [320]
    assert found.period_ns.tolist() == [15]


@settings(max_examples=30)
@given(made=jobs(JobSize(vectors=1, ranks=1, channels=0)))
def test_a_rank_alone_takes_as_long_condensed_as_replayed(made):
    job, durations = made
    found = evaluate(job, durations)
    wanted = find_period(run, job, durations)
    assert found.isolated_ns.tolist() == wanted.replay.iteration_end_ns[0].tolist()
    assert found.period_ns.tolist() == wanted.period_ns.tolist()
    assert found.iterations.tolist() == [wanted.replay.iteration_count]
