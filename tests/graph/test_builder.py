"""What cannot be a program or a job is refused when it is built."""

from __future__ import annotations

import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.errors import GraphError
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Communication, Fixed
from perfmodel.graph.program import LaneKind


def test_a_dependency_on_a_task_that_is_not_there_is_refused_when_it_is_built():
    program = JobBuilder().new_program()
    lane = program.add_lane("gpu", LaneKind.COMPUTE)
    call = Communication(Collective(CollectiveKind.BARRIER, 0))
    program.add_task(lane, call, label="only", after=[5])
    with pytest.raises(GraphError, match=r"must name a task of the same rank \(0 to 0\), got 5"):
        program.build()


def test_two_groups_behind_one_slot_are_refused():
    builder = JobBuilder()
    program = builder.new_program()
    program.add_task(program.add_lane("gpu", LaneKind.COMPUTE), Communication(
        Collective(CollectiveKind.BARRIER, 0)), label="only")  # fmt: skip
    builder.add_rank(builder.add_program(program.build()))
    builder.add_group("a", [0], slot=0)
    builder.add_group("b", [0], slot=0)
    with pytest.raises(GraphError, match="slot 0 of rank 0 is taken by group 'a'"):
        builder.build(JobFacts("twice"))


def test_an_op_is_swapped_where_it_stands_once():
    job = JobBuilder()
    builder = job.new_program()
    lane = builder.add_lane("s", LaneKind.COMPUTE)
    once, twice, other = (Fixed(word, 1) for word in ("once", "twice", "other"))
    for op in (once, twice, twice):
        builder.add_task(lane, op, label="x")
    program = builder.build()
    absent = Fixed("absent", 1)
    swapped = job.swap_ops(program, [(once, other), (absent, twice)])
    assert swapped is not None
    assert swapped.op.tolist() == [2, 1, 1]
    assert program.op.tolist() == [0, 1, 1]
    assert job.swap_ops(program, [(twice, other)]) is None
