"""Awaiting: which earlier collectives of its slot a collective really waits for.

Behind another on its lane it only comes later; through its dependencies it
may need what the other brought, and then the two cannot be joined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.errors import GraphError
from perfmodel.graph.program import PLAIN, Program

NOTHING = -1


def awaited_sequences(program: Program, collectives: Sequence[int]) -> dict[int, int]:
    """For each of *collectives* the last one of its slot that its dependencies lead to."""
    slots = sorted({int(program.slot[task]) for task in collectives})
    of_slot = {slot: _reached(program, slot) for slot in slots}
    waits = {}
    for task in collectives:
        reached = of_slot[int(program.slot[task])]
        waits[task] = max((reached[source] for source in _sources(program, task)), default=NOTHING)
    return waits


def _reached(program: Program, slot: int) -> list[int]:
    """The last collective of *slot* that has ended when a task has ended, by task."""
    reached = [NOTHING] * program.task_count
    is_first = np.isin(np.arange(program.task_count), program.lane_start)
    for task in topological_order(program):
        before = [reached[source] for source in _sources(program, task)]
        if not is_first[task]:
            before.append(reached[task - 1])
        own = int(program.sequence[task]) if program.slot[task] == slot != PLAIN else NOTHING
        reached[task] = max([own, *before])
    return reached


def topological_order(program: Program) -> list[int]:
    """The tasks of one iteration so that each comes after what it waits for."""
    lanes = program.lane_start
    waiting = np.bincount(
        np.repeat(np.arange(program.task_count), np.diff(program.dep_start))[
            program.dep_distance == 0
        ],
        minlength=program.task_count,
    )
    is_first = np.isin(np.arange(program.task_count), lanes)
    waiting[~is_first] += 1
    followers: list[list[int]] = [[] for _ in range(program.task_count)]
    for task in range(program.task_count):
        for source in _sources(program, task):
            followers[source].append(task)
        if not is_first[task]:
            followers[task - 1].append(task)
    counts = waiting.tolist()
    order = [task for task in range(program.task_count) if not counts[task]]
    for task in order:
        for follower in followers[task]:
            counts[follower] -= 1
            if not counts[follower]:
                order.append(follower)
    if len(order) < program.task_count:
        raise GraphError("tasks of a rank wait for each other in a circle. Make the job again.")
    return order


def _sources(program: Program, task: int) -> list[int]:
    rows = slice(program.dep_start[task], program.dep_start[task + 1])
    sources: list[int] = program.dep_task[rows][program.dep_distance[rows] == 0].tolist()
    return sources
