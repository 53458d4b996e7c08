"""Jobs: small ones worked out on paper, and one with as many rounds as is asked for."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind


def alternating_job(*, ranks: int, members: int) -> tuple[JobGraph, DurationTable]:
    """Work, then meet everybody, *members* times: every rendezvous takes a round."""
    builder = JobBuilder()
    program = builder.new_program()
    lane = program.add_lane("compute", LaneKind.COMPUTE)
    for _ in range(members):
        program.add_task(lane, Fixed("work", 0), label="work")
        program.add_rendezvous(lane, Fixed("meet", 0), label="meet", slot=0)
    number = builder.add_program(program.build())
    everybody = [builder.add_rank(number) for _ in range(ranks)]
    builder.add_group("world", everybody, slot=0)
    job = builder.build(JobFacts("alternating"))
    drawn = np.random.default_rng(7).integers(0, 1_000, (ranks, 2 * members, 1))
    return job, build_durations(job, list(drawn))


def crossed_job() -> tuple[JobGraph, DurationTable]:
    """Rank 0 meets in `a` then `b`, rank 1 in `b` then `a`: nobody ever gets on."""
    builder = JobBuilder()
    for first, second in ((0, 1), (1, 0)):
        program = builder.new_program()
        lane = program.add_lane("compute", LaneKind.COMPUTE)
        for slot in (first, second):
            program.add_rendezvous(lane, Fixed("meet", 0), label=f"meet {slot}", slot=slot)
        builder.add_rank(builder.add_program(program.build()))
    builder.add_group("a", [0, 1], slot=0)
    builder.add_group("b", [0, 1], slot=1)
    job = builder.build(JobFacts("crossed"))
    return job, build_durations(job, [np.ones(2, dtype=np.int64)] * 2)


def paired_job(*, pairs: int, tasks: int = 1) -> tuple[JobGraph, DurationTable]:
    """Ranks 2 i and 2 i + 1 meet; nobody else does."""
    builder = JobBuilder()
    program = builder.new_program()
    lane = program.add_lane("compute", LaneKind.COMPUTE)
    for _ in range(tasks):
        program.add_rendezvous(lane, Fixed("meet", 0), label="meet", slot=0)
    number = builder.add_program(program.build())
    for pair in range(pairs):
        ranks = [builder.add_rank(number), builder.add_rank(number)]
        builder.add_group(f"pair {pair}", ranks, slot=0)
    job = builder.build(JobFacts("paired"))
    return job, build_durations(job, [np.full(tasks, rank) for rank in range(2 * pairs)])
