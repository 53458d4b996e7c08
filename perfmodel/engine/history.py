"""History: why every task started when it did, derived from a replay.

Ties: if the previous task on the lane and a dependency end at the same nanosecond, the task on the
lane is the cause; of several dependencies, the first one. The cause of a rendezvous is its last
member; of members that are ready at the same nanosecond, the lowest rank, then the lowest task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from perfmodel.engine.layout import FlatJob, Int32s, Int64s, Places, build_places
from perfmodel.engine.replay import Replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Anchor, Program, Role


class Occurrence(NamedTuple):
    """A task of a rank in one iteration."""

    iteration: int
    rank: int
    task: int


class Hop(Enum):
    """What a task waited for last."""

    LANE = "lane"
    DEPENDENCY = "dependency"
    RENDEZVOUS = "rendezvous"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a task waited for last, and when that was known.

    *source* is None if it is not in the stored iterations.
    """

    hop: Hop
    source: Occurrence | None
    moment_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class HistorySlice:
    """The ranks of a history that has only some, from *first_rank* on.

    *last_members* are of rendezvous with other ranks, by iteration, group and sequence.
    """

    first_rank: int
    places: Places
    last_members: Mapping[tuple[int, int, int], Occurrence] = field(default_factory=dict)


class History:
    """Queries about single tasks of a replay, for the first duration vector.

    Ranks have the numbers of the whole job, even if *job* is a *part* of it.
    """

    def __init__(
        self,
        job: JobGraph,
        durations: DurationTable,
        replay: Replay,
        part: HistorySlice | None = None,
    ) -> None:
        part = HistorySlice(0, build_places(job)) if part is None else part
        self.job = job
        self.replay = replay
        self._first_rank, self._places = part.first_rank, part.places
        self._durations = durations
        self._endpoints = job.endpoints()
        self._timelines = {timeline.iteration: timeline for timeline in replay.timelines}
        self._kept: dict[tuple[int, int], tuple[Int64s, Int64s, Int64s]] = {}
        self._member_tasks: dict[tuple[int, int], dict[int, int]] = {}
        self._last_members = dict(part.last_members)

    @property
    def ranks(self) -> range:
        """The ranks of this history."""
        return range(self._first_rank, self._first_rank + self.job.rank_count)

    def by_rank(self, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all ranks, computed where their tasks are stored.

        *function* is at the top level of a module and reads only tasks of *rank*.
        """
        if self.replay.remote is not None and self.replay.remote.is_open:
            return self.replay.remote.by_rank(function, *words)
        return [function(self, rank, *words) for rank in self.ranks]

    def at_rank(self, rank: int, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)`, computed where the tasks of *rank* are stored."""
        if self.replay.remote is not None and self.replay.remote.is_open:
            return self.replay.remote.at_rank(rank, function, *words)
        return function(self, *words)

    def program_of(self, rank: int) -> Program:
        """The program of *rank*."""
        return self.job.program_of(rank - self._first_rank)

    @property
    def iterations(self) -> list[int]:
        """The stored iterations, in order."""
        return sorted(self._timelines)

    def end_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* ended."""
        place = rank - self._first_rank
        rows = slice(self._places.r_task[place], self._places.r_task[place + 1])
        return self._timelines[iteration].ends_of(rows)[:, 0]

    def duration_ns(self, rank: int) -> Int64s:
        """How long every task of *rank* takes."""
        return self._durations.of_rank(self.job, rank - self._first_rank)[:, 0]

    def start_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* started."""
        return self.end_ns(iteration, rank) - self.duration_ns(rank)

    def ready_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* could have started without waiting for other ranks."""
        ready = self.start_ns(iteration, rank).copy()
        program = self.program_of(rank)
        tasks = np.flatnonzero(program.slot != PLAIN)
        members = self._members(rank, program.slot[tasks], program.sequence[tasks])
        ready[tasks] = self._timelines[iteration].member_ready_ns[members, 0]
        return ready

    def moment_ns(self, at: Occurrence, anchor: Anchor) -> int:
        """When one task ended or started."""
        starts_ns, ends_ns, _ = self._columns(at)
        return int((ends_ns if anchor is Anchor.END else starts_ns)[at.task])

    def moment_ready_ns(self, at: Occurrence) -> int:
        """When one task could have started without waiting for other ranks."""
        program = self.program_of(at.rank)
        slot = program.slot[at.task]
        if slot == PLAIN:
            return self.moment_ns(at, Anchor.START)
        member = self._members(at.rank, slot, program.sequence[at.task])
        return int(self._timelines[at.iteration].member_ready_ns[member, 0])

    def last_member(self, at: Occurrence) -> Occurrence:
        """The member that the rendezvous of *at* waited for."""
        program = self.program_of(at.rank)
        group = int(self.job.rank_group[at.rank - self._first_rank, program.slot[at.task]])
        key = (at.iteration, group, int(program.sequence[at.task]))
        if key not in self._last_members:
            self._last_members[key] = self._find_last_member(*key)
        return self._last_members[key]

    def _find_last_member(self, iteration: int, group: int, sequence: int) -> Occurrence:
        size = int(self._places.g_size[group])
        first = int(self._places.g_member[group]) + sequence * size
        ready_ns = self._timelines[iteration].member_ready_ns[first : first + size, 0]
        row = int(self._endpoints.group_start[group])
        candidates = []
        for place, moment_ns in enumerate(ready_ns):
            rank = self._first_rank + int(self._endpoints.rank[row + place])
            task = self._member_task(rank, int(self._endpoints.slot[row + place]), sequence)
            if self.program_of(rank).role[task] & Role.SIGNALS:
                candidates.append((-int(moment_ns), rank, task))
        _, rank, task = min(candidates)
        return Occurrence(iteration, rank, task)

    def binding(self, at: Occurrence) -> Binding:
        """What *at* waited for last, another rank included."""
        start = self.moment_ns(at, Anchor.START)
        if start > self.moment_ready_ns(at):
            return Binding(Hop.RENDEZVOUS, self.last_member(at), start)
        return self.local_binding(at)

    def local_binding(self, at: Occurrence) -> Binding:
        """What *at* waited for last on its own rank."""
        ready = self.moment_ready_ns(at)
        previous = self._previous_on_lane(at)
        if previous is not None and self.moment_ns(previous, Anchor.END) == ready:
            return Binding(Hop.LANE, previous, ready)
        program = self.program_of(at.rank)
        for row in range(program.dep_start[at.task], program.dep_start[at.task + 1]):
            iteration = at.iteration - int(program.dep_distance[row])
            source = Occurrence(iteration, at.rank, int(program.dep_task[row]))
            if iteration in self._timelines:
                moment = self.moment_ns(source, Anchor(int(program.dep_anchor[row])))
                if moment + int(program.dep_lag_ns[row]) == ready:
                    return Binding(Hop.DEPENDENCY, source, moment)
        return Binding(Hop.NOTHING, None, ready)

    def lane_run(self, at: Occurrence, from_ns: int) -> list[int]:
        """Starts of *at* and of tasks before it, if each waited for the one before on its lane.

        Latest first, as far as they are after *from_ns*. Most of a path of many tasks is such runs.
        """
        starts_ns, _, cause = self._columns(at)
        run_ns = starts_ns[cause[at.task] + 1 : at.task + 1]
        kept: list[int] = run_ns[np.searchsorted(run_ns, from_ns, side="right") :][::-1].tolist()
        return kept

    def _columns(self, at: Occurrence) -> tuple[Int64s, Int64s, Int64s]:
        """Starts and ends of all tasks of the rank of *at*, and where the run of each begins."""
        key = at.iteration, at.rank
        if key not in self._kept:
            program, ends_ns = self.program_of(at.rank), self.end_ns(*key)
            starts_ns = ends_ns - self.duration_ns(at.rank)
            has_cause = program.slot == PLAIN
            has_cause[program.lane_start[:-1][np.diff(program.lane_start) > 0]] = False
            has_cause[1:] &= ends_ns[:-1] == starts_ns[1:]
            first = np.maximum.accumulate(np.where(has_cause, 0, np.arange(len(starts_ns))))
            self._kept[key] = starts_ns, ends_ns, first
        return self._kept[key]

    def _members(self, rank: int, slots: Int32s, sequences: Int32s) -> Int64s:
        """The members of rendezvous *sequences* at *slots* of *rank*."""
        place = rank - self._first_rank
        group = self.job.rank_group[place, slots]
        first = self._places.g_member[group] + sequences * self._places.g_size[group]
        members: Int64s = first + self._places.r_position[place, slots]
        return members

    def _previous_on_lane(self, at: Occurrence) -> Occurrence | None:
        lane_start = self.program_of(at.rank).lane_start
        lane = int(np.searchsorted(lane_start, at.task, side="right")) - 1
        if at.task > lane_start[lane]:
            return at._replace(task=at.task - 1)
        earlier = at._replace(iteration=at.iteration - 1, task=int(lane_start[lane + 1]) - 1)
        return earlier if earlier.iteration in self._timelines else None

    def _member_task(self, rank: int, slot: int, sequence: int) -> int:
        key = (int(self.job.rank_program[rank - self._first_rank]), slot)
        if key not in self._member_tasks:
            program = self.job.programs[key[0]]
            tasks = np.flatnonzero(program.slot == slot)
            self._member_tasks[key] = {int(program.sequence[task]): int(task) for task in tasks}
        return self._member_tasks[key][sequence]


def last_signals(layout: FlatJob, ready_ns: Int64s, first_rank: int) -> Int64s:
    """The last of the ranks in *layout* at each rendezvous that has members in other blocks.

    Rows of group, sequence, moment, rank, task; none if no rank here signals. *ready_ns* is by
    member.
    """
    counts = np.diff(layout.p_member)[layout.r_program]
    rank = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    row = np.arange(len(rank)) + np.repeat(layout.p_member[layout.r_program] - before, counts)
    tasks = np.flatnonzero(layout.member != PLAIN)
    task = tasks - np.repeat(layout.p_task[:-1], np.diff(layout.p_member))
    slot, sequence = layout.m_slot[row], layout.m_sequence[row].astype(np.int64)
    group = layout.r_group[rank, slot]
    chosen = (layout.g_is_external[group] > 0) & ((layout.m_role[row] & Role.SIGNALS) > 0)
    member = layout.g_member[group] + sequence * layout.g_size[group]
    member += layout.r_position[rank, slot]
    rows = np.column_stack([group, sequence, ready_ns[member], rank + first_rank, task[row]])
    return first_of_each(rows[chosen].astype(np.int64))


def first_of_each(rows: Int64s) -> Int64s:
    """The row of the last member of each rendezvous: of equals the lowest rank, then task."""
    group, sequence, ready_ns, rank, task = rows.T
    ordered = rows[np.lexsort((task, rank, -ready_ns, sequence, group))]
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = (np.diff(ordered[:, :2], axis=0) != 0).any(axis=1)
    return ordered[is_first]
