"""The compiled pass says what the plain rules say."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from perfmodel.base.errors import GraphError
from perfmodel.engine.block import BlockReplay
from perfmodel.engine.history import History, Occurrence
from perfmodel.engine.layout import lay_out_sound
from perfmodel.engine.replay import kept_of_reach, replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Anchor, Dependency, LaneKind
from tests.builders import job_of
from tests.engine.reference import replay_reference
from tests.strategies import RandomJob, random_job, random_jobs


def check_against_reference(made: RandomJob) -> None:
    answer = replay(made.job, made.durations, iterations=made.iterations)
    times = replay_reference(made.job, made.durations, iterations=made.iterations)
    history = History(made.job, made.durations, answer)
    for iteration in history.iterations:
        for rank in range(made.job.rank_count):
            for task in range(made.job.program_of(rank).task_count):
                expected = times[Occurrence(iteration, rank, task)]
                assert history.end_ns(iteration, rank)[task] == expected.end_ns
                assert history.start_ns(iteration, rank)[task] == expected.start_ns
                assert history.ready_ns(iteration, rank)[task] == expected.ready_ns


@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_random_jobs_replay_as_the_reference_does(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        check_against_reference(random_job(seed))


@pytest.mark.parametrize("seed", range(40))
def test_iterations_that_copy_the_last_one_are_those_of_the_reference(seed):
    """A host that waits for its device repeats itself from the second iteration on."""
    draw = random.Random(seed)
    builder = JobBuilder()
    program = builder.new_program()
    host, device, copy, _ = [
        program.add_lane(name, kind)
        for name, kind in zip("hdcn", (LaneKind.HOST, *[LaneKind.COMPUTE] * 3), strict=True)
    ]
    load = program.add_task(host, Fixed("load", 0), label="load")
    fetch = program.add_task(copy, Fixed("copy", 0), label="copy", after=[load])
    last = fetch
    for number in range(4):
        launch = program.add_task(host, Fixed("launch", 0), label=f"launch {number}")
        last = program.add_task(device, Fixed("work", 0), label=f"{number}", after=[launch, last])
    program.add_task(device, Fixed("all", 0), label="all", slot=0)
    program.add_task(host, Fixed("wait", 0), label="wait", after=[last + 1])
    if draw.random() < 0.7:
        program.add_dependency(load, Dependency(fetch, draw.choice([*Anchor]), 5, distance=1))
    number = builder.add_program(program.build())
    builder.add_group("all", [builder.add_rank(number) for _ in range(2)], slot=0)
    job = builder.build(JobFacts("synchronous"))
    rows = np.array([[draw.randrange(60) for _ in range(12)] for _ in range(2)])
    durations = build_durations(job, list(rows))
    block = BlockReplay(lay_out_sound(job), durations, kept_iterations=2)
    before = []
    for _ in range(2):
        before.append(block.lane_now_ns())
        block.begin_iteration()
        block.advance()
    assert block.find_shift(before[-1]) is not None
    check_against_reference(RandomJob(job, durations, iterations=6))


@given(made=random_jobs())
def test_vectors_replayed_side_by_side_equal_vectors_replayed_alone(made):
    together = replay(made.job, made.durations, iterations=made.iterations)
    for vector in range(made.durations.vector_count):
        alone = replay(
            made.job, made.durations.vectors(vector, vector + 1), iterations=made.iterations
        )
        assert np.array_equal(together.last.end_ns[:, vector], alone.last.end_ns[:, 0])
        assert np.array_equal(together.lane_now_ns[:, :, vector], alone.lane_now_ns[:, :, 0])


@given(made=random_jobs())
def test_the_same_job_replayed_twice_gives_the_same_bytes(made):
    first = replay(made.job, made.durations, iterations=made.iterations)
    second = replay(made.job, made.durations, iterations=made.iterations)
    assert first.last.end_ns.tobytes() == second.last.end_ns.tobytes()


@given(made=random_jobs())
def test_tasks_of_one_lane_do_not_overlap(made):
    history = History(made.job, made.durations, replay(made.job, made.durations))
    for rank in range(made.job.rank_count):
        lane_start = made.job.program_of(rank).lane_start
        starts, ends = history.start_ns(0, rank), history.end_ns(0, rank)
        for first, stop in pairwise(lane_start):
            assert (starts[first + 1 : stop] >= ends[first : max(stop - 1, first)]).all()


@given(made=random_jobs())
def test_longer_tasks_never_make_anything_end_earlier(made):
    longer = DurationTable(made.durations.values_ns + 3, made.durations.rank_offset)
    before = replay(made.job, made.durations, iterations=made.iterations)
    after = replay(made.job, longer, iterations=made.iterations)
    assert (after.last.end_ns >= before.last.end_ns).all()


def test_a_negative_duration_is_refused_with_rank_and_task():
    job, durations = job_of("host load 5")
    broken = DurationTable(durations.values_ns - 6, durations.rank_offset)
    with pytest.raises(GraphError, match=r"rank 0, task 0 'load': .* negative, got -1 ns"):
        replay(job, broken)


def test_durations_for_the_wrong_number_of_ranks_are_refused():
    job, durations = job_of("host load 5")
    with pytest.raises(GraphError, match="2 rows for 1 ranks"):
        replay(job, DurationTable(durations.values_ns, np.zeros(2, dtype=np.int64)))


@pytest.mark.parametrize(
    ("reach", "iterations", "kept"),
    [(0, 5, 2), (1, 5, 2), (2, 5, 3), (3, 5, 4), (3, 2, 2), (0, 1, 1)],
)
def test_as_many_iterations_are_kept_as_dependencies_reach_and_one_more(reach, iterations, kept):
    assert kept_of_reach(reach, iterations) == kept
