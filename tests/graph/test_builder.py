"""What cannot be a program or a job is refused when it is built."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import GraphError
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind


def written(job, *words, **more):
    """A builder with a task on one lane for each of *words*."""
    program = job.new_program()
    lane = program.add_lane("gpu", LaneKind.COMPUTE)
    for word in words:
        program.add_task(lane, Fixed(word, 1), label="x", **more)
    return program


def test_a_dependency_on_a_task_that_is_not_there_is_refused_when_it_is_built():
    program = written(JobBuilder(), "only", after=[5])
    with pytest.raises(GraphError, match=r"must name a task of the same rank \(0 to 0\), got 5"):
        program.build()


def test_two_groups_behind_one_slot_are_refused():
    builder = JobBuilder()
    builder.add_rank(builder.add_program(written(builder, "only").build()))
    builder.add_group("a", [0], slot=0)
    builder.add_group("b", [0], slot=0)
    with pytest.raises(GraphError, match="slot 0 of rank 0 is taken by group 'a'"):
        builder.build(JobFacts("twice"))


def test_an_op_is_swapped_where_it_stands_once():
    job = JobBuilder()
    program = written(job, "once", "twice", "twice").build()
    once, twice, other, absent = (Fixed(word, 1) for word in ("once", "twice", "other", "absent"))
    swapped = job.swap_ops(program, [(once, other), (absent, twice)])
    assert swapped is not None
    assert swapped.op.tolist() == [2, 1, 1]
    assert program.op.tolist() == [0, 1, 1]
    assert job.swap_ops(program, [(twice, other)]) is None
