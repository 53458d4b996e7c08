"""The sieve lets through what the audit lets through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from perfmodel.base.errors import GraphError
from perfmodel.engine.layout import build_layout
from perfmodel.engine.sieve import is_sound, lay_out_sound
from perfmodel.graph.audit import check_job
from tests.execution.jobs import alternating_job
from tests.strategies import jobs


@given(made=jobs())
def test_a_sound_job_gets_through(made):
    job, _ = made

    assert is_sound(job, build_layout(job))


def changed(column: str, row: int, value: int):
    job, _ = alternating_job(ranks=3, meetings=2)
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
    "a meeting left out": ("sequence", 3, 2),
    "a meeting twice": ("sequence", 3, 0),
    "one who meets no more": ("slot", 3, -1),
    "lanes that do not cover": ("lane_start", 1, 3),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_job_that_the_audit_refuses_does_not_get_through(fault):
    job = changed(*fault)
    with pytest.raises(GraphError) as wanted:
        check_job(job)

    with pytest.raises(GraphError) as found:
        lay_out_sound(job)

    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize(("source", "lag_ns"), [(0, 0), (4, 0), (-1, 0), (1, -5)])
def test_a_dependency_that_the_audit_refuses_does_not_get_through(source, lag_ns):
    job, _ = alternating_job(ranks=3, meetings=2)
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


def test_a_meeting_where_everybody_waits_does_not_get_through():
    job, _ = alternating_job(ranks=3, meetings=2)
    waiting = replace(job.programs[0], role=np.array([0, 3, 0, 2], dtype=np.uint8))

    with pytest.raises(GraphError, match="nobody signals"):
        lay_out_sound(replace(job, programs=(waiting,)))
