"""One replay over several blocks, here all in this process."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.block import Arrivals, no_arrivals
from perfmodel.engine.replay import replay
from perfmodel.execution.rounds import Message
from tests.execution.jobs import alternating_job, crossed_job, paired_job
from tests.execution.workers import replay_in_blocks

SAID = Arrivals(np.array([[0, 7, 1], [1, 9, 2]]), np.array([[100, 200, 300], [400, 500, 600]]))


@pytest.mark.parametrize("arrivals", [SAID, no_arrivals(3)])
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("can_walk", [True, False])
def test_a_message_arrives_as_it_was_sent(arrivals, is_done, can_walk):
    message = Message.from_bytes(Message(4, arrivals, is_done, can_walk).to_bytes())

    assert (message.number, message.is_done, message.can_walk) == (4, is_done, can_walk)
    for name in ("rendezvous", "ready_ns"):
        column = getattr(message.arrivals, name)
        assert np.array_equal(column, getattr(arrivals, name))
        # Numba would compile anew for arrays that cannot be written.
        assert column.flags.writeable


def test_a_message_without_rows_is_only_its_header():
    # Number, two flags, rows, vectors: 5 x 8 bytes.
    assert len(Message(0, no_arrivals(3)).to_bytes()) == 40


def test_a_round_is_needed_for_every_rendezvous_of_all():
    job, durations = alternating_job(ranks=4, members=10)

    _, workers = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert workers.rounds == 10


def test_groups_inside_a_block_take_no_round():
    job, durations = paired_job(pairs=4, tasks=20)

    # Blocks of 4 ranks hold two pairs each.
    _, workers = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert workers.rounds == 0


@pytest.mark.parametrize("block_count", [1, 2])
def test_a_job_that_stalls_says_who_waits_for_whom_as_it_does_in_one_process(block_count):
    job, durations = crossed_job()
    with pytest.raises(ReplayStalledError) as wanted:
        replay(job, durations)

    with pytest.raises(ReplayStalledError) as found:
        replay_in_blocks(job, durations, iterations=1, block_count=block_count)

    assert str(found.value) == str(wanted.value)
    assert "rank 0 wait in 'meet 0'" in str(found.value)
