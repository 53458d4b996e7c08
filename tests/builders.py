"""Small real jobs for tests: lanes and tasks in a few words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.durations import DurationTable, build_shared_durations
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN, Anchor, Dependency, LaneKind, Role


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


KINDS = {
    "gpu": LaneKind.COMPUTE, "side": LaneKind.COMPUTE, "wire": LaneKind.COMMUNICATION,
    "wire2": LaneKind.COMMUNICATION, "copy": LaneKind.COPY, "host": LaneKind.HOST,
    "loader": LaneKind.LOADER,
}  # fmt: skip
"""Lanes of a job in words, by name."""


def job_of(*ranks: str) -> tuple[JobGraph, DurationTable]:
    """A job in words: for each rank, `lane task duration_ns waits` between semicolons.

    A rank is repeated by `2 x ...`. `*task` is a rendezvous of all ranks, `*task@1` one in slot 1.
    Waits are `<task` for the end of a task, `<^task` for its start, `<task+5` 5 ns later, and
    `<task-1` for that of the iteration before.
    """
    sketch, slots = JobSketch(), set()
    for text in ranks:
        count, sign, tasks = text.partition(" x ")
        for _ in range(int(count) if sign else 1):
            rank = sketch.rank()
            for words in (task.split() for task in (tasks or text).split(";")):
                lane, name, duration_ns = words[0], words[1], int(words[2])
                if lane not in rank.lanes:
                    rank.lane(lane, KINDS[lane])
                after = [_wait(rank, word) for word in words[3:]]
                name, _, number = name.partition("@")
                slot = int(number or 0) if name.startswith("*") else PLAIN
                rank.task(name.lstrip("*"), lane, duration_ns, after=after, slot=slot)
                slots.add(slot)
    for slot in sorted(slots - {PLAIN}):
        sketch.group(*range(len(sketch.ranks)), slot=slot, name=f"slot {slot}")
    return sketch.build()


def _wait(rank: RankSketch, word: str) -> Dependency:
    parts = re.fullmatch(r"<(\^?)(\w+?)(?:\+(\d+))?(?:-(\d+))?", word)
    assert parts is not None, word
    start, name, lag_ns, distance = parts.groups()
    anchor = Anchor.START if start else Anchor.END
    return Dependency(
        rank.tasks[name], anchor, lag_ns=int(lag_ns or 0), distance=int(distance or 0)
    )


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


def forge_column(path: Path, name: str, values: list[Any]) -> None:
    """Write *values* as column *name* of the file of a saved job at *path*."""
    table = pq.read_table(path)
    columns = {one: table[one] for one in table.column_names} | {name: pa.array(values)}
    pq.write_table(pa.table(columns), path)


def seal_job(folder: Path) -> None:
    """Make all checksums of the saved job in *folder* right again, as a forger does."""

    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    head = orjson.loads((folder / "job.json").read_bytes())
    for name in head["files"]:
        data = (folder / name).read_bytes()
        head["files"][name] = {"bytes": len(data), "sha256": digest(data)}
    content = {key: head[key] for key in head if key not in ("made", "sha256")}
    head["sha256"] = digest(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
    (folder / "job.json").write_bytes(orjson.dumps(head))
    if (folder / "recording.json").is_file():
        head = orjson.loads((folder / "recording.json").read_bytes())
        head["files"] = {name: digest((folder / name).read_bytes()) for name in head["files"]}
        (folder / "recording.json").write_bytes(orjson.dumps(head))
