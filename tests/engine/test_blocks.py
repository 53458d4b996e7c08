"""Ranks dealt in blocks take the nanoseconds of one process, and say why as it does."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.engine.block import Arrivals, BlockReplay, join_arrivals, no_arrivals
from perfmodel.engine.history import History, first_of_each, last_signals
from perfmodel.engine.layout import build_layout
from perfmodel.engine.reasons import Window, break_down, critical_path
from perfmodel.engine.replay import replay
from perfmodel.execution import rank_block
from perfmodel.execution.parts import take_durations, take_part
from perfmodel.graph.program import LaneKind, Role
from perfmodel.prediction.time_parts import sum_waits
from tests.builders import JobSketch, job_of
from tests.execution.comparison import assert_same
from tests.execution.workers import replay_in_blocks
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
    found, workers = replay_in_blocks(*words, iterations=made.iterations, block_count=block_count)
    far = History(*words, found)
    end_ns = int(near.replay.iteration_end_ns[-1, 0])
    window = Window(end_ns // 3, end_ns)
    asked = []
    workers.ask = lambda block, method, *words: (
        asked.append(method) or getattr(workers.rank_blocks[block], method)(*words)
    )

    assert critical_path(far, from_ns=0) == critical_path(near, from_ns=0)
    for function in (break_down, sum_waits):
        assert far.by_rank(function, window) == near.by_rank(function, window)
    # Reduced where it is kept: no timeline was fetched.
    assert not {"end_ns", "member_ready_ns"} & set(asked)


def test_a_block_remembers_what_was_resolved_of_iterations_to_come():
    # A root never waits, so its block is done before that of the receiver has begun.
    sketch = JobSketch()
    for role, work_ns in ((Role.SIGNALS, 10), (Role.WAITS, 2)):
        rank = sketch.rank(gpu=LaneKind.COMPUTE)
        rank.task("work", "gpu", work_ns)
        rank.meet("cast", "gpu", 1, role=role)
    sketch.group(0, 1)
    job, durations = sketch.build()

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


def lone_block():
    """Rank 0 of two: it meets the other on one lane, and works on three others."""
    work = "; ".join(f"{lane} {lane}{n} 10" for lane in ("gpu", "side", "copy") for n in range(3))
    job, durations = job_of(f"2 x wire *meet 5; wire after 2; {work}")
    part = take_part(job, range(1))
    layout, own = build_layout(part.job, part.external), take_durations(job, durations, range(1))
    return BlockReplay(layout, own, kept_iterations=1)


# Lanes are walked in their order: tasks 0-1 on the first, then 2-4, 5-7 and 8-10.
@pytest.mark.parametrize(
    ("patience", "heads"),
    [
        (0, [0, 2, 5, 8]),
        (1, [0, 5, 5, 8]),
        (3, [0, 5, 5, 8]),
        (4, [0, 5, 8, 8]),
        (6, [0, 5, 8, 8]),
        (7, [0, 5, 8, 11]),
    ],
)
def test_a_walk_with_something_to_tell_ends_when_its_patience_does(patience, heads):
    block = lone_block()
    block.begin_iteration()
    assert block.awaited().tolist() == [True]
    said = block.advance(patience)
    assert (said.rendezvous.tolist(), said.ready_ns.tolist()) == ([[0, 0, 0]], [[0]])
    assert block.heads.tolist() == heads
    assert block.stops.tolist() == [2, 5, 8, 11]
    assert block.can_walk is (heads[3] == 8)
    # Once it is told, a walk goes on to where nothing more is known.
    assert len(block.advance(0)) == 0
    assert block.heads.tolist() == [0, 5, 8, 11]
    assert not block.is_done
    block.resolve(Arrivals(np.array([[0, 0, 0]]), np.array([[40]])))
    block.advance(0)
    assert block.is_done
    # Started at 40 with the other: 5 and 2 ns; the others worked 3 x 10.
    assert block.lane_now_ns()[:, 0].tolist() == [47, 30, 30, 30]


def test_lanes_that_were_let_go_come_before_others():
    block = lone_block()
    block.begin_iteration()
    block.advance(0)
    block.resolve(Arrivals(np.array([[0, 0, 0]]), np.array([[40]])))
    assert block.heads.tolist() == [1, 2, 5, 8]
    block.advance(0)
    # Nothing to tell, so it walked to the end; the word for another iteration is kept.
    assert block.heads.tolist() == [2, 5, 8, 11]
    later = Arrivals(np.array([[0, 0, 0], [1, 0, 0]]), np.array([[99], [100]]))
    block.resolve(later)
    block.begin_iteration()
    block.advance()
    assert block.is_done
    assert block.lane_now_ns()[:, 0].tolist() == [107, 60, 60, 60]
    assert block.iteration == 1


def test_arrivals_are_joined_in_order():
    first = Arrivals(np.array([[0, 1, 2]]), np.array([[5]]))
    assert join_arrivals([first]) is first
    joined = join_arrivals([first, no_arrivals(1), Arrivals(first.rendezvous + 1, first.ready_ns)])
    assert joined.rendezvous.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert len(joined) == len(joined.ready_ns) == 2
    assert no_arrivals(3).ready_ns.shape == (0, 3)
    assert no_arrivals(3).rendezvous.shape == (0, 3)


def test_of_those_who_came_last_together_the_lowest_rank_and_task_is_named():
    # Group, sequence, moment, rank, task.
    rows = np.array(
        [
            [0, 0, 5, 2, 1], [0, 0, 9, 3, 4], [0, 0, 9, 1, 8], [0, 0, 9, 1, 7],
            [0, 1, 2, 9, 9], [1, 0, 3, 4, 1], [1, 0, 4, 5, 0],
        ]
    )  # fmt: skip
    wanted = [[0, 0, 9, 1, 7], [0, 1, 2, 9, 9], [1, 0, 4, 5, 0]]
    assert first_of_each(rows).tolist() == wanted
    assert first_of_each(rows[::-1]).tolist() == wanted
    assert first_of_each(rows[:0]).shape == (0, 5)


@given(made=random_jobs())
def test_lanes_go_from_their_first_task_to_past_their_last(made):
    job = made.job
    block = BlockReplay(build_layout(job), made.durations, kept_iterations=5)
    programs = [job.program_of(rank) for rank in range(job.rank_count)]
    firsts = [first for one in programs for first in one.lane_start[:-1]]
    stops = [stop for one in programs for stop in one.lane_start[1:]]
    for iteration in range(2):
        block.begin_iteration()
        assert (block.iteration, block.heads.tolist()) == (iteration, firsts)
        assert block.stops.tolist() == stops
        assert not block.awaited().any()
        assert len(block.advance()) == 0
        assert block.heads.tolist() == stops
        assert block.is_done
        assert not block.can_walk


@given(made=random_jobs(), source=st.randoms(use_true_random=False))
def test_those_who_came_last_to_rendezvous_with_others_are_found(made, source):
    job = made.job
    first = source.randrange(job.rank_count)
    part = take_part(job, range(first, job.rank_count))
    layout = build_layout(part.job, part.external)
    ready_ns = np.array([source.randint(0, 3) for _ in range(int(layout.g_member[-1]))])
    last: dict[tuple[int, int], tuple[int, int, int]] = {}
    for place in range(part.job.rank_count):
        program = part.job.program_of(place)
        for task in np.flatnonzero(program.slot >= 0):
            slot, sequence = program.slot[task], int(program.sequence[task])
            group = int(part.job.rank_group[place, slot])
            member = layout.g_member[group] + sequence * layout.g_size[group]
            moment_ns = int(ready_ns[member + layout.r_position[place, slot]])
            if part.external[group] and program.role[task] & Role.SIGNALS:
                here = (-moment_ns, first + place, int(task))
                last[group, sequence] = min(last.get((group, sequence), here), here)
    wanted = [[*key, -late, rank, task] for key, (late, rank, task) in sorted(last.items())]
    assert last_signals(layout, ready_ns, first).tolist() == wanted
