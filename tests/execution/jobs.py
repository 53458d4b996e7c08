"""Jobs: small ones worked out on paper, and one with as many rounds as is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind

WORK = None
"""A task that meets nobody, among slots of rendezvous."""


def meeting_job(
    programs: Sequence[Sequence[int | None]],
    groups: Sequence[Sequence[int]],
    *,
    rank_program: Sequence[int] | None = None,
    slots: Sequence[int] | None = None,
) -> JobGraph:
    """Ranks of one lane each that meet in slots, in the order of their program.

    Without *rank_program* each program is a rank; without *slots* group i is in slot i.
    """
    builder = JobBuilder()
    for tasks in programs:
        program = builder.new_program()
        lane = program.add_lane("compute", LaneKind.COMPUTE)
        for slot in tasks:
            if slot is WORK:
                program.add_task(lane, Fixed("work", 0), label="work")
            else:
                program.add_task(lane, Fixed("meet", 5), label=f"meet {slot}", slot=slot)
        builder.add_program(program.build())
    for number in rank_program or range(len(programs)):
        builder.add_rank(number)
    for number, ranks in enumerate(groups):
        builder.add_group(f"group {number}", ranks, slot=number if slots is None else slots[number])
    return builder.build(JobFacts("meeting"))


def alternating_job(*, ranks: int, members: int) -> tuple[JobGraph, DurationTable]:
    """Work, then meet everybody, *members* times: every rendezvous takes a round."""
    job = meeting_job([[WORK, 0] * members], [range(ranks)], rank_program=[0] * ranks)
    drawn = np.random.default_rng(7).integers(0, 1_000, (ranks, 2 * members, 1))
    return job, build_durations(job, list(drawn))


def crossed_job() -> tuple[JobGraph, DurationTable]:
    """Rank 0 meets in slot 0 then 1, rank 1 in 1 then 0: neither can go on."""
    job = meeting_job([[0, 1], [1, 0]], [[0, 1], [0, 1]])
    return job, build_durations(job, [np.ones(2, dtype=np.int64)] * 2)


def paired_job(*, pairs: int, tasks: int = 1) -> tuple[JobGraph, DurationTable]:
    """Ranks 2 i and 2 i + 1 meet; no others do."""
    groups = [(2 * pair, 2 * pair + 1) for pair in range(pairs)]
    job = meeting_job([[0] * tasks], groups, rank_program=[0] * 2 * pairs, slots=[0] * pairs)
    return job, build_durations(job, [np.full(tasks, rank) for rank in range(2 * pairs)])
