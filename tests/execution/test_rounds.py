"""One replay over several blocks, here all in this process."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.replay import replay
from tests.execution.crew import replay_in_blocks
from tests.execution.jobs import alternating_job, crossed_job, paired_job


def test_a_round_is_needed_for_every_meeting_of_all():
    job, durations = alternating_job(ranks=4, meetings=10)

    _, crew = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert crew.rounds == 10


def test_groups_inside_a_block_take_no_round():
    job, durations = paired_job(pairs=4, tasks=20)

    # Blocks of 4 ranks hold two pairs each.
    _, crew = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert crew.rounds == 0


@pytest.mark.parametrize("block_count", [1, 2])
def test_a_job_that_stalls_says_who_waits_for_whom_as_it_does_in_one_process(block_count):
    job, durations = crossed_job()
    with pytest.raises(ReplayStalledError) as wanted:
        replay(job, durations)

    with pytest.raises(ReplayStalledError) as found:
        replay_in_blocks(job, durations, iterations=1, block_count=block_count)

    assert str(found.value) == str(wanted.value)
    assert "rank 0 wait in 'meet 0'" in str(found.value)
