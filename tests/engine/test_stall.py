"""A replay that can go no further says who waits for whom."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.replay import replay
from perfmodel.engine.stall import explain_stall
from perfmodel.graph.program import Dependency, LaneKind
from tests.builders import JobSketch, job_of

LAST = "rank {} has no task left. The ranks do not contain the same collectives."


def rendezvous(count: int):
    """*count* ranks that all meet once, after some work."""
    return job_of(f"{count} x gpu work 1; gpu *meet 1")[0]


def said(job, heads) -> list[str]:
    heading, *lines = str(explain_stall(job, np.array(heads, dtype=np.int32))).splitlines()
    assert heading == f"replay of {job.facts.name!r} stopped with tasks left:"
    return lines


@pytest.mark.parametrize(
    ("count", "waiting", "who", "whom"),
    [
        (2, {0}, "rank 0", "rank 1"),
        (9, {0, 1, 2}, "ranks 0-2", "ranks 3-8"),
        (5, {0, 2, 4}, "ranks 0, 2, 4", "ranks 1, 3"),
        (13, {1, 3, 5, 7, 9, 11}, "ranks 1, 3, 5, 7, 9, 11", "ranks 0, 2, 4, 6, 8, 10 and 1 more"),
        (16, {*range(0, 16, 2)}, "ranks 0, 2, 4, 6, 8, 10 and 2 more",
         "ranks 1, 3, 5, 7, 9, 11 and 2 more"),
    ],
)  # fmt: skip
def test_ranks_that_wait_and_ranks_that_miss_are_named(count, waiting, who, whom):
    heads = [1 if rank in waiting else 2 for rank in range(count)]
    missing = min(set(range(count)) - waiting)
    assert said(rendezvous(count), heads) == [
        f"{who} wait in 'meet' (#0 of group 'slot 0') for {whom}: {LAST.format(missing)}"
    ]


def test_a_rendezvous_that_nobody_misses_is_one_of_ranks_that_are_not_alike():
    [line] = said(rendezvous(2), [1, 1])
    assert line.startswith("ranks 0-1 wait in 'meet' (#0 of group 'slot 0') for nobody: ")
    assert line.endswith(": the ranks that folding merged are not equal.")


@pytest.mark.parametrize("pairs", [6, 7, 9])
def test_six_rendezvous_are_told_and_the_others_counted(pairs):
    sketch = JobSketch()
    for _ in range(2 * pairs):
        sketch.rank(gpu=LaneKind.COMPUTE).meet("meet", "gpu", 1)
    for pair in range(pairs):
        sketch.group(2 * pair, 2 * pair + 1, name=f"pair {pair}")
    lines = said(sketch.build()[0], [0, 1] * pairs)
    assert [line.split("'")[3] for line in lines[:6]] == [f"pair {pair}" for pair in range(6)]
    assert lines[6:] == ([f"... and {pairs - 6} more."] if pairs > 6 else [])


def test_one_who_is_missing_may_be_held_by_another_rendezvous_or_by_a_task():
    made = job_of("gpu *a 1; gpu *b@1 1; host last 1", "gpu *b@1 1; gpu *a 1; host last 1")
    with pytest.raises(ReplayStalledError) as error:
        replay(*made)
    order = "The order of collectives differs between these ranks."
    assert str(error.value).splitlines()[1:] == [
        f"rank {mine} wait in {own!r} (#0 of group 'slot {mine}') for rank {other}: on lane 'gpu', "
        f"rank {other} is held in {their!r} of group 'slot {other}'. {order}"
        for mine, other, own, their in ((0, 1, "a", "b"), (1, 0, "b", "a"))
    ]


def held_by_a_task():
    """Rank 0 meets rank 1, whose rendezvous waits for a launch, and that for the rendezvous."""
    sketch = JobSketch()
    sketch.rank(gpu=LaneKind.COMPUTE).meet("meet", "gpu", 1)
    rank = sketch.rank(free=LaneKind.COPY, gpu=LaneKind.COMPUTE, host=LaneKind.HOST)
    rank.task("copy", "free", 1)
    before = rank.task("before", "gpu", 1)
    rank.meet("meet", "gpu", 1)
    rank.task("first", "host", 1, after=[Dependency(before, distance=1), Dependency(before)])
    rank.task("launch", "host", 1, after=["meet"])
    rank.builder.add_dependency(rank.tasks["meet"], Dependency(rank.tasks["launch"]))
    sketch.group(0, 1)
    return sketch.build()


def test_tasks_that_wait_for_each_other_are_told_first_as_a_ring():
    job, durations = held_by_a_task()
    with pytest.raises(ReplayStalledError) as error:
        replay(job, durations)
    assert str(error.value).splitlines()[1:] == [
        "cycle on rank 1: task 2 'meet' on lane 'gpu' waits for task 4 'launch'.",
        "cycle on rank 1: task 4 'launch' on lane 'host' waits for task 2 'meet'.",
        (
            "rank 0 wait in 'meet' (#0 of group 'all') for rank 1: on lane 'gpu', rank 1 is held "
            "at 'meet', which waits for 'launch'."
        ),
    ]


def test_a_task_that_waits_for_one_that_is_only_late_is_no_ring():
    job, _ = held_by_a_task()
    # Rank 1: nothing done on the stream, so that the host waits for what could run.
    lines = said(job, [0, 1, 1, 3])
    assert lines == [
        (
            "rank 0 wait in 'meet' (#0 of group 'all') for rank 1: on lane 'gpu', rank 1 is held "
            "in 'before'. The order of collectives differs between these ranks."
        )
    ]
