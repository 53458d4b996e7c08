"""Parts of an iteration add up, waits count where a device idles, and both are extrapolated."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.provenance import Provenance
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Breakdown, Window, break_down
from perfmodel.engine.replay import replay
from perfmodel.graph.job import RankMemory
from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    Part,
    PathShare,
    RankClass,
    RankWait,
    TimeParts,
)  # fmt: skip
from perfmodel.prediction.time_parts import (
    clipped_waits,
    extrapolate_explanation,
    find_exposed_waits,
    from_breakdown,
    mean_parts,
    uncovered,
)
from perfmodel.workloads.family import Extrapolation
from tests.builders import job_of
from tests.reports.predictions import build_evidence
from tests.strategies import jobs, random_job

durations = st.integers(0, 10**12)


def test_a_breakdown_of_the_same_length_keeps_its_nanoseconds():
    parts = from_breakdown(Breakdown(7, 5, 0, 3, 1), total_ns=16)
    assert parts.of_part_ns == dict(zip(Part, (7, 5, 0, 3, 1), strict=True))
    assert [part.value for part in Part][3:] == ["waiting_for_other_ranks", "host_bound_idle"]


def test_left_over_nanoseconds_go_to_the_parts_that_lost_most():
    # 1 : 1 : 1 of 5 is 1.67 each; 3 are given, 2 are left, ties go to the first.
    parts = from_breakdown(Breakdown(1, 1, 0, 1, 0), total_ns=5)
    assert list(parts.of_part_ns.values()) == [2, 2, 0, 1, 0]


def test_a_class_counts_as_often_as_it_has_ranks():
    busy = TimeParts(dict(zip(Part, (12, 0, 0, 0, 0), strict=True)))
    waiting = TimeParts(dict(zip(Part, (0, 0, 0, 12, 0), strict=True)))

    # One rank computes for 12 and three wait for 12: 3 and 9 in the mean.
    memory = RankMemory(())
    mean = mean_parts([RankClass((0,), busy, memory), RankClass((1, 2, 3), waiting, memory)])
    assert mean.of_part_ns[Part.COMPUTE] == 3
    assert mean.of_part_ns[Part.WAITING_FOR_OTHER_RANKS] == 9


@given(st.tuples(durations, durations, durations, durations, durations), durations)
def test_stretched_parts_always_add_up(weights, total_ns):
    parts = from_breakdown(Breakdown(*weights), total_ns=total_ns)
    assert parts.total_ns == (total_ns if sum(weights) else 0)
    assert min(parts.of_part_ns.values()) >= 0


def test_a_rank_that_is_early_waits_for_the_late_one():
    evidence = build_evidence()

    # Rank 0 is ready at 11 us, rank 1 at 31 us: rank 0 stands still for 20 us.
    [(_, exposed_ns)] = find_exposed_waits(evidence.history, 0, evidence.window)
    assert exposed_ns == 20_000
    assert find_exposed_waits(evidence.history, 1, evidence.window) == []


def test_a_receive_that_was_posted_early_costs_only_what_the_device_idles():
    made = job_of(
        "gpu work 70; wire *receive 5; gpu rest 10 <receive",
        "gpu work 100; wire *receive 5 <work; gpu rest 10 <receive",
    )
    history = History(*made, replay(*made))
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
        return [gap for gap in uncovered(covered, from_ns, to_ns) if gap[0] != gap[1]]

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
        for from_ns, to_ns, at in clipped_waits(history, 3, Window(15, 96))
    ]
    assert found == [
        (15, 20, 0, 3, 1),
        (30, 40, 0, 3, 4),
        (15, 50, 0, 3, 0),
        (30, 70, 0, 3, 3),
        (90, 95, 1, 3, 1),
        (90, 96, 1, 3, 0),
    ]


FOUR_STEPS = Extrapolation(random_job(0).job, steps=Fraction(4), micro_batches=9)


def parts(compute: int, waiting: int) -> TimeParts:
    named = {Part.COMPUTE: compute, Part.WAITING_FOR_OTHER_RANKS: waiting}
    return TimeParts({part: named.get(part, 0) for part in Part})


def explanation(classes, shares, waits, changes: int) -> Explanation:
    memory = RankMemory(())
    return Explanation(
        time=parts(0, 0),
        rank_classes=tuple(RankClass(ranks, time, memory) for ranks, time in classes),
        critical_path=CriticalPath(shares, shares, changes),
        waits=tuple(waits),
        provenance_ratio={Provenance.MEASURED: float(changes)},
    )


SMALL = explanation(
    [((0, 1), parts(10, 4)), ((2,), parts(14, 0))],
    (PathShare("gemm", 9, 3), PathShare("host", 5, 1)),
    [RankWait((0, 1), 2, "reduce", 4)],
    changes=2,
)
LARGE = explanation(
    [((0, 1), parts(16, 4)), ((2,), parts(20, 0)), ((3,), parts(5, 15))],
    (PathShare("new", 1, 1), PathShare("gemm", 11, 4), PathShare("host", 4, 0)),
    [RankWait((3,), 2, "reduce", 3), RankWait((0, 1), 2, "reduce", 7), RankWait((3,), 0, "x", 3)],
    changes=3,
)


def test_parts_grow_by_four_steps_and_add_up_to_the_iteration():
    whole = extrapolate_explanation(SMALL, LARGE, FOUR_STEPS, iteration_ns=38)

    # 10 + 4 x 6 of compute and 4 of waiting; of ranks that were not alike before, 1 to 3,
    # 9.5 and 28.5 of 38, the first of a tie rounded up.
    assert [entry.time.of_part_ns[Part.COMPUTE] for entry in whole.rank_classes] == [34, 38, 10]
    assert [entry.time.total_ns for entry in whole.rank_classes] == [38, 38, 38]
    # Two ranks of the first class and one of each other: (2 x 34 + 38 + 10) / 4.
    assert whole.time.of_part_ns[Part.COMPUTE] == 29
    assert whole.provenance_ratio == {Provenance.MEASURED: 3.0}


def test_the_path_grows_by_four_steps_longest_first_and_never_below_nothing():
    path = extrapolate_explanation(SMALL, LARGE, FOUR_STEPS, iteration_ns=44).critical_path
    # 9 + 4 x 2, 0 + 4 x 1 and 5 - 4 x 1; tasks 3 + 4, 4 and 1 - 4, which is none.
    assert path.by_label == (
        PathShare("gemm", 17, 7), PathShare("new", 4, 4), PathShare("host", 1, 0),
    )  # fmt: skip
    assert [share.duration_ns for share in path.by_kind] == [34, 8, 2]
    assert path.rank_changes == 6


def test_waits_grow_by_four_steps_longest_first_then_by_ranks_and_label():
    waits = extrapolate_explanation(SMALL, LARGE, FOUR_STEPS, iteration_ns=38).waits
    assert [(one.waiting_ranks, one.label, one.duration_ns) for one in waits] == [
        ((0, 1), "reduce", 16), ((3,), "reduce", 12), ((3,), "x", 12),
    ]  # fmt: skip
