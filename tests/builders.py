"""Small real jobs for tests: lanes and tasks in a few words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.graph.builder import Dependency, JobBuilder, ProgramBuilder
from perfmodel.graph.durations import DurationTable, build_shared_durations
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN, LaneKind, Role


@dataclass
class RankSketch:
    """One rank being sketched: every task has a name, a lane and a duration."""

    builder: ProgramBuilder
    lanes: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    durations_ns: list[int] = field(default_factory=list)

    def lane(self, name: str, kind: LaneKind) -> None:
        self.lanes[name] = self.builder.add_lane(name, kind)

    def task(
        self,
        name: str,
        lane: str,
        duration_ns: int,
        after: Iterable[str | Dependency] = (),
        *,
        slot: int = PLAIN,
        role: Role = Role.BOTH,
    ) -> int:
        self.tasks[name] = self.builder.add_task(
            self.lanes[lane],
            Fixed(name, duration_ns),
            label=name,
            slot=slot,
            role=role,
            after=[Dependency(self.tasks[dep]) if isinstance(dep, str) else dep for dep in after],
        )
        self.durations_ns.append(duration_ns)
        return self.tasks[name]

    def meet(self, name: str, lane: str, duration_ns: int, *, slot: int = 0, **more: Any) -> int:
        """A task that is a part in a rendezvous."""
        return self.task(name, lane, duration_ns, slot=slot, **more)


class JobSketch:
    """A job being sketched; `build` gives it with its durations."""

    def __init__(self) -> None:
        self._builder = JobBuilder()
        self.ranks: list[RankSketch] = []

    def rank(self, **lanes: LaneKind) -> RankSketch:
        sketch = RankSketch(self._builder.new_program())
        for name, kind in lanes.items():
            sketch.lane(name, kind)
        self.ranks.append(sketch)
        return sketch

    def group(self, *ranks: int, slot: int | list[int] = 0, name: str = "all") -> None:
        self._builder.add_group(name, ranks, slot=slot)

    def build(self) -> tuple[JobGraph, DurationTable]:
        rows = []
        for sketch in self.ranks:
            self._builder.add_rank(self._builder.add_program(sketch.builder.build()))
            row = np.empty(len(sketch.durations_ns), dtype=np.int64)
            row[sketch.builder.place_of_tasks()] = sketch.durations_ns
            rows.append(row)
        job = self._builder.build(JobFacts("sketch"))
        return job, build_shared_durations(job, rows)


def times_by_label(
    job: JobGraph, durations: DurationTable, timeline: object
) -> dict[str, tuple[int, int]]:
    """(start, end) of every task by `rank/label`."""
    times, place = {}, 0
    for rank in range(job.rank_count):
        for task in range(job.program_of(rank).task_count):
            end = int(timeline.end_ns[place + task, 0])
            start = end - int(durations.of_rank(job, rank)[task, 0])
            times[f"{rank}/{job.label_of(rank, task)}"] = (start, end)
        place += job.program_of(rank).task_count
    return times
