"""Parts that add up, whatever they are averaged or stretched to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.engine.reasons import Breakdown
from perfmodel.graph.job import RankMemory
from perfmodel.prediction.answer import Part, RankClass, TimeParts
from perfmodel.prediction.time_parts import from_breakdown, mean_parts

durations = st.integers(0, 10**12)


def test_a_breakdown_of_the_same_length_keeps_its_nanoseconds():
    parts = from_breakdown(Breakdown(7, 5, 0, 3, 1), total_ns=16)

    assert parts.of_part_ns == {
        Part.COMPUTE: 7,
        Part.EXPOSED_COMMUNICATION: 5,
        Part.EXPOSED_COPIES: 0,
        Part.WAITING_FOR_OTHER_RANKS: 3,
        Part.HOST_BOUND_IDLE: 1,
    }


def test_left_over_nanoseconds_go_to_the_parts_that_lost_most():
    # 1 : 1 : 1 of 5 is 1.67 each; 3 are given, 2 are left, ties go to the first.
    parts = from_breakdown(Breakdown(1, 1, 0, 1, 0), total_ns=5)

    assert list(parts.of_part_ns.values()) == [2, 2, 0, 1, 0]


def test_a_class_counts_as_often_as_it_has_ranks():
    busy = TimeParts(dict(zip(Part, (12, 0, 0, 0, 0), strict=True)))
    waiting = TimeParts(dict(zip(Part, (0, 0, 0, 12, 0), strict=True)))

    # One rank computes for 12 and three wait for 12: 3 and 9 in the mean.
    mean = mean_parts(
        [
            RankClass((0,), busy, RankMemory(())),
            RankClass((1, 2, 3), waiting, RankMemory(())),
        ]
    )

    assert mean.of_part_ns[Part.COMPUTE] == 3
    assert mean.of_part_ns[Part.WAITING_FOR_OTHER_RANKS] == 9


@given(st.tuples(durations, durations, durations, durations, durations), durations)
def test_stretched_parts_always_add_up(weights, total_ns):
    parts = from_breakdown(Breakdown(*weights), total_ns=total_ns)

    assert parts.total_ns == (total_ns if sum(weights) else 0)
    assert min(parts.of_part_ns.values()) >= 0
