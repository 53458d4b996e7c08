"""Jobs that cannot run are refused, and the message names what is wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.errors import GraphError, ReplayStalledError
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable, build_shared_durations
from perfmodel.graph.job import Group, JobFacts, JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import Dependency, LaneKind
from tests.builders import job_of

MIB = 2**20


Broken = tuple[JobGraph, DurationTable, str]
"""A job, its durations, and what is said about it."""


class Job:
    """A valid job of a few ranks that a test then breaks in one place."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.rank_count = self.source.randint(2, 6)
        self.victim = self.source.randrange(self.rank_count)
        self.calls = self.source.randint(2, 6)
        self.order = [reduction((number + 1) * MIB) for number in range(self.calls)]
        self.cycle: int | None = None

    def build(self, order: list[Communication] | None = None) -> tuple[JobGraph, DurationTable]:
        """The job, whose victim makes calls in another *order*."""
        builder = JobBuilder()
        rows = []
        for rank in range(self.rank_count):
            program = builder.new_program()
            gpu = program.add_lane("gpu", LaneKind.COMPUTE)
            host = program.add_lane("host", LaneKind.HOST)
            calls = order if order is not None and rank == self.victim else self.order
            for number, call in enumerate(calls):
                launched = program.add_task(host, call, label=f"launch {number}")
                program.add_task(gpu, call, label=f"all-reduce {number}", slot=0, after=[launched])
            if self.cycle is not None and rank == self.victim:
                program.add_dependency(2 * self.cycle, Dependency(2 * self.cycle + 1))
            rows.append(np.full(program.task_count, 5, dtype=np.int64))
            builder.add_rank(builder.add_program(program.build()))
        builder.add_group("world", range(self.rank_count), slot=0)
        job = builder.build(JobFacts("broken"))
        return job, build_shared_durations(job, rows)


def reduction(size_bytes: int) -> Communication:
    return Communication(Collective(CollectiveKind.ALL_REDUCE, size_bytes))


def break_by_cycle(job: Job) -> Broken:
    job.cycle = job.source.randrange(job.calls)
    return *job.build(), rf"cycle on rank {job.victim}: .*'launch {job.cycle}'"


def break_by_missing_member(job: Job) -> Broken:
    graph, durations = job.build()
    rank_group = graph.rank_group.copy()
    rank_group[job.victim, 0] = -1
    return replace(graph, rank_group=rank_group), durations, rf"rank {job.victim}: .* no group"


def break_by_missing_call(job: Job) -> Broken:
    found = rf"'world': .*#{job.calls - 1}: rank {job.victim} lacks all_reduce of"
    return *job.build(job.order[:-1]), found


def break_by_order(job: Job) -> Broken:
    first = job.source.randrange(job.calls - 1)
    order = [*job.order]
    order[first : first + 2] = reversed(order[first : first + 2])
    return *job.build(order), rf"'world': .*differs is #{first}: all_reduce of .* on .*, all_reduce"


def break_by_unknown_rank(job: Job) -> Broken:
    graph, durations = job.build()
    wrong = job.rank_count + job.source.randint(0, 9)
    groups = (Group("world", (*graph.groups[0].ranks, wrong)),)
    return replace(graph, groups=groups), durations, rf"'world': .*names rank {wrong}"


def break_by_negative_duration(job: Job) -> Broken:
    graph, durations = job.build()
    # Some take no time, which is no fault.
    values = durations.values_ns.copy()
    values[::2] = 0
    task = job.source.randrange(graph.program_of(job.victim).task_count)
    values[int(durations.rank_offset[job.victim]) + task] = -job.source.randint(1, 99)
    table = DurationTable(values, durations.rank_offset)
    return graph, table, rf"rank {job.victim}, task {task} .*must not be negative"


def break_by_size(job: Job) -> Broken:
    number = job.source.randrange(job.calls)
    order = [*job.order[:number], reduction(7), *job.order[number + 1 :]]
    return *job.build(order), rf"'world': .*differs is #{number}: .*of 7 bytes"


def break_by_empty_rank(job: Job) -> Broken:
    graph, durations = job.build()
    programs = list(graph.programs)
    programs[job.victim] = JobBuilder().new_program().build()
    return replace(graph, programs=tuple(programs)), durations, "a rank must have an end"


BREAKAGES = [
    break_by_cycle, break_by_missing_member, break_by_missing_call, break_by_order,
    break_by_unknown_rank, break_by_negative_duration, break_by_size, break_by_empty_rank,
]  # fmt: skip


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_two_hundred_broken_jobs_are_each_refused_by_name(breakage):
    for seed in range(25):
        graph, durations, message = breakage(Job(seed))
        with pytest.raises(GraphError, match=f"(?s){message}"):
            replay(graph, durations)


@pytest.mark.parametrize("seed", range(10))
def test_the_unbroken_job_runs(seed):
    graph, durations = Job(seed).build()
    # Launches take 5 each and run ahead; each all-reduce takes 5 after them.
    assert replay(graph, durations).iteration_end_ns[0, 0] == 5 + 5 * Job(seed).calls


def test_collectives_in_an_order_that_blocks_are_named_with_who_waits_for_whom():
    made = job_of("2 x gpu *a 5; gpu *b@1 5", "gpu *b@1 5; gpu *a 5")
    with pytest.raises(ReplayStalledError) as caught:
        replay(*made)
    message = str(caught.value)
    assert "ranks 0-1 wait in 'a' (#0 of group 'slot 0') for rank 2" in message
    assert "rank 2 is held in 'b' of group 'slot 1'" in message
    assert "The order of collectives differs" in message
