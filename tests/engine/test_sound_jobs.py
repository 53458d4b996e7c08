"""Only a job that can run is laid out."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.errors import GraphError, ReplayStalledError
from perfmodel.engine.layout import lay_out_sound
from perfmodel.engine.replay import replay
from perfmodel.graph.audit import check_job
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import LaneKind
from tests.execution.jobs import alternating_job
from tests.strategies import JobSize, jobs, random_job


@given(made=jobs())
def test_a_sound_job_gets_through(made):
    assert lay_out_sound(made[0]).r_task[-1] == made[0].task_count


def changed(column: str, row: int, value: int):
    job, _ = alternating_job(ranks=3, members=2)
    program = job.programs[0]
    values = getattr(program, column).copy()
    values[row] = value
    own = replace(program, **{column: values})
    return replace(job, programs=(program, own), rank_program=np.array([0, 1, 0], dtype=np.int32))


# Tasks: work, meet, work, meet.
FAULTS = {
    "an op that does not exist": ("op", 0, 99),
    "a label that does not exist": ("label", 2, -1),
    "a slot that no rank has": ("slot", 1, 7),
    "a rendezvous left out": ("sequence", 3, 2),
    "a rendezvous twice": ("sequence", 3, 0),
    "one who meets no more": ("slot", 3, -1),
    "lanes that do not cover": ("lane_start", 1, 3),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_job_that_the_audit_refuses_does_not_get_through(fault):
    job = changed(*fault)
    assert verdict(lay_out_sound, job) is not None


@pytest.mark.parametrize("column", ["slot", "dep_start", "dep_lag_ns"])
def test_columns_of_different_lengths_are_refused_by_the_audit(column):
    job, _ = alternating_job(ranks=3, members=2)
    program = job.programs[0]
    longer = replace(program, **{column: np.append(getattr(program, column), 0)})
    with pytest.raises(GraphError, match=f"column {column} must have"):
        check_job(replace(job, programs=(longer,)))


@pytest.mark.parametrize(("source", "lag_ns"), [(0, 0), (4, 0), (-1, 0), (1, -5)])
def test_a_dependency_that_the_audit_refuses_does_not_get_through(source, lag_ns):
    job, _ = alternating_job(ranks=3, members=2)
    program = replace(
        job.programs[0],
        dep_start=np.array([0, 1, 1, 1, 1], dtype=np.int32),
        dep_task=np.array([source], dtype=np.int32),
        dep_anchor=np.zeros(1, dtype=np.uint8),
        dep_distance=np.zeros(1, dtype=np.uint8),
        dep_lag_ns=np.array([lag_ns], dtype=np.int64),
    )

    with pytest.raises(GraphError):
        lay_out_sound(replace(job, programs=(program,)))


def test_a_rendezvous_where_everybody_waits_does_not_get_through():
    job, _ = alternating_job(ranks=3, members=2)
    waiting = replace(job.programs[0], role=np.array([0, 3, 0, 2], dtype=np.uint8))

    with pytest.raises(GraphError, match="none signals"):
        lay_out_sound(replace(job, programs=(waiting,)))


def verdict(judge, job) -> str | None:
    try:
        judge(job)
    except GraphError as fault:
        return str(fault)
    return None


WRONG = ("op", "label", "slot", "sequence", "role", "dep_task", "dep_lag_ns", "dep_distance")


def damaged(seed: int):
    """A random job with a number in it that may be wrong."""
    source = random.Random(seed)
    job = random_job(seed).job
    which = source.choice(["program", "program", "program", "lanes", "ranks", "slots", "groups"])
    step = source.choice([-2, -1, 1, 2])
    if which == "ranks":
        return replace(job, rank_program=changed_at(source, job.rank_program, step))
    if which == "slots":
        return replace(job, rank_group=changed_at(source, job.rank_group, step))
    if which == "groups" and job.groups:
        place = source.randrange(len(job.groups))
        ranks = changed_at(source, np.array(job.groups[place].ranks), step).tolist()
        group = replace(job.groups[place], ranks=tuple(ranks))
        return replace(job, groups=(*job.groups[:place], group, *job.groups[place + 1 :]))
    place = source.randrange(len(job.programs))
    program = job.programs[place]
    if which == "lanes":
        starts = program.lane_start.copy()
        starts[source.choice([0, -1])] += step
        program = replace(program, lane_start=starts)
    else:
        column = source.choice(WRONG)
        values = getattr(program, column)
        program = replace(program, **{column: changed_at(source, values, step)})
    return replace(job, programs=(*job.programs[:place], program, *job.programs[place + 1 :]))


def changed_at(source, values, step: int):
    changed = values.astype(np.int64)
    if changed.size:
        changed.flat[source.randrange(changed.size)] += step
    return changed.astype(values.dtype)


@pytest.mark.parametrize("hundred", range(4))
def test_whatever_is_wrong_a_job_is_refused_or_replayed_to_its_end_or_stalls(hundred):
    refused = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        job = damaged(seed)
        wrong = verdict(lay_out_sound, job)
        refused += wrong is not None
        if wrong is None:
            ones = np.ones((max(one.task_count for one in job.programs), 1), dtype=np.int64)
            durations = DurationTable(ones, np.zeros(job.rank_count, dtype=np.int64))
            with suppress(ReplayStalledError):
                assert replay(job, durations).iteration_end_ns[0, 0] > 0
    assert 30 < refused < 95


def test_a_job_without_ranks_or_groups_is_judged_too():
    job, _ = alternating_job(ranks=3, members=2)
    empty = replace(job, rank_program=job.rank_program[:0], rank_group=job.rank_group[:0])
    assert verdict(lay_out_sound, empty) is not None
    alone = random_job(3, JobSize(channels=0)).job
    assert verdict(lay_out_sound, alone) is None


@pytest.mark.parametrize(("sizes", "is_alike"), [((8, 8), True), ((8, 9), False)])
def test_partners_make_the_same_call(sizes, is_alike):
    sketch = JobBuilder()
    for size in sizes:
        program = sketch.new_program()
        lane = program.add_lane("gpu", LaneKind.COMPUTE)
        call = Communication(Collective(CollectiveKind.ALL_REDUCE, size))
        program.add_task(lane, call, label="call", slot=0)
        sketch.add_rank(sketch.add_program(program.build()))
    sketch.add_group("all", range(2), slot=0)
    job = sketch.build(JobFacts("calls"))
    assert (verdict(lay_out_sound, job) is None) is is_alike
