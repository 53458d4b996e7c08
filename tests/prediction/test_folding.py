"""Folding changes the work, never the nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.interference import fold
from tests.strategies import random_jobs


def ring_of_pairs(rank_count: int, slow_rank: int | None = None):
    """Ranks that all run one program and meet their neighbour and everybody."""
    builder = JobBuilder()
    program = builder.new_program()
    gpu = program.add_lane("gpu", LaneKind.COMPUTE)
    for label in ("first", "second"):
        program.add_task(gpu, Fixed("work", 0), label=label)
        program.add_task(gpu, Fixed("pair", 0), label="pair", slot=0)
    program.add_task(gpu, Fixed("all", 0), label="all", slot=1)
    number = builder.add_program(program.build())
    for _ in range(rank_count):
        builder.add_rank(number)
    for first in range(0, rank_count, 2):
        builder.add_group(f"pair {first}", [first, first + 1], slot=0)
    builder.add_group("all", range(rank_count), slot=1)
    job = builder.build(JobFacts("pairs"))
    usual = np.array([10, 5, 10, 5, 7], dtype=np.int64)
    slow = np.array([10, 5, 60, 5, 7], dtype=np.int64)
    rows = [slow if rank == slow_rank else usual for rank in range(rank_count)]
    return job, build_durations(job, rows)


def test_ranks_that_all_do_the_same_fold_into_one():
    job, durations = ring_of_pairs(64)
    folded, class_ranks = fold(job, durations)
    assert folded.rank_count == 1
    assert [len(ranks) for ranks in class_ranks] == [64]


def test_a_slow_rank_is_told_apart_and_so_is_whom_it_meets():
    job, durations = ring_of_pairs(8, slow_rank=3)
    _, class_ranks = fold(job, durations)
    # The slow rank, its partner 2, and the six that meet neither in a pair.
    assert class_ranks == ((0, 1, 4, 5, 6, 7), (2,), (3,))


def test_equal_rows_stored_twice_still_fold():
    job, durations = ring_of_pairs(4)
    rows = [durations.of_rank(job, rank).copy() for rank in range(4)]
    assert fold(job, build_durations(job, rows))[0].rank_count == 1


@given(made=random_jobs())
def test_a_folded_job_takes_the_same_nanoseconds_as_the_whole(made):
    folded, class_ranks = fold(made.job, made.durations)
    durations = made.durations.of_ranks(np.array([ranks[0] for ranks in class_ranks]))
    whole = replay(made.job, made.durations, iterations=made.iterations)
    short = replay(folded, durations, iterations=made.iterations)
    counts = made.job.task_counts()
    whole_start = np.concatenate([[0], np.cumsum(counts)])
    short_start = np.concatenate([[0], np.cumsum(folded.task_counts())])
    of_ranks = {rank: one for one, ranks in enumerate(class_ranks) for rank in ranks}
    assert sorted(of_ranks) == list(range(made.job.rank_count))
    for rank, of_rank in of_ranks.items():
        expected = whole.last.end_ns[whole_start[rank] : whole_start[rank + 1]]
        found = short.last.end_ns[short_start[of_rank] : short_start[of_rank + 1]]
        assert np.array_equal(expected, found)
