"""A block that knows which round it is in."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals, no_arrivals
from perfmodel.execution.parts import take_durations, take_part
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.rounds import Message
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from tests.benchmarks.graphs import give_own_programs
from tests.execution.jobs import alternating_job

BEGIN = Message(0, no_arrivals(1)).to_bytes()


def first_half(*, is_locked: bool = False) -> RankBlock:
    job, durations = alternating_job(ranks=4, members=3)
    table = take_durations(job, durations, range(2))
    if is_locked:
        values_ns = table.values_ns.copy()
        values_ns.flags.writeable = False
        table = DurationTable(values_ns, table.rank_offset)
    assignment = Assignment(range(2), iterations=1, kept_iterations=1)
    return RankBlock(take_part(job, range(2)), table, assignment)


def test_the_last_round_can_be_asked_for_again():
    block = first_half()

    report = block.advance(BEGIN)

    assert block.advance(BEGIN) == report
    # It waits in the first of three members, and reports that once in all.
    assert Message.from_bytes(report).arrivals.rendezvous.tolist() == [[0, 0, 0]]


def test_only_the_last_round_and_the_next_are_taken():
    block = first_half()
    block.advance(BEGIN)
    with pytest.raises(ExecutionError, match="next round must be number 1, got 2"):
        block.advance(Message(2, no_arrivals(1)).to_bytes())

    met = Arrivals(np.array([[0, 0, 0]]), np.array([[5_000]]))
    block.advance(Message(1, met).to_bytes())
    with pytest.raises(ExecutionError, match="next round must be number 2, got 0"):
        block.advance(BEGIN)


def test_durations_that_cannot_be_written_need_no_new_compilation():
    from perfmodel.engine.advance import advance

    first_half().advance(BEGIN)
    compiled = len(advance.signatures)

    block = first_half(is_locked=True)

    assert block.advance(BEGIN) == first_half().advance(BEGIN)
    assert len(advance.signatures) == compiled


def test_a_block_says_what_others_wait_for_before_it_walks_on():
    job, durations = two_lanes()
    # Rank 0 alone: it works on one lane and meets rank 1 on the other.
    block = RankBlock(take_part(job, range(1)), durations, Assignment(range(1), 1, 1))
    first = Message.from_bytes(block.advance(BEGIN))
    met = Arrivals(np.array([[0, 0, 0]]), np.array([[50]]))

    second = Message.from_bytes(block.advance(Message(1, met).to_bytes()))
    third = Message.from_bytes(block.advance(Message(2, no_arrivals(1)).to_bytes()))

    assert first.arrivals.rendezvous.tolist() == [[0, 0, 0]]
    # The second rendezvous needs only the first: it is told before the work after that is walked.
    assert second.arrivals.rendezvous.tolist() == [[0, 0, 1]]
    assert second.can_walk
    assert not third.can_walk
    assert len(third.arrivals) == 0


def test_a_part_holds_only_what_its_ranks_need():
    job = give_own_programs(alternating_job(ranks=4, members=3)[0])

    part = take_part(job, range(1, 3))

    assert len(part.job.programs) == 2
    assert part.job.programs[0].slot is job.programs[1].slot
    assert len(part.job.programs[0].label) == 0
    assert part.groups.tolist() == [0]
    assert part.external.tolist() == [True]


def test_durations_that_ranks_share_travel_once():
    job, _ = alternating_job(ranks=4, members=1)
    values_ns = np.arange(6).reshape(-1, 1)
    # Ranks 0 and 2 read rows 0 and 1, rank 1 rows 2 and 3, rank 3 rows 4 and 5.
    durations = DurationTable(values_ns, np.array([0, 2, 0, 4]))

    table = take_durations(job, durations, range(2, 4))

    assert table.values_ns[:, 0].tolist() == [0, 1, 4, 5]
    assert table.rank_offset.tolist() == [0, 2]


def two_lanes():
    builder = JobBuilder()
    program = builder.new_program()
    work = program.add_lane("compute", LaneKind.COMPUTE)
    talk = program.add_lane("communication", LaneKind.COMMUNICATION)
    first = program.add_task(talk, Fixed("meet", 0), label="meet", slot=0)
    program.add_task(talk, Fixed("meet", 0), label="meet", slot=0)
    program.add_task(work, Fixed("work", 0), label="work", after=[first])
    number = builder.add_program(program.build())
    builder.add_group("pair", [builder.add_rank(number) for _ in range(2)], slot=0)
    job = builder.build(JobFacts("two lanes"))
    return job, DurationTable(np.ones((3, 1), dtype=np.int64), np.zeros(2, dtype=np.int64))
