"""Stall: why a replay cannot continue, as an error message.

It needs only the next task of every lane, of one block or of several joined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import ReplayStalledError
from perfmodel.engine.layout import Int32s
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Program
from perfmodel.graph.rendezvous import name_ranks

MOST_LINES = 6


@dataclass(frozen=True, slots=True)
class _Stuck:
    """The next task of a lane that cannot start; *source* is what it waits for, or PLAIN."""

    rank: int
    lane: int
    task: int
    source: int


def explain_stall(job: JobGraph, heads: Int32s) -> ReplayStalledError:
    """The error that names which ranks wait for which; *heads* is the next task of every lane."""
    stuck = _find_stuck(job, heads)
    # A cycle is the cause; ranks that wait for it are the effect.
    lines = _cycle_lines(job, stuck) + _rendezvous_lines(job, stuck)
    shown = lines[:MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more.")
    heading = f"replay of {job.facts.name!r} stopped with tasks left:"
    return ReplayStalledError("\n".join([heading, *shown]))


def _find_stuck(job: JobGraph, heads: Int32s) -> list[_Stuck]:
    stuck, place = [], 0
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        of_rank = heads[place : place + len(program.lanes)]
        place += len(program.lanes)
        for lane in np.flatnonzero(of_rank < program.lane_start[1:]):
            task = int(of_rank[lane])
            stuck.append(_Stuck(rank, int(lane), task, _first_undone(program, of_rank, task)))
    return stuck


def _first_undone(program: Program, heads: Int32s, task: int) -> int:
    lane_of = program.task_lanes()
    for row in range(program.dep_start[task], program.dep_start[task + 1]):
        source = int(program.dep_task[row])
        if program.dep_distance[row] == 0 and source >= heads[lane_of[source]]:
            return source
    return PLAIN


def _rendezvous_lines(job: JobGraph, stuck: list[_Stuck]) -> list[str]:
    """One line per rendezvous that some members have reached and others have not."""
    reached: dict[tuple[int, int], list[_Stuck]] = {}
    for waiting in stuck:
        program = job.program_of(waiting.rank)
        slot = int(program.slot[waiting.task])
        if slot != PLAIN and waiting.source == PLAIN:
            group = int(job.rank_group[waiting.rank, slot])
            reached.setdefault((group, int(program.sequence[waiting.task])), []).append(waiting)
    lines = []
    for (group, sequence), members in sorted(reached.items()):
        present = sorted({member.rank for member in members})
        missing = [rank for rank in job.groups[group].ranks if rank not in present]
        label = job.label_of(members[0].rank, members[0].task)
        lines.append(
            f"{name_ranks(present)} wait in {label!r} (#{sequence} of group "
            f"{job.groups[group].name!r}) for {name_ranks(missing)}: "
            f"{_whereabouts(job, stuck, missing)}"
        )
    return lines


def _whereabouts(job: JobGraph, stuck: list[_Stuck], ranks: list[int]) -> str:
    """What the first of the missing *ranks* is doing instead."""
    if not ranks:
        return "the ranks that folding merged are not equal."
    first = ranks[0]
    own = [waiting for waiting in stuck if waiting.rank == first]
    if not own:
        return f"rank {first} has no task left. The ranks do not contain the same collectives."
    waiting = own[0]
    lane = job.program_of(first).lanes[waiting.lane].name
    label = job.label_of(first, waiting.task)
    group = job.group_of(first, waiting.task)
    if waiting.source != PLAIN:
        return (
            f"on lane {lane!r}, rank {first} is held at {label!r}, which waits for "
            f"{job.label_of(first, waiting.source)!r}."
        )
    where = f" of group {group.name!r}" if group else ""
    return (
        f"on lane {lane!r}, rank {first} is held in {label!r}{where}. "
        "The order of collectives differs between these ranks."
    )


def _cycle_lines(job: JobGraph, stuck: list[_Stuck]) -> list[str]:
    """The cycle of tasks that wait for each other, on the first rank that has one."""
    by_rank: dict[int, dict[int, _Stuck]] = {}
    for waiting in stuck:
        by_rank.setdefault(waiting.rank, {})[waiting.lane] = waiting
    for rank, by_lane in by_rank.items():
        lane_start, lanes = job.program_of(rank).lane_start, job.program_of(rank).lanes
        for ring in filter(None, (_ring(by_lane, lane, lane_start) for lane in by_lane)):
            return [
                f"cycle on rank {rank}: task {waiting.task} {job.label_of(rank, waiting.task)!r} "
                f"on lane {lanes[waiting.lane].name!r} waits for task {waiting.source} "
                f"{job.label_of(rank, waiting.source)!r}."
                for waiting in ring
            ]
    return []


def _ring(by_lane: dict[int, _Stuck], lane: int, lane_start: Int32s) -> list[_Stuck]:
    """The lanes that wait for each other, found by following what *lane* waits for."""
    seen: list[int] = []
    while lane not in seen:
        if lane not in by_lane or by_lane[lane].source == PLAIN:
            return []
        seen.append(lane)
        lane = int(np.searchsorted(lane_start, by_lane[lane].source, side="right")) - 1
    return [by_lane[place] for place in seen[seen.index(lane) :]]
