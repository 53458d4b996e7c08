"""History: why every task started when it did, worked out from a replay.

Ties: a task is bound by the task before it on its lane rather than by a
dependency that ends at the same nanosecond, and by the first such dependency
in the order given. A rendezvous is bound by its last member; among members
ready at the same nanosecond, by the lowest rank, then the lowest task.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from perfmodel.engine.layout import Int32s, Int64s, build_layout
from perfmodel.engine.replay import Replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Anchor, Role


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
    """What made a task start no earlier, and when that was known.

    *source* is None where nothing kept in the replay did.
    """

    hop: Hop
    source: Occurrence | None
    moment_ns: int


class History:
    """A replay that can be asked about single tasks, for the first duration vector."""

    def __init__(self, job: JobGraph, durations: DurationTable, replay: Replay) -> None:
        self.job = job
        self.replay = replay
        self._layout = build_layout(job)
        self._durations = durations
        self._endpoints = job.endpoints()
        self._timelines = {timeline.iteration: timeline for timeline in replay.timelines}
        self._member_tasks: dict[tuple[int, int], dict[int, int]] = {}
        self._last_members: dict[tuple[int, int, int], Occurrence] = {}

    @property
    def iterations(self) -> list[int]:
        """The iterations that the replay kept, in order."""
        return sorted(self._timelines)

    def end_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* ended."""
        rows = slice(self._layout.r_task[rank], self._layout.r_task[rank + 1])
        ends: Int64s = self._timelines[iteration].ends_of(rows)[:, 0]
        return ends

    def duration_ns(self, rank: int) -> Int64s:
        """How long every task of *rank* takes."""
        durations: Int64s = self._durations.of_rank(self.job, rank)[:, 0]
        return durations

    def start_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* started."""
        starts: Int64s = self.end_ns(iteration, rank) - self.duration_ns(rank)
        return starts

    def ready_ns(self, iteration: int, rank: int) -> Int64s:
        """When every task of *rank* could have started, had it not waited for other ranks."""
        ready = self.start_ns(iteration, rank).copy()
        program = self.job.program_of(rank)
        tasks = np.flatnonzero(program.slot != PLAIN)
        members = self._members(rank, program.slot[tasks], program.sequence[tasks])
        ready[tasks] = self._timelines[iteration].member_ready_ns[members, 0]
        return ready

    def moment_ns(self, at: Occurrence, anchor: Anchor) -> int:
        """When one task ended or started."""
        flat = int(self._layout.r_task[at.rank]) + at.task
        end = int(self._timelines[at.iteration].ends_of(slice(flat, flat + 1))[0, 0])
        if anchor is Anchor.END:
            return end
        offset = int(self._durations.rank_offset[at.rank]) + at.task
        return end - int(self._durations.values_ns[offset, 0])

    def moment_ready_ns(self, at: Occurrence) -> int:
        """When one task could have started, had it not waited for other ranks."""
        program = self.job.program_of(at.rank)
        slot = program.slot[at.task]
        if slot == PLAIN:
            return self.moment_ns(at, Anchor.START)
        member = self._members(at.rank, slot, program.sequence[at.task])
        return int(self._timelines[at.iteration].member_ready_ns[member, 0])

    def last_member(self, at: Occurrence) -> Occurrence:
        """The member that the rendezvous of *at* waited for."""
        program = self.job.program_of(at.rank)
        group = int(self.job.rank_group[at.rank, program.slot[at.task]])
        key = (at.iteration, group, int(program.sequence[at.task]))
        if key not in self._last_members:
            self._last_members[key] = self._find_last_member(*key)
        return self._last_members[key]

    def _find_last_member(self, iteration: int, group: int, sequence: int) -> Occurrence:
        size = int(self._layout.g_size[group])
        first = int(self._layout.g_member[group]) + sequence * size
        ready_ns = self._timelines[iteration].member_ready_ns[first : first + size, 0]
        row = int(self._endpoints.group_start[group])
        candidates = []
        for place, moment_ns in enumerate(ready_ns):
            rank = int(self._endpoints.rank[row + place])
            task = self._member_task(rank, int(self._endpoints.slot[row + place]), sequence)
            if self.job.program_of(rank).role[task] & Role.SIGNALS:
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
        program = self.job.program_of(at.rank)
        for row in range(program.dep_start[at.task], program.dep_start[at.task + 1]):
            iteration = at.iteration - int(program.dep_distance[row])
            source = Occurrence(iteration, at.rank, int(program.dep_task[row]))
            if iteration in self._timelines:
                moment = self.moment_ns(source, Anchor(int(program.dep_anchor[row])))
                if moment + int(program.dep_lag_ns[row]) == ready:
                    return Binding(Hop.DEPENDENCY, source, moment)
        return Binding(Hop.NOTHING, None, ready)

    def _members(self, rank: int, slots: Int32s, sequences: Int32s) -> Int64s:
        """The numbers of the members that stand behind *slots* of *rank*."""
        group = self.job.rank_group[rank, slots]
        first = self._layout.g_member[group] + sequences * self._layout.g_size[group]
        members: Int64s = first + self._layout.r_position[rank, slots]
        return members

    def _previous_on_lane(self, at: Occurrence) -> Occurrence | None:
        lane_start = self.job.program_of(at.rank).lane_start
        lane = int(np.searchsorted(lane_start, at.task, side="right")) - 1
        if at.task > lane_start[lane]:
            return at._replace(task=at.task - 1)
        earlier = at._replace(iteration=at.iteration - 1, task=int(lane_start[lane + 1]) - 1)
        return earlier if earlier.iteration in self._timelines else None

    def _member_task(self, rank: int, slot: int, sequence: int) -> int:
        key = (int(self.job.rank_program[rank]), slot)
        if key not in self._member_tasks:
            program = self.job.programs[key[0]]
            tasks = np.flatnonzero(program.slot == slot)
            self._member_tasks[key] = {int(program.sequence[task]): int(task) for task in tasks}
        return self._member_tasks[key][sequence]
