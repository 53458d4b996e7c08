"""Settle: a job replayed until what its tasks do to each other no longer changes.

A replay shows which tasks overlap. Rules say what the overlap costs: tasks take longer, or start
later. The job is replayed with these effects, and the rules look again. A rule lives where its
knowledge is; here are the columns that rules read and write, and the one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.layout import Int64s
from perfmodel.engine.replay import Replay, Replayer
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, Program

Floats = NDArray[np.float64]
_NO_DELAYS = np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """What overlap costs the tasks of a job, all ranks one after the other.

    *lost_ns* is how much longer each task takes: the first row because of this iteration and the
    one before, the second because of tasks of the next iteration that begin early. *delays* has,
    by rank, rows of a task, another task, and how long after the start of that one it may start.
    """

    lost_ns: Floats
    delays: dict[int, Int64s] = field(default_factory=dict)

    def count_changes(self, assumed: Effects, *, noticed_ns: int) -> int:
        """How many delays differ from *assumed*, and how many losses by more than *noticed_ns*."""
        moved_ns = np.abs(self.lost_ns.sum(axis=0) - assumed.lost_ns.sum(axis=0))
        changes = int((moved_ns > noticed_ns).sum())
        for rank in self.delays.keys() | assumed.delays.keys():
            parts = (of.delays.get(rank, _NO_DELAYS).tolist() for of in (self, assumed))
            ours, theirs = ({*map(tuple, rows)} for rows in parts)
            changes += len(ours ^ theirs)
        return changes


@dataclass(frozen=True, eq=False)
class Round:
    """One *replay*: *job* with its delays, and *durations* with what tasks lost.

    Columns have a row per task of every rank. *undelayed* is the job without delays, *alone_ns* the
    time of tasks without losses. The round is number *count* and moved the iteration by
    *moved_ratio*; *unsettled* effects had changed when they were compared last.
    """

    undelayed: JobGraph
    alone_ns: Floats
    lost_ns: Floats
    job: JobGraph
    durations: DurationTable
    replay: Replay
    count: int
    moved_ratio: float
    unsettled: int

    @property
    def duration_ns(self) -> Int64s:
        """How long each task took."""
        return self.durations.values_ns[:, 0]

    @cached_property
    def end_ns(self) -> Int64s:
        """When each task of the last iteration ended."""
        return self.replay.last.end_ns[:, 0]

    @cached_property
    def start_ns(self) -> Int64s:
        """When each task of the last iteration started."""
        return self.end_ns - self.duration_ns


Rule = Callable[[Round, Effects], None]
"""Adds to the effects found so far what tasks that overlap in a round cost each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Rules that apply together, and how long they are given: *rounds* of *iterations* each.

    Without *still_ratio* a round is the last if the rules find what it assumed, losses up to
    *noticed_ns*. With it a round is the last if it moves the iteration by less than that. Where
    moves do not shrink, only half of a change is applied. What the rules find in the last of all
    rounds still counts.
    """

    rules: Sequence[Rule]
    rounds: int
    iterations: int
    still_ratio: float | None = None
    noticed_ns: int = 0


def settle(replay: Replayer, job: JobGraph, alone_ns: Floats, rules: Rules) -> Round:
    """Replay *job*, whose tasks take *alone_ns* where nothing overlaps, until nothing moves."""
    is_exact, first_row = rules.still_ratio is None, job.rank_rows()[:-1]
    assumed, delayed = Effects(np.zeros((2, len(alone_ns)))), job
    durations = _lengthen(alone_ns, assumed.lost_ns, first_row)
    end_ns, moved_ratio, unsettled = 0, np.inf, 0
    for count in range(1, rules.rounds + 1):
        played = replay(delayed, durations, rules.iterations)
        before_ns, before_ratio, end_ns = end_ns, moved_ratio, int(played.iteration_end_ns[-1, 0])
        moved_ratio = abs(end_ns - before_ns) / max(end_ns, 1)
        columns = (job, alone_ns, assumed.lost_ns, delayed, durations)
        last = Round(*columns, played, count, moved_ratio, unsettled)
        if is_exact and count == rules.rounds:
            break
        if count > 1 and moved_ratio < (rules.still_ratio or 0.0):
            break
        found = Effects(np.zeros_like(assumed.lost_ns))
        for rule in rules.rules:
            rule(last, found)
        if is_exact or count == 1:
            unsettled = found.count_changes(assumed, noticed_ns=rules.noticed_ns)
            if not unsettled:
                return replace(last, unsettled=0)
        if not is_exact and moved_ratio > before_ratio / 2:
            # Half-way, so that two tasks that swap places settle.
            found = replace(found, lost_ns=(assumed.lost_ns + found.lost_ns) / 2)
        assumed, delayed = found, _delay(job, found.delays)
        durations = _lengthen(alone_ns, assumed.lost_ns, first_row)
    return replace(last, lost_ns=assumed.lost_ns, job=delayed, durations=durations)


def _lengthen(alone_ns: Floats, lost_ns: Floats, first_row: Int64s) -> DurationTable:
    """What every task takes alone and what it lost, rounded once to the clock."""
    values_ns = np.rint(alone_ns + lost_ns.sum(axis=0)).astype(np.int64)
    return DurationTable(values_ns[:, np.newaxis], first_row)


def _delay(job: JobGraph, delays: Mapping[int, Int64s]) -> JobGraph:
    """*job* with *delays*. They differ between ranks, so each rank gets a program of its own."""
    if not delays:
        return job
    programs = [job.program_of(rank) for rank in range(job.rank_count)]
    for rank, rows in delays.items():
        programs[rank] = _with_waits(programs[rank], rows)
    ranks = np.arange(job.rank_count, dtype=np.int32)
    return replace(job, programs=tuple(programs), rank_program=ranks)


def _with_waits(program: Program, delays: Int64s) -> Program:
    """*program* with *delays* as dependencies on the start of other tasks."""
    own = program.dep_owners()
    tasks = np.concatenate([own, delays[:, 0]])
    order = np.argsort(tasks, kind="stable")
    counts = np.bincount(tasks, minlength=program.task_count)
    added = {
        "dep_task": delays[:, 1].astype(np.int32),
        "dep_anchor": np.full(len(delays), int(Anchor.START), dtype=np.uint8),
        "dep_distance": np.zeros(len(delays), dtype=np.uint8),
        "dep_lag_ns": delays[:, 2],
    }
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(program, name), values])[order]
        for name, values in added.items()
    }
    dep_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return replace(program, dep_start=dep_start, **columns)
