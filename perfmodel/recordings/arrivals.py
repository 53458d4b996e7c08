"""Arrivals: when ranks that were not recorded came to a collective, and how much later.

A kernel that took longer than the shortest of its like waited for somebody.
In the recording they came some time after the collective before; in a changed
job they come as much later than the recorded rank as they did, because they
run the same program and change as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, Program
from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.hold_back import HeldReplay
from perfmodel.recordings.rank_program import Arrival, RankFindings, RankProgram, places
from perfmodel.recordings.rank_view import Int64s, RankView

_WINDOW = 0
"""The first task of every rank stands for the beginning of the recording."""


def find_arrivals(view: RankView, calls: Sequence[CollectiveCall]) -> dict[int, Arrival]:
    """The arrivals of others at *calls*, by device task."""
    device = view.device
    shortest: dict[tuple[object, ...], int] = {}
    for call in calls:
        length_ns = int(device.end_ns[call.task] - device.start_ns[call.task])
        key = (call.group, *call.signature)
        shortest[key] = min(shortest.get(key, length_ns), length_ns)
    arrivals = {}
    previous: dict[str, int] = {}
    for call in calls:
        transfer_ns = shortest[(call.group, *call.signature)]
        came_ns = int(device.end_ns[call.task]) - transfer_ns
        before = previous.get(call.group)
        since_ns = 0 if before is None else int(device.end_ns[before])
        if came_ns > int(device.start_ns[call.task]):
            arrivals[call.task] = Arrival(before, came_ns - since_ns, transfer_ns)
        previous[call.group] = call.task
    return arrivals


def with_waits(
    findings: Sequence[RankFindings], programs: Sequence[RankProgram], held: HeldReplay
) -> list[RankFindings]:
    """*findings* with how much later others came in the replay *held*, in which they come on time.

    *programs* are the ranks of that replay.
    """
    firsts = np.concatenate([[0], np.cumsum(held.graph.task_counts())])
    changed = []
    for rank, of_rank in enumerate(findings):
        program, part = held.graph.program_of(rank), slice(firsts[rank], firsts[rank + 1])
        arrivals = {
            task: replace(
                arrival,
                wait_ns=_wait_ns(
                    program,
                    (held.start_ns[part], held.end_ns[part]),
                    task=int(places(programs[rank], [task])[0]),
                    source=(_source(programs[rank], arrival), max(arrival.lag_ns, 0)),
                ),
            )
            for task, arrival in of_rank.arrivals.items()
        }
        changed.append(replace(of_rank, arrivals=arrivals))
    return changed


def without_waits(
    graph: JobGraph, programs: Sequence[RankProgram], findings: Sequence[RankFindings]
) -> JobGraph:
    """*graph*, made of *findings*, where nobody comes later than the ranks that were recorded."""
    changed = []
    for rank, of_rank in enumerate(findings):
        program = graph.program_of(rank)
        lag_ns = program.dep_lag_ns.copy()
        for task, arrival in of_rank.arrivals.items():
            place = int(places(programs[rank], [task])[0])
            lag_ns[program.dep_start[place] : program.dep_start[place + 1]] -= arrival.wait_ns or 0
        changed.append(replace(program, dep_lag_ns=lag_ns))
    ranks = np.arange(graph.rank_count, dtype=np.int32)
    return replace(graph, programs=tuple(changed), rank_program=ranks)


def _source(program: RankProgram, arrival: Arrival) -> int:
    """The task after which the others came."""
    if arrival.previous is None:
        return _WINDOW
    return int(places(program, [arrival.previous])[0])


def _wait_ns(
    program: Program, times: tuple[Int64s, Int64s], *, task: int, source: tuple[int, int]
) -> int:
    """How long *task* waited for others after all that its own rank had to do.

    They came after the task, and with the lag, of *source*.
    """
    start_ns, end_ns = times
    is_first = task in program.lane_start.tolist()
    ready_ns = 0 if is_first else int(end_ns[task - 1])
    for dep in range(program.dep_start[task], program.dep_start[task + 1]):
        before = int(program.dep_task[dep])
        if (before, int(program.dep_lag_ns[dep])) != source:
            is_start = program.dep_anchor[dep] == int(Anchor.START)
            moment_ns = int((start_ns if is_start else end_ns)[before])
            ready_ns = max(ready_ns, moment_ns + int(program.dep_lag_ns[dep]))
    return max(int(start_ns[task]) - ready_ns, 0)
