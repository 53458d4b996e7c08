"""A block that knows which round it is in."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.block import Arrivals, no_arrivals
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.graph.durations import DurationTable
from tests.execution.jobs import alternating_job

BEGIN = Order(0, 0, no_arrivals(1)).to_bytes()


def first_half() -> RankBlock:
    job, durations = alternating_job(ranks=4, meetings=3)
    return RankBlock(job, durations, Assignment(range(2), kept_iterations=1))


def test_the_last_round_can_be_asked_for_again():
    block = first_half()

    report = block.advance(BEGIN)

    assert block.advance(BEGIN) == report
    # It waits in the first of three meetings, and reports that once in all.
    assert Report.from_bytes(report).arrivals.rendezvous.tolist() == [[0, 0]]


def test_a_round_that_was_left_out_is_refused():
    block = first_half()
    block.advance(BEGIN)

    with pytest.raises(ExecutionError, match="next round must be number 1, got 2"):
        block.advance(Order(2, 0, no_arrivals(1)).to_bytes())


def test_an_older_round_is_refused():
    block = first_half()
    block.advance(BEGIN)
    met = Arrivals(np.array([[0, 0]]), np.array([[5_000]]))
    block.advance(Order(1, 0, met).to_bytes())

    with pytest.raises(ExecutionError, match="next round must be number 2, got 0"):
        block.advance(BEGIN)


def test_durations_that_cannot_be_written_need_no_new_compilation():
    from perfmodel.engine.advance import advance

    job, durations = alternating_job(ranks=4, meetings=3)
    first_half().advance(BEGIN)
    compiled = len(advance.signatures)
    values_ns = durations.values_ns.copy()
    values_ns.flags.writeable = False
    locked = DurationTable(values_ns, durations.rank_offset)

    block = RankBlock(job, locked, Assignment(range(2), kept_iterations=1))

    assert block.advance(BEGIN) == first_half().advance(BEGIN)
    assert len(advance.signatures) == compiled
