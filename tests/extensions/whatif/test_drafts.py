"""Editing programs: what is taken out leaves sound dependencies behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.extensions.whatif.drafts import JobDraft, ProgramDraft, edit_programs
from perfmodel.extensions.whatif.pinning import pin_durations
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import build_durations
from perfmodel.graph.program import PLAIN, Dependency, LaneKind
from tests.builders import JobSketch
from tests.extensions.whatif.jobs import times
from tests.strategies import JobSize, random_jobs


def remove_labels(job, *labels):
    def edit(program):
        names = program.draft.labels
        program.remove(n for n, task in program.tasks.items() if names[task.label] in labels)

    return edit_programs(job, edit)


def sketch(lanes, *tasks):
    """A job of one rank: its lanes by name, and tasks as (name, lane, ns, waits)."""
    made = JobSketch()
    rank = made.rank(**lanes)
    for name, lane, duration_ns, after in tasks:
        rank.task(name, lane, duration_ns, after=after)
    return made.build()[0]


HOST_AND_STREAMS = {
    "host": LaneKind.HOST, "stream": LaneKind.COMPUTE, "other": LaneKind.COMPUTE,
}  # fmt: skip
LAUNCHED = (("launch", "host", 10, ()), ("kernel", "stream", 50, ["launch"]))


@pytest.mark.parametrize(
    ("tasks", "before", "after"),
    [
        # launch 0..10, kernel 10..60, middle 60..90, end 90..95; without the middle end is 60..65.
        (
            [("middle", "other", 30, ["kernel"]), ("end", "stream", 5, ["middle"])],
            (90, 95),
            (60, 65),
        ),
        # The next task of a lane waits for what a removed one waited for.
        ([("middle", "host", 3, ["kernel"]), ("end", "host", 7, ())], (63, 70), (60, 67)),
    ],
)
def test_whoever_waited_for_a_removed_task_waits_for_what_it_waited_for(tasks, before, after):
    job = sketch(HOST_AND_STREAMS, *LAUNCHED, *tasks)

    assert times(job)["0/end"] == before
    assert times(remove_labels(job, "middle"))["0/end"] == after


def test_lags_and_distances_add_up_over_a_removed_task():
    job = sketch(
        dict.fromkeys(("one", "two", "three"), LaneKind.COMPUTE),
        ("first", "one", 10, ()),
        ("middle", "two", 4, [Dependency(0, lag_ns=2, distance=1)]),
        ("last", "three", 6, [Dependency(1, lag_ns=3, distance=1)]),
    )
    program = remove_labels(job, "middle").programs[0]

    # Whether it is the lane of `middle` or `first` that made it late, two iterations lie between.
    assert program.dep_task.tolist() == [0]
    assert program.dep_lag_ns.tolist() == [5]
    assert program.dep_distance.tolist() == [2]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # a 0..10, b 13..23, c 28..38: without b its gap is gone, and c keeps its own.
        (lambda program: program.remove([1]), {"0/a": (0, 10), "0/c": (15, 25)}),
        # On a lane of its own nothing is ahead of b.
        (
            lambda program: program.move(1, program.add_lane("apart", LaneKind.COMPUTE)),
            {"0/a": (0, 10), "0/b": (0, 10), "0/c": (15, 25)},
        ),
        (lambda program: None, {"0/a": (0, 10), "0/b": (13, 23), "0/c": (28, 38)}),
    ],
)
def test_a_gap_is_behind_whatever_is_ahead_on_the_lane(edit, expected):
    job = sketch(
        {"stream": LaneKind.COMPUTE},
        ("a", "stream", 10, ()),
        ("b", "stream", 10, [Dependency(0, lag_ns=3)]),
        ("c", "stream", 10, [Dependency(1, lag_ns=5)]),
    )

    assert times(edit_programs(job, edit)) == expected


def test_collectives_are_numbered_again_without_the_removed_one():
    made = JobSketch()
    for _ in range(2):
        rank = made.rank(stream=LaneKind.COMMUNICATION)
        for name in ("a", "b", "c"):
            rank.meet(name, "stream", 10)
    made.group(0, 1)
    job, _ = made.build()

    left = remove_labels(job, "b")

    check_job(left)
    assert left.programs[0].sequence.tolist() == [0, 1]
    assert times(left)["1/c"] == (10, 20)


def test_a_task_can_be_put_in_and_moved_to_a_lane_of_its_own():
    stream = {"stream": LaneKind.COMPUTE}
    job = sketch(stream, ("a", "stream", 10, ()), ("b", "stream", 20, ()))

    def edit(program):
        op = replace(program.op(0), name="new", duration_ns=5)
        program.insert([program.new_task(0, op, "new")], before=1)
        program.move(0, program.add_lane("apart", LaneKind.COMPUTE))

    changed = edit_programs(job, edit)

    # new 0..5 and b 5..25 on the stream; a 0..10 beside them.
    assert times(changed) == {"0/new": (0, 5), "0/b": (5, 25), "0/a": (0, 10)}


def test_a_rank_without_any_task_is_refused():
    job = sketch({"stream": LaneKind.COMPUTE}, ("a", "stream", 10, ()))

    with pytest.raises(ScenarioError, match="Narrow the pattern"):
        remove_labels(job, "a")


@given(made=random_jobs())
def test_an_unchanged_draft_is_the_same_program(made):
    for program in made.job.programs:
        same = ProgramDraft(JobDraft(made.job), program, rank=0).build()
        for name, column in program.columns().items():
            if not name.startswith("dep_"):
                assert np.array_equal(getattr(same, name), column)
        assert same.lanes == program.lanes
        assert len(same.dep_task) <= len(program.dep_task)


@settings(deadline=None)
@given(made=random_jobs(), picked=st.randoms(use_true_random=False))
def test_a_removed_task_counts_as_one_that_takes_no_time(made, picked):
    job = pin_durations(made.job, made.durations.vectors(0, 1))
    labels = {
        job.labels[label]
        for program in job.programs
        for label in program.label[program.slot == PLAIN].tolist()
    }
    gone = {label for label in sorted(labels) if picked.random() < 0.3}
    kept_masks = [
        np.array([job.labels[label] not in gone for label in program.label.tolist()])
        for program in job.programs
    ]
    if not all(mask.any() for mask in kept_masks):
        return
    left = remove_labels(job, *gone)
    check_job(left)

    durations = stated_durations(job)
    rows = [
        np.where(kept_masks[int(program)], durations.of_rank(job, rank)[:, 0], 0)
        for rank, program in enumerate(job.rank_program)
    ]
    idle = replay(job, build_durations(job, rows), iterations=made.iterations)
    gone_for_good = replay(left, stated_durations(left), iterations=made.iterations)

    flat = np.concatenate([kept_masks[int(program)] for program in job.rank_program])
    before, after = idle.last.end_ns[flat, 0], gone_for_good.last.end_ns[:, 0]
    assert (after <= before).all()
    if not any(program.dep_lag_ns.any() for program in job.programs):
        assert np.array_equal(after, before)


@given(made=random_jobs(JobSize(distance=0)))
def test_a_job_of_one_iteration_never_waits_for_earlier_ones_after_a_removal(made):
    job = pin_durations(made.job, made.durations.vectors(0, 1))
    left = remove_labels(job, *[label for label in job.labels if label.endswith("0")][1:])

    for program in left.programs:
        assert (program.dep_distance <= 2).all()
