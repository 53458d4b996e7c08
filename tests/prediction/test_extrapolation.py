"""A whole iteration from two smaller ones."""

from __future__ import annotations

from fractions import Fraction

from perfmodel.base.provenance import Provenance
from perfmodel.graph.job import RankMemory
from perfmodel.prediction.answer import (
    CriticalPath,
    Explanation,
    Part,
    PathShare,
    RankClass,
    RankWait,
    TimeParts,
)
from perfmodel.prediction.time_parts import extrapolate_explanation
from perfmodel.workloads.jobs import Extrapolation
from tests.strategies import random_job

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
