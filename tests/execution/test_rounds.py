"""One replay over several blocks, here all in this process."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.replay import Replay, Timeline, kept_iterations, replay
from perfmodel.engine.stall import explain_stall
from perfmodel.execution import rank_block
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.parts import deal_ranks, find_crossings, take_durations, take_part
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.ray_executor import FarKeeper, build_whole, gather_heads
from perfmodel.execution.rounds import run_rounds
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, crossed_job, paired_job
from tests.strategies import random_jobs


class CrewHere:
    """All blocks in this process; orders are worked off in an order that *source* draws.

    By chance a block is lost and made again from its log.
    """

    def __init__(self, job, durations, *, blocks, iterations, source=None):
        kept = kept_iterations(job, iterations)
        self._make = lambda ranks: RankBlock(
            take_part(job, ranks),
            take_durations(job, durations, ranks),
            Assignment(ranks, iterations, kept),
        )
        self._ranks = blocks
        self._source = source
        self.rank_blocks = [self._make(ranks) for ranks in blocks]
        self.logs = [[] for _ in blocks]
        self.heard = [0] * len(blocks)
        self.rounds = 0

    @property
    def awaited(self):
        return [block.awaited for block in self.rank_blocks]

    def tell(self, orders):
        self.rounds += any(len(news) for told in orders.values() for news in told)
        for block, told in orders.items():
            for news in told:
                self.logs[block].append(Order(len(self.logs[block]), news).to_bytes())

    def hear(self):
        waiting = [block for block, log in enumerate(self.logs) if self.heard[block] < len(log)]
        block = self._source.choice(waiting) if self._source else waiting[0]
        if self._source and self._source.random() < 0.1:
            self.rank_blocks[block] = self._make(self._ranks[block])
            self.rank_blocks[block].catch_up(self.logs[block][: self.heard[block]])
        message = self.logs[block][self.heard[block]]
        report = self.rank_blocks[block].advance(message)
        assert self.rank_blocks[block].advance(message) == report
        self.heard[block] += 1
        return [(block, Report.from_bytes(report))]

    def ask_all(self, method, *words):
        return [getattr(block, method)(*words) for block in self.rank_blocks]


def replay_in_blocks(job, durations, *, iterations, block_count, source=None):
    blocks = deal_ranks(job, block_count=block_count)
    crew = CrewHere(job, durations, blocks=blocks, iterations=iterations, source=source)
    vectors = durations.vector_count
    if not run_rounds(crew, find_crossings(job, blocks), vector_count=vectors):
        raise explain_stall(job, gather_heads(crew.ask_all("heads")))
    keeper = FarKeeper(crew, build_whole(job, blocks, vectors))
    kept = range(iterations - kept_iterations(job, iterations), iterations)
    lane_now_ns = np.concatenate(crew.ask_all("lane_now_ns"), axis=1)
    return Replay(tuple(Timeline(index, keeper) for index in kept), lane_now_ns), crew


@given(made=random_jobs(), block_count=st.integers(1, 6))
def test_any_number_of_blocks_gives_the_same_bits_as_one_process(made, block_count):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    found, _ = replay_in_blocks(
        made.job, made.durations, iterations=made.iterations, block_count=block_count
    )

    assert_same(found, wanted)


@pytest.mark.parametrize("patience", [0, 1, 5])
@given(made=random_jobs(), block_count=st.integers(1, 4), source=st.randoms())
def test_however_slow_blocks_are_and_whoever_is_lost_the_bits_are_the_same(
    patience, made, block_count, source
):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    with mock_patience(patience):
        found, _ = replay_in_blocks(
            made.job,
            made.durations,
            iterations=made.iterations,
            block_count=block_count,
            source=source,
        )

    assert_same(found, wanted)


@contextmanager
def mock_patience(tasks):
    before, rank_block.PATIENCE = rank_block.PATIENCE, tasks
    yield
    rank_block.PATIENCE = before


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
