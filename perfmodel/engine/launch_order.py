"""Launch order: streams that several host threads launch on run in the order of the launches.

Which launch comes first depends on how long things take, so it is found by
replaying: lanes are put in the order of the launches seen, and replayed
again, until the order stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.engine.history import History
from perfmodel.engine.layout import Int32s, Int64s
from perfmodel.engine.steady import Replayer
from perfmodel.graph.durations import DurationTable, build_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Program
from perfmodel.graph.reorder import reorder_program

MOST_ROUNDS = 4
NO_LAUNCH = -1


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A job whose shared lanes are in launch order, or as near as MOST_ROUNDS came."""

    job: JobGraph
    durations: DurationTable
    rounds: int
    is_settled: bool


def settle_launch_order(replay: Replayer, job: JobGraph, durations: DurationTable) -> Settled:
    """Put every lane that several host lanes launch on in the order of the launches."""
    if not any(len(shared_lanes(program)) for program in job.programs):
        return Settled(job, durations, rounds=0, is_settled=True)
    for done in range(MOST_ROUNDS):
        history = History(job, durations, replay(job, durations, 1))
        orders = [_launch_order(history, rank) for rank in range(job.rank_count)]
        if all(np.array_equal(order, np.arange(len(order))) for order in orders):
            return Settled(job, durations, rounds=done, is_settled=True)
        job, durations = _apply(job, durations, orders)
    return Settled(job, durations, rounds=MOST_ROUNDS, is_settled=False)


def launching_tasks(program: Program) -> Int32s:
    """For every device task the host task that launched it; NO_LAUNCH where none did.

    The launch is the last dependency, in this iteration, on a host lane.
    """
    lanes = program.task_lanes()
    is_host = np.array([not lane.kind.is_device for lane in program.lanes], dtype=bool)[lanes]
    tasks = np.repeat(np.arange(program.task_count), np.diff(program.dep_start))
    is_launch = ~is_host[tasks] & is_host[program.dep_task] & (program.dep_distance == 0)
    launches = np.full(program.task_count, NO_LAUNCH, dtype=np.int32)
    launches[tasks[is_launch]] = program.dep_task[is_launch]
    return launches


def shared_lanes(program: Program) -> list[int]:
    """Lanes whose tasks are launched from more than one host lane."""
    launches, lanes = launching_tasks(program), program.task_lanes()
    shared = []
    for lane in range(len(program.lanes)):
        of_lane = launches[program.lane_start[lane] : program.lane_start[lane + 1]]
        if len(np.unique(lanes[of_lane[of_lane != NO_LAUNCH]])) > 1:
            shared.append(lane)
    return shared


def _launch_order(history: History, rank: int) -> Int32s:
    program = history.job.program_of(rank)
    order = np.arange(program.task_count, dtype=np.int32)
    launches = launching_tasks(program)
    ends = history.end_ns(history.iterations[-1], rank)
    for lane in shared_lanes(program):
        tasks = order[program.lane_start[lane] : program.lane_start[lane + 1]]
        moments = _launch_moments(ends, launches[tasks])
        order[program.lane_start[lane] : program.lane_start[lane + 1]] = tasks[
            np.argsort(moments, kind="stable")
        ]
    return order


def _launch_moments(ends: Int64s, launches: Int32s) -> Int64s:
    """When each task was launched; one without a launch stays behind the task before it."""
    moments = np.where(launches == NO_LAUNCH, 0, ends[launches])
    carried: Int64s = np.where(launches == NO_LAUNCH, np.maximum.accumulate(moments), moments)
    return carried


def _apply(
    job: JobGraph, durations: DurationTable, orders: list[Int32s]
) -> tuple[JobGraph, DurationTable]:
    programs: list[Program] = []
    number: dict[tuple[int, bytes], int] = {}
    rank_program = np.empty(job.rank_count, dtype=np.int32)
    for rank, order in enumerate(orders):
        key = (int(job.rank_program[rank]), order.tobytes())
        if key not in number:
            number[key] = len(programs)
            programs.append(reorder_program(job.programs[key[0]], order))
        rank_program[rank] = number[key]
    reordered = replace(job, programs=tuple(programs), rank_program=rank_program)
    rows = [durations.of_rank(job, rank)[order] for rank, order in enumerate(orders)]
    return reordered, build_durations(reordered, rows)
