"""One replay over several blocks, here all in this process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.block import Arrivals
from perfmodel.engine.replay import kept_iterations, replay
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.ray_executor import deal_ranks, gather_replay, strip_job
from perfmodel.execution.rounds import run_rounds
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, crossed_job, paired_job
from tests.strategies import random_jobs


class CrewHere:
    """All blocks in this process; in the rounds of *lost* a block is made again from its log."""

    def __init__(self, job, durations, *, blocks, kept, lost=()):
        structure = strip_job(job)
        self._make = lambda ranks: RankBlock(structure, durations, Assignment(ranks, kept))
        self._ranks = blocks
        self._lost = dict(lost)
        self.rank_blocks = [self._make(ranks) for ranks in blocks]
        self.logs = [[] for _ in blocks]
        self.rounds = 0

    @property
    def awaited(self):
        return [block.awaited for block in self.rank_blocks]

    def advance(self, iteration: int, news: Mapping[int, Arrivals]):
        reports = {}
        for block, resolved in news.items():
            self.logs[block].append(Order(len(self.logs[block]), iteration, resolved).to_bytes())
            reports[block] = self.rank_blocks[block].advance(self.logs[block][-1])
        if self.rounds in self._lost:
            block = self._lost[self.rounds] % len(self._ranks)
            self.rank_blocks[block] = self._make(self._ranks[block])
            self.rank_blocks[block].catch_up(self.logs[block])
            if block in news:
                again = self.rank_blocks[block].advance(self.logs[block][-1])
                assert again == reports[block]
        self.rounds += 1
        return {block: Report.from_bytes(report) for block, report in reports.items()}

    def heads(self):
        return np.concatenate([block.heads for block in self.rank_blocks])


def replay_in_blocks(job, durations, *, iterations, block_count, lost=()):
    blocks = deal_ranks(job, block_count=block_count)
    kept = kept_iterations(job, iterations)
    crew = CrewHere(job, durations, blocks=blocks, kept=kept, lost=lost)
    run_rounds(job, crew, blocks=blocks, iterations=iterations, vector_count=durations.vector_count)
    return gather_replay(job, [block.collect() for block in crew.rank_blocks]), crew


@given(made=random_jobs(), block_count=st.integers(1, 6))
def test_any_number_of_blocks_gives_the_same_bits_as_one_process(made, block_count):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    found, _ = replay_in_blocks(
        made.job, made.durations, iterations=made.iterations, block_count=block_count
    )

    assert_same(found, wanted)


@given(
    made=random_jobs(),
    block_count=st.integers(1, 4),
    lost=st.dictionaries(st.integers(0, 12), st.integers(0, 3)),
)
def test_blocks_that_are_lost_and_made_again_give_the_same_bits(made, block_count, lost):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    found, _ = replay_in_blocks(
        made.job,
        made.durations,
        iterations=made.iterations,
        block_count=block_count,
        lost=lost.items(),
    )

    assert_same(found, wanted)


def test_a_round_is_needed_for_every_meeting_of_all_and_one_to_begin():
    job, durations = alternating_job(ranks=4, meetings=10)

    _, crew = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert crew.rounds == 11


def test_groups_inside_a_block_take_no_round():
    job, durations = paired_job(pairs=4, tasks=20)

    # Blocks of 4 ranks hold two pairs each.
    _, crew = replay_in_blocks(job, durations, iterations=1, block_count=2)

    assert crew.rounds == 1


@pytest.mark.parametrize("block_count", [1, 2])
def test_a_job_that_stalls_says_who_waits_for_whom_as_it_does_in_one_process(block_count):
    job, durations = crossed_job()
    with pytest.raises(ReplayStalledError) as wanted:
        replay(job, durations)

    with pytest.raises(ReplayStalledError) as found:
        replay_in_blocks(job, durations, iterations=1, block_count=block_count)

    assert str(found.value) == str(wanted.value)
    assert "rank 0 wait in 'meet 0'" in str(found.value)
