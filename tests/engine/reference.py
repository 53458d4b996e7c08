"""The rules of the replay in plain Python, to compare the compiled pass with.

Slow on purpose: every sweep looks at every task that has not run, and runs those whose inputs are
known.
"""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.engine.history import Occurrence
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Anchor, Role


class Times(NamedTuple):
    """When a task was ready, started and ended."""

    ready_ns: int
    start_ns: int
    end_ns: int


def replay_reference(
    job: JobGraph, durations: DurationTable, *, iterations: int = 1
) -> dict[Occurrence, Times]:
    """Times of every task for the first duration vector; tasks that never run are left out."""
    times: dict[Occurrence, Times] = {}
    ready: dict[Occurrence, int] = {}
    waiting = [
        Occurrence(iteration, rank, task)
        for iteration in range(iterations)
        for rank in range(job.rank_count)
        for task in range(job.program_of(rank).task_count)
    ]
    while True:
        for here in waiting:
            moment = _ready_ns(job, times, here)
            if moment is not None:
                ready[here] = moment
        for here in waiting:
            start = _start_ns(job, ready, here)
            if start is not None:
                duration = int(durations.of_rank(job, here.rank)[here.task, 0])
                times[here] = Times(ready[here], start, start + duration)
        left = [here for here in waiting if here not in times]
        if len(left) == len(waiting):
            return times
        waiting = left


def _ready_ns(job: JobGraph, times: dict[Occurrence, Times], here: Occurrence) -> int | None:
    program = job.program_of(here.rank)
    moments = [0]
    previous = _previous_on_lane(job, here)
    if previous is not None:
        if previous not in times:
            return None
        moments.append(times[previous].end_ns)
    for row in range(program.dep_start[here.task], program.dep_start[here.task + 1]):
        iteration = here.iteration - int(program.dep_distance[row])
        if iteration < 0:
            continue
        source = Occurrence(iteration, here.rank, int(program.dep_task[row]))
        if source not in times:
            return None
        is_start = program.dep_anchor[row] == Anchor.START
        moment = times[source].start_ns if is_start else times[source].end_ns
        moments.append(moment + int(program.dep_lag_ns[row]))
    return max(moments)


def _previous_on_lane(job: JobGraph, here: Occurrence) -> Occurrence | None:
    lane_start = job.program_of(here.rank).lane_start
    lane = int((lane_start <= here.task).sum()) - 1
    if here.task > lane_start[lane]:
        return here._replace(task=here.task - 1)
    if here.iteration == 0:
        return None
    return here._replace(iteration=here.iteration - 1, task=int(lane_start[lane + 1]) - 1)


def _start_ns(job: JobGraph, ready: dict[Occurrence, int], here: Occurrence) -> int | None:
    if here not in ready:
        return None
    program = job.program_of(here.rank)
    if program.slot[here.task] == PLAIN or not program.role[here.task] & Role.WAITS:
        return ready[here]
    signals = [
        member
        for member in _members(job, here)
        if job.program_of(member.rank).role[member.task] & Role.SIGNALS
    ]
    if any(member not in ready for member in signals):
        return None
    return max([ready[here], *(ready[member] for member in signals)])


def _members(job: JobGraph, here: Occurrence) -> list[Occurrence]:
    program = job.program_of(here.rank)
    group = job.rank_group[here.rank, program.slot[here.task]]
    sequence = program.sequence[here.task]
    members = []
    for rank in range(job.rank_count):
        theirs = job.program_of(rank)
        members += [
            Occurrence(here.iteration, rank, task)
            for task in range(theirs.task_count)
            if theirs.slot[task] != PLAIN
            and job.rank_group[rank, theirs.slot[task]] == group
            and theirs.sequence[task] == sequence
        ]
    return members
