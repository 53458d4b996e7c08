"""Critical path, breakdown and waits say why a replay took as long as it did."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from perfmodel.engine.history import Binding, History, Hop, Occurrence
from perfmodel.engine.reasons import Breakdown, CoveredTime, Window, break_down, critical_path
from perfmodel.engine.replay import replay
from perfmodel.graph.program import Anchor, LaneKind
from tests.builders import JobSketch, job_of
from tests.strategies import random_jobs


def history_of(*ranks: str, iterations: int = 1) -> History:
    made = job_of(*ranks)
    return History(*made, replay(*made, iterations))


def two_ranks() -> History:
    """Rank 1 computes longer, so rank 0 waits for it in the all-reduce."""
    words = "host launch 10; gpu compute {} <launch; wire *reduce 20 <compute; gpu update 5 <reduce"
    return history_of(words.format(30), words.format(50))


def test_the_path_goes_through_the_rank_that_was_late():
    history = two_ranks()
    steps = critical_path(history, from_ns=0)
    named = [
        (step.at.rank, history.job.label_of(step.at.rank, step.at.task), step.from_ns, step.to_ns)
        for step in steps
    ]
    # Rank 1 launches 0-10 and computes 10-60; the all-reduce runs 60-80 and
    # the update 80-85. Both ranks end at 85: the tie goes to rank 0.
    assert named == [
        (1, "launch", 0, 10),
        (1, "compute", 10, 60),
        (0, "reduce", 60, 80),
        (0, "update", 80, 85),
    ]
    hops = [Hop.NOTHING, Hop.DEPENDENCY, Hop.RENDEZVOUS, Hop.DEPENDENCY]
    assert [step.hop for step in steps] == hops


def test_the_breakdown_of_a_rank_that_waits():
    history = two_ranks()
    # Rank 0: idle 0-10 until the launch, computes 10-40 and 80-85, waits
    # 40-60 for rank 1, communicates 60-80.
    assert break_down(history, 0, Window(0, 85)) == Breakdown(
        compute_ns=35, exposed_communication_ns=20, exposed_copy_ns=0, waiting_for_ranks_ns=20,
        host_bound_idle_ns=10,
    )  # fmt: skip


def test_a_lag_on_the_path_is_told_apart_from_the_task():
    steps = critical_path(history_of("gpu first 10; side second 5 <first+4"), from_ns=0)
    # first 0-10, lag 10-14, second 14-19.
    assert [(step.from_ns, step.to_ns, step.lag_ns) for step in steps] == [(0, 10, 0), (10, 19, 4)]


def test_the_task_before_on_the_lane_binds_rather_than_a_dependency_at_the_same_moment():
    history = history_of("gpu here 10; side there 10; gpu last 1 <there")
    # Tasks are numbered lane by lane: here, last, there.
    assert history.binding(Occurrence(0, 0, 1)).hop is Hop.LANE


@given(made=random_jobs())
def test_the_path_fills_its_window_without_gap_or_overlap(made):
    answer = replay(made.job, made.durations, iterations=made.iterations)
    history = History(made.job, made.durations, answer)
    ends = answer.iteration_end_ns[:, 0]
    from_ns = 0 if made.iterations == 1 else int(ends[-2])
    steps = critical_path(history, from_ns=from_ns)
    moment = from_ns
    for step in steps:
        assert step.from_ns == moment
        assert step.to_ns > step.from_ns
        assert 0 <= step.lag_ns <= step.to_ns - step.from_ns
        # Runs on a lane are taken at once; one by one, each has the same cause.
        assert step.hop in (history.binding(step.at).hop, history.local_binding(step.at).hop)
        moment = step.to_ns
    last = max(
        int(history.end_ns(history.iterations[-1], r).max()) for r in range(made.job.rank_count)
    )
    assert moment == max(last, from_ns)


@given(made=random_jobs())
def test_the_breakdown_adds_up_to_its_window(made):
    answer = replay(made.job, made.durations, iterations=made.iterations)
    history = History(made.job, made.durations, answer)
    window = Window(0, int(answer.iteration_end_ns[-1, 0]))
    for rank in range(made.job.rank_count):
        parts = break_down(history, rank, window)
        assert parts.total_ns == window.length_ns
        assert min(parts.compute_ns, parts.waiting_for_ranks_ns, parts.host_bound_idle_ns) >= 0


def test_the_first_task_of_a_lane_is_bound_by_its_last_in_the_iteration_before():
    sketch = JobSketch()
    rank = sketch.rank(idle=LaneKind.HOST, gpu=LaneKind.COMPUTE, side=LaneKind.COMPUTE)
    for name, lane, duration_ns in (("first", "gpu", 10), ("last", "gpu", 5), ("a", "side", 1)):
        rank.task(name, lane, duration_ns)
    made = sketch.build()
    history = History(*made, replay(*made, iterations=2))
    assert history.binding(Occurrence(0, 0, 0)) == Binding(Hop.NOTHING, None, 0)
    assert history.binding(Occurrence(1, 0, 0)) == Binding(Hop.LANE, Occurrence(0, 0, 1), 15)
    assert history.binding(Occurrence(1, 0, 1)) == Binding(Hop.LANE, Occurrence(1, 0, 0), 25)
    assert history.binding(Occurrence(1, 0, 2)) == Binding(Hop.LANE, Occurrence(0, 0, 2), 1)


def test_a_dependency_binds_with_its_own_moment_and_only_where_its_lag_ends():
    history = history_of(
        "gpu first 10; gpu second 6; side late 1 <first+3 <^second+4 <second+2-1", iterations=2
    )
    # 10 + 3 against 10 + 4: the start of the second binds, at 10.
    late = Occurrence(0, 0, 2)
    assert history.moment_ready_ns(late) == 14
    assert history.binding(late) == Binding(Hop.DEPENDENCY, Occurrence(0, 0, 1), 10)
    # A round later 26 + 3 against 26 + 4; what was there 16 + 2 before does not count.
    assert history.binding(Occurrence(1, 0, 2)) == Binding(Hop.DEPENDENCY, Occurrence(1, 0, 1), 26)
    assert history.moment_ns(Occurrence(1, 0, 1), Anchor.START) == 26
    assert history.moment_ns(Occurrence(1, 0, 1), Anchor.END) == 32


def test_copies_and_waits_count_only_while_nothing_else_runs():
    words = "gpu compute {}; wire *meet 20 <compute; copy copy 30"
    history = history_of(words.format(10), words.format(60))
    # Rank 0 computes 0-10, copies 0-30, waits 10-60, meets 60-80, and has nothing to do 80-100.
    assert break_down(history, 0, Window(0, 100)) == Breakdown(10, 20, 20, 30, 20)
    assert break_down(history, 0, Window(5, 65)) == Breakdown(5, 5, 20, 30, 0)
    assert break_down(history, 1, Window(0, 100)) == Breakdown(60, 20, 0, 0, 20)


def test_spans_that_overlap_touch_or_hide_in_others_are_counted_once():
    spans = np.array([[5, 9], [0, 3], [3, 4], [6, 7], [8, 12], [20, 20]])
    assert CoveredTime(spans).total_ns == 4 + 7
    assert CoveredTime(spans[:0]).total_ns == 0
    begins, ends = np.array([-5, 0, 1, 3, 12, 90]), np.array([0, 2, 3, 11, 13, 99])
    inside = [{*range(a, b)} for a, b in spans.tolist()]
    expected = [
        len(set(range(a, b)) & set().union(*inside)) for a, b in zip(begins, ends, strict=True)
    ]
    assert CoveredTime(spans).within(begins, ends).tolist() == expected
    assert CoveredTime(spans[:0]).within(begins, ends).tolist() == [0] * 6
