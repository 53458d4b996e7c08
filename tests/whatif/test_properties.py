"""What is true of what-ifs on any job."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ScenarioError
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.graph.audit import check_job
from perfmodel.graph.program import PLAIN
from perfmodel.whatif import apply_all, parse_transformation
from perfmodel.whatif.durations import HostOverhead, Scale
from perfmodel.whatif.editing import remove_tasks
from perfmodel.whatif.hosts import RemoveStraggler
from perfmodel.whatif.pinning import is_pinned, pin_durations
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, Selection, lane_mask
from perfmodel.whatif.transformation import edit_programs
from tests.strategies import random_jobs

EVERYTHING = Pattern("task|meet")


def pinned(made):
    return pin_durations(made.job, made.durations.vector(0))


def ends_ns(job, iterations=3):
    return replay(job, stated_durations(job), iterations=iterations).last.end_ns


@given(made=random_jobs())
def test_stated_durations_are_those_that_were_pinned(made):
    job = pinned(made)

    assert is_pinned(job)
    given_ns = replay(made.job, made.durations.vector(0), iterations=3).last.end_ns
    assert np.array_equal(ends_ns(job), given_ns)


@given(made=random_jobs())
def test_no_change_at_all_changes_nothing(made):
    job = pinned(made)

    assert apply_all(job, []) is job


@given(made=random_jobs())
def test_scaling_by_one_changes_nothing_to_the_nanosecond(made):
    job = pinned(made)

    same = apply_all(job, [Scale(match=EVERYTHING, factor=1.0, lane=LaneWord.ANY)])

    assert same.ops == job.ops
    assert np.array_equal(ends_ns(same), ends_ns(job))


@given(made=random_jobs(), factor=st.integers(2, 5))
def test_a_job_whose_tasks_all_take_longer_never_ends_earlier(made, factor):
    job = pinned(made)

    slower = apply_all(job, [Scale(match=EVERYTHING, factor=factor, lane=LaneWord.ANY)])

    assert (ends_ns(slower) >= ends_ns(job)).all()


@settings(deadline=None)
@given(made=random_jobs(), number=st.integers(0, 20))
def test_removing_a_task_never_makes_the_job_slower(made, number):
    job = pinned(made)
    selection = Selection(Pattern("task"), number=Numbers((number,)))
    plain = [program.task_count - int((program.slot != PLAIN).sum()) for program in job.programs]
    if all(count <= number for count in plain) or any(
        program.task_count == 1 for program in job.programs
    ):
        return

    left = edit_programs(job, lambda program: remove_tasks(program, selection))

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
        left = apply_all(job, [parse_transformation("remove:match=meet")])
    except ScenarioError:  # nothing would be left of a rank
        return

    assert all((program.slot == PLAIN).all() for program in left.programs)
    assert (ends_ns(left).max(initial=0) <= ends_ns(job).max(initial=0)).all()


@given(made=random_jobs())
def test_less_host_time_never_makes_the_job_slower(made):
    job = pinned(made)
    if not any(lane_mask(program, LaneWord.HOST).any() for program in job.programs):
        return

    faster = apply_all(job, [HostOverhead(factor=0.0)])

    assert (ends_ns(faster) <= ends_ns(job)).all()


@given(made=random_jobs())
def test_ranks_made_alike_have_the_durations_of_the_others(made):
    job = pinned(made)
    if job.rank_count < 2:
        return
    rank = RemoveStraggler(rank=parse_transformation("no_straggler:rank=0").rank)

    changed = apply_all(job, [rank])

    check_job(changed)
    assert changed.rank_count == job.rank_count
    replay(changed, stated_durations(changed))
