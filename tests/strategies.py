"""Strategies: random values of our nouns, for property tests and for fuzzing.

A random job is valid by construction. Its tasks are made in one order over all
ranks in which they could run, dependencies within an iteration point back in
that order, and everybody takes part in a rendezvous at the same place of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from perfmodel.graph.audit import check_job
from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Anchor, Dependency, LaneKind, Role

MOST_LAG_NS = 7
MOST_DURATION_NS = 20
"""Small, so that ties are frequent: what happens at the same nanosecond is tested too."""


@dataclass(frozen=True, slots=True)
class JobSize:
    """How big a random job may get."""

    ranks: int = 6
    lanes: int = 3
    steps: int = 24
    channels: int = 3
    vectors: int = 3
    distance: int = 3


@dataclass(frozen=True, slots=True)
class RandomJob:
    """A valid job with durations, and how many iterations to replay it for."""

    job: JobGraph
    durations: DurationTable
    iterations: int


@dataclass(frozen=True, slots=True)
class _Channel:
    """What some programs do together: the slots that each uses, and the groups of ranks.

    A program with two slots takes part twice, as the ranks of a folded job do.
    """

    slots: dict[int, tuple[int, ...]]
    groups: tuple[tuple[int, ...], ...]


def jobs(size: JobSize = JobSize()) -> SearchStrategy[tuple[JobGraph, DurationTable]]:  # noqa: B008  frozen
    """Valid jobs with their durations."""
    return random_jobs(size).map(lambda made: (made.job, made.durations))


def random_jobs(size: JobSize = JobSize()) -> SearchStrategy[RandomJob]:  # noqa: B008  frozen
    """Valid jobs with their durations and a number of iterations."""
    return st.randoms(use_true_random=False).map(lambda source: _make_job(source, size))


def random_job(seed: int, size: JobSize = JobSize()) -> RandomJob:  # noqa: B008  frozen
    """The valid job that belongs to *seed*."""
    return _make_job(random.Random(seed), size)


def _make_job(source: random.Random, size: JobSize) -> RandomJob:
    rank_count = source.randint(1, size.ranks)
    program_count = source.randint(1, rank_count)
    # Every program runs somewhere; ranks of one program need not be neighbours.
    rank_program = list(range(program_count))
    rank_program += [source.randrange(program_count) for _ in range(rank_count - program_count)]
    source.shuffle(rank_program)

    builder = JobBuilder()
    programs = [builder.new_program() for _ in range(program_count)]
    for program in programs:
        for lane in range(source.randint(1, size.lanes)):
            program.add_lane(f"lane {lane}", source.choice(list(LaneKind)))
    lane_counts = [len(program.build().lanes) for program in programs]
    channels = _make_channels(source, size, rank_program, lane_counts)
    _fill_programs(source, size, programs, lane_counts, channels, rank_program)

    for program in programs:
        builder.add_program(program.build())
    for of_rank in rank_program:
        builder.add_rank(of_rank)
    _add_groups(builder, channels, rank_program)
    job = builder.build(JobFacts(f"random job of {rank_count} ranks"))
    check_job(job)
    return RandomJob(job, _make_durations(source, size, job), source.randint(1, 5))


def _make_channels(
    source: random.Random, size: JobSize, rank_program: list[int], lane_counts: list[int]
) -> list[_Channel]:
    channels, next_slot = [], [0] * len(lane_counts)
    for _ in range(source.randint(0, size.channels)):
        members = sorted(
            source.sample(range(len(lane_counts)), source.randint(1, len(lane_counts)))
        )
        slots = {}
        for program in members:
            is_double = lane_counts[program] > 1 and source.random() < 0.15
            first = next_slot[program]
            next_slot[program] += 2 if is_double else 1
            slots[program] = tuple(range(first, next_slot[program]))
        ranks = [rank for rank, program in enumerate(rank_program) if program in slots]
        channels.append(_Channel(slots, _deal(source, ranks)))
    return channels


def _deal(source: random.Random, ranks: list[int]) -> tuple[tuple[int, ...], ...]:
    """Some groups that hold each of *ranks* once."""
    dealt: list[list[int]] = [[] for _ in range(source.randint(1, len(ranks)))]
    for rank in ranks:
        source.choice(dealt).append(rank)
    return tuple(tuple(group) for group in dealt if group)


def _fill_programs(
    source: random.Random,
    size: JobSize,
    programs: list[ProgramBuilder],
    lane_counts: list[int],
    channels: list[_Channel],
    rank_program: list[int],
) -> None:
    for program, lanes in zip(programs, lane_counts, strict=True):
        _add_plain(source, size, program, lanes)
    for _ in range(source.randint(0, size.steps)):
        if channels and source.random() < 0.4:
            channel = source.choice(channels)
            roles = _make_roles(source, channel, rank_program)
            for index, slots in channel.slots.items():
                _add_members(source, size, programs[index], lane_counts[index], slots, roles[index])
        else:
            index = source.randrange(len(programs))
            _add_plain(source, size, programs[index], lane_counts[index])
    for program in programs:
        _reach_back(source, size, program)


def _add_plain(source: random.Random, size: JobSize, program: ProgramBuilder, lanes: int) -> None:
    after = _dependencies(source, size, program.task_count)
    label = f"task {program.task_count}"
    program.add_task(source.randrange(lanes), Fixed("work", 0), label=label, after=after)


def _add_members(
    source: random.Random,
    size: JobSize,
    program: ProgramBuilder,
    lanes: int,
    slots: tuple[int, ...],
    role: Role,
) -> None:
    # Both parts of a rank that takes part twice stand on lanes of their own and do
    # not wait for each other.
    earlier = program.task_count
    for slot, lane in zip(slots, source.sample(range(lanes), len(slots)), strict=True):
        program.add_task(
            lane,
            Fixed("meet", 0),
            label=f"meet {program.task_count}",
            slot=slot,
            role=role,
            after=_dependencies(source, size, earlier),
        )


def _make_roles(
    source: random.Random, channel: _Channel, rank_program: list[int]
) -> dict[int, Role]:
    everybody = dict.fromkeys(channel.slots, Role.BOTH)
    if source.random() < 0.6:
        return everybody
    choices = [Role.SIGNALS, Role.WAITS, Role.BOTH]
    roles = {program: source.choice(choices) for program in channel.slots}
    is_signalled = all(
        any(roles[rank_program[rank]] & Role.SIGNALS for rank in group) for group in channel.groups
    )
    return roles if is_signalled else everybody


def _dependencies(source: random.Random, size: JobSize, task_count: int) -> list[Dependency]:
    """Dependencies on some of the first *task_count* tasks."""
    if task_count == 0:
        return []
    return [
        Dependency(
            source.randrange(task_count),
            anchor=source.choice(list(Anchor)),
            lag_ns=source.choice([0, 0, source.randint(1, MOST_LAG_NS)]),
            distance=source.choice([0, 0, 0, source.randint(0, size.distance)]),
        )
        for _ in range(source.choice([0, 0, 1, 1, 2, 3]))
    ]


def _reach_back(source: random.Random, size: JobSize, program: ProgramBuilder) -> None:
    """Let some tasks wait for any task, itself and later ones too, of an earlier iteration."""
    for _ in range(source.randint(0, 3) if size.distance else 0):
        dependency = Dependency(
            source.randrange(program.task_count),
            anchor=source.choice(list(Anchor)),
            lag_ns=source.randint(0, MOST_LAG_NS),
            distance=source.randint(1, size.distance),
        )
        program.add_dependency(source.randrange(program.task_count), dependency)


def _add_groups(builder: JobBuilder, channels: list[_Channel], rank_program: list[int]) -> None:
    for number, channel in enumerate(channels):
        for part, group in enumerate(channel.groups):
            endpoints = [
                (rank, slot) for rank in group for slot in channel.slots[rank_program[rank]]
            ]
            builder.add_group(
                f"channel {number} part {part}",
                [rank for rank, _ in endpoints],
                slot=[slot for _, slot in endpoints],
            )


def _make_durations(source: random.Random, size: JobSize, job: JobGraph) -> DurationTable:
    """Durations by rank; some ranks share the row of an earlier rank of their program."""
    vectors = source.randint(1, size.vectors)
    rows: list[np.ndarray] = []
    for rank, program in enumerate(job.rank_program):
        alike = [other for other in range(rank) if job.rank_program[other] == program]
        if alike and source.random() < 0.4:
            rows.append(rows[source.choice(alike)])
            continue
        drawn = [
            source.choice([0, source.randint(1, MOST_DURATION_NS)])
            for _ in range(job.program_of(rank).task_count * vectors)
        ]
        rows.append(np.array(drawn, dtype=np.int64).reshape(-1, vectors))
    return build_durations(job, rows)
