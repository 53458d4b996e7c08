"""What is true of what-ifs on any job."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.history import History
from perfmodel.engine.reasons import critical_path
from perfmodel.engine.replay import replay
from perfmodel.extensions.whatif import apply_all, parse_transformation
from perfmodel.extensions.whatif.drafts import edit_programs
from perfmodel.extensions.whatif.editing import find, remove
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.pinning import pin_durations
from perfmodel.extensions.whatif.selection import LaneWord, Numbers, Selection, lane_mask
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.program import PLAIN
from perfmodel.prediction.saved_jobs import is_pinned
from tests.strategies import random_jobs


def ask(job, text):
    return apply_all(job, [parse_transformation(text)])


def pinned(made):
    return pin_durations(made.job, made.durations.vectors(0, 1))


def ends_ns(job, iterations=3):
    return replay(job, stated_durations(job), iterations=iterations).last.end_ns


@given(made=random_jobs())
def test_stated_durations_are_those_that_were_pinned(made):
    job = pinned(made)

    assert is_pinned(job)
    given_ns = replay(made.job, made.durations.vectors(0, 1), iterations=3).last.end_ns
    assert np.array_equal(ends_ns(job), given_ns)


@given(made=random_jobs())
def test_no_change_at_all_changes_nothing(made):
    job = pinned(made)

    assert apply_all(job, []) is job


@given(made=random_jobs())
def test_scaling_by_one_changes_nothing_to_the_nanosecond(made):
    job = pinned(made)

    same = ask(job, "scale:match=task|meet,factor=1,lane=any")

    assert same.ops == job.ops
    assert np.array_equal(ends_ns(same), ends_ns(job))


@given(made=random_jobs(), factor=st.integers(2, 5))
def test_a_job_whose_tasks_all_take_longer_never_ends_earlier(made, factor):
    job = pinned(made)

    slower = ask(job, f"scale:match=task|meet,factor={factor},lane=any")

    assert (ends_ns(slower) >= ends_ns(job)).all()


@settings(deadline=None)
@given(made=random_jobs(), number=st.integers(0, 20))
def test_removing_a_task_never_makes_the_job_slower(made, number):
    job = pinned(made)
    selection = Selection(LabelPattern("task"), number=Numbers((number,)))
    plain = [program.task_count - int((program.slot != PLAIN).sum()) for program in job.programs]
    if all(count <= number for count in plain) or any(
        program.task_count <= 2 for program in job.programs
    ):
        return  # a task and its launch may be all that a rank has

    left = edit_programs(job, lambda program: remove(program, find(program, selection)))

    check_job(left)
    before = replay(job, stated_durations(job), iterations=3).iteration_end_ns
    after = replay(left, stated_durations(left), iterations=3).iteration_end_ns
    assert (after <= before).all()


@settings(deadline=None)
@given(made=random_jobs())
def test_removing_all_collectives_leaves_ranks_that_run_alone(made):
    job = pinned(made)
    if all((program.slot == PLAIN).all() for program in job.programs):
        return

    try:
        left = ask(job, "remove:match=meet")
    except ScenarioError:  # nothing would be left of a rank
        return

    assert all((program.slot == PLAIN).all() for program in left.programs)
    assert (ends_ns(left).max(initial=0) <= ends_ns(job).max(initial=0)).all()


@given(made=random_jobs())
def test_less_host_time_never_makes_the_job_slower(made):
    job = pinned(made)
    if not any(lane_mask(program, LaneWord.HOST).any() for program in job.programs):
        return

    faster = ask(job, "host_overhead")

    assert (ends_ns(faster) <= ends_ns(job)).all()


@given(made=random_jobs())
def test_ranks_made_alike_have_the_durations_of_the_others(made):
    job = pinned(made)
    if job.rank_count < 2:
        return

    changed = ask(job, "no_straggler:rank=0")

    check_job(changed)
    assert changed.rank_count == job.rank_count
    replay(changed, stated_durations(changed))


@given(made=random_jobs(), source=st.randoms(use_true_random=False))
def test_two_changes_save_no_less_than_one_of_them_and_no_more_than_their_time_on_the_path(
    made, source
):
    # Parallel chains gain only together, so two may save more than the sum of what each saves
    # alone; but what they take off the critical path bounds it. If each alone saves all that it
    # takes off the path, that is the sum of their parts.
    job, was = made.job, made.durations.vectors(0, 1)
    owner = np.array([source.randrange(3) for _ in was.values_ns])
    factor = source.choice([0, 1, 2])

    def without(*changes):
        lost_ns = was.values_ns - was.values_ns * factor // 3
        kept = was.values_ns - np.where(np.isin(owner, changes)[:, None], lost_ns, 0)
        return DurationTable(kept, was.rank_offset)

    def span_ns(*changes):
        return int(replay(job, without(*changes)).iteration_end_ns[0, 0])

    on_path_ns = [0, 0]
    for step in critical_path(History(job, was, replay(job, was)), from_ns=0):
        row = was.row_of(job, step.at.rank, step.at.task)
        if owner[row] < 2 and step.to_ns - step.from_ns > step.lag_ns:
            on_path_ns[owner[row]] += int((was.values_ns - without(0, 1).values_ns)[row, 0])
    saved_ns = [span_ns() - span_ns(*changes) for changes in ((0,), (1,), (0, 1))]

    assert max(saved_ns[:2]) <= saved_ns[2] <= sum(on_path_ns)
    assert all(saved <= most for saved, most in zip(saved_ns[:2], on_path_ns, strict=True))
