"""One replay over several blocks, here all in this process."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.breakdown import Window, break_down
from perfmodel.engine.critical_path import critical_path
from perfmodel.engine.history import History
from perfmodel.engine.layout import max_distance
from perfmodel.engine.replay import Replay, Timeline, kept_of_reach, replay
from perfmodel.engine.stall import explain_stall
from perfmodel.execution import rank_block
from perfmodel.execution.messages import Order, Report
from perfmodel.execution.parts import deal_ranks, find_crossings, take_durations, take_part
from perfmodel.execution.rank_block import Assignment, RankBlock
from perfmodel.execution.ray_executor import FarKeeper, build_whole, gather_heads
from perfmodel.execution.rounds import run_rounds
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind, Role
from perfmodel.prediction.time_parts import sum_waits
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, crossed_job, paired_job
from tests.strategies import random_jobs


class CrewHere:
    """All blocks in this process; orders are worked off in an order that *source* draws.

    By chance a block is lost and made again from its log. Of a *stored* job each reads its part.
    """

    def __init__(self, job, durations, *, blocks, iterations, source=None, stored=None):
        kept = kept_of_reach(max_distance(job), iterations)
        self.assignments = [Assignment(ranks, iterations, kept) for ranks in blocks]
        self._make = lambda ranks: RankBlock(
            take_part(job, ranks) if stored is None else stored,
            take_durations(job, durations, ranks) if stored is None else durations,
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

    def ask(self, block, method, *words):
        return getattr(self.rank_blocks[block], method)(*words)

    def ask_all(self, method, *words):
        return self.ask_each(method, [words] * len(self.rank_blocks))

    def ask_each(self, method, words):
        return [self.ask(block, method, *of_block) for block, of_block in enumerate(words)]


def replay_in_blocks(job, durations, *, iterations, block_count, source=None, stored=None):
    blocks = deal_ranks(job, block_count=block_count)
    crew = CrewHere(
        job, durations, blocks=blocks, iterations=iterations, source=source, stored=stored
    )
    vectors, crossings = durations.vector_count, find_crossings(job, blocks)
    if not run_rounds(crew, crossings, vector_count=vectors):
        raise explain_stall(job, gather_heads(crew.ask_all("heads")))
    whole = build_whole(job, blocks, crossings.rendezvous, vectors)
    keeper = FarKeeper(crew, whole, crossings)
    kept = range(iterations - kept_of_reach(max_distance(job), iterations), iterations)
    lane_now_ns = np.concatenate(crew.ask_all("lane_now_ns"), axis=1)
    return Replay(tuple(Timeline(index, keeper) for index in kept), lane_now_ns, keeper), crew


@given(made=random_jobs(), block_count=st.integers(1, 6))
def test_any_number_of_blocks_gives_the_same_bits_as_one_process(made, block_count):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    found, _ = replay_in_blocks(
        made.job, made.durations, iterations=made.iterations, block_count=block_count
    )

    assert_same(found, wanted)


@given(made=random_jobs(), block_count=st.integers(2, 5))
def test_blocks_explain_what_they_keep_as_one_process_does(made, block_count):
    words = (made.job, made.durations)
    near = History(*words, replay(*words, iterations=made.iterations))
    found, crew = replay_in_blocks(*words, iterations=made.iterations, block_count=block_count)
    far = History(*words, found)
    end_ns = int(near.replay.iteration_end_ns[-1, 0])
    window = Window(end_ns // 3, end_ns)
    asked = []
    crew.ask = lambda block, method, *words: (
        asked.append(method) or getattr(crew.rank_blocks[block], method)(*words)
    )

    assert critical_path(far, from_ns=0) == critical_path(near, from_ns=0)
    for function in (break_down, sum_waits):
        assert far.by_rank(function, window) == near.by_rank(function, window)
    # Reduced where it is kept: nobody took a timeline.
    assert not {"end_ns", "member_ready_ns"} & set(asked)


def test_a_block_remembers_what_was_resolved_of_iterations_to_come():
    # A root never waits, so its block is done before that of the receiver has begun.
    builder = JobBuilder()
    for role in (Role.SIGNALS, Role.WAITS):
        program = builder.new_program()
        lane = program.add_lane("compute", LaneKind.COMPUTE)
        program.add_task(lane, Fixed("work", 0), label="work")
        program.add_rendezvous(lane, Fixed("cast", 0), label="cast", slot=0, role=role)
        builder.add_rank(builder.add_program(program.build()))
    builder.add_group("world", [0, 1], slot=0)
    job = builder.build(JobFacts("broadcast"))
    durations = build_durations(job, [np.array([10, 1]), np.array([2, 1])])

    found, _ = replay_in_blocks(job, durations, iterations=3, block_count=2)

    # The root is ready at 10, 21 and 32, and the receiver takes 1 ns from then on.
    assert found.iteration_end_ns[:, 0].tolist() == [11, 22, 33]
    assert_same(found, replay(job, durations, iterations=3))


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
