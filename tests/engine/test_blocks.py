"""Ranks dealt in blocks take the nanoseconds of one process, and say why as it does."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.engine.breakdown import Window, break_down
from perfmodel.engine.critical_path import critical_path
from perfmodel.engine.history import History
from perfmodel.engine.replay import replay
from perfmodel.execution import rank_block
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind, Role
from perfmodel.prediction.time_parts import sum_waits
from tests.execution.comparison import assert_same
from tests.execution.crew import replay_in_blocks
from tests.strategies import random_jobs


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
