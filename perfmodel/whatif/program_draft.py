"""ProgramDraft: a program being edited, task by task, with its dependencies kept sound.

Tasks of the original are called by their number; new ones get numbers beyond.
A removed task counts as one that takes no time: whoever waited for it, or
stood behind it on its lane, waits for what it waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.builder import Dependency
from perfmodel.graph.program import NO_ORIGIN, PLAIN, Anchor, Lane, LaneKind, Program, Role
from perfmodel.whatif.inheritance import Inheritance


@dataclass(slots=True)
class DraftTask:
    """A task while it is edited. *order* sorts it among the rendezvous of its slot."""

    lane: int
    op: int
    label: int
    origin: int = NO_ORIGIN
    slot: int = PLAIN
    order: tuple[int, ...] = ()
    role: int = int(Role.NONE)
    after: list[Dependency] | None = None

    @property
    def dependencies(self) -> list[Dependency]:
        """What the task waits for."""
        if self.after is None:
            self.after = []
        return self.after


class ProgramDraft:
    """Tasks by number, and the order of numbers on every lane; *rank* is one that runs them."""

    def __init__(self, program: Program, rank: int) -> None:
        self.program = program
        self.rank = rank
        self.lanes = list(program.lanes)
        self.tasks: dict[int, DraftTask] = dict(enumerate(_read_tasks(program)))
        self.lane_tasks = [
            list(range(program.lane_start[lane], program.lane_start[lane + 1]))
            for lane in range(len(program.lanes))
        ]
        self._next = program.task_count

    def add_lane(self, name: str, kind: LaneKind) -> int:
        """Add an empty lane and return its number."""
        self.lanes.append(Lane(name, kind))
        self.lane_tasks.append([])
        return len(self.lanes) - 1

    def insert(self, tasks: Sequence[DraftTask], *, before: int | None = None) -> list[int]:
        """Add *tasks* of one lane, right ahead of task *before* or at the end; their numbers."""
        if not tasks:
            return []
        numbers = list(range(self._next, self._next + len(tasks)))
        self._next += len(tasks)
        self.tasks.update(zip(numbers, tasks, strict=True))
        of_lane = self.lane_tasks[tasks[0].lane]
        place = len(of_lane) if before is None else of_lane.index(before)
        of_lane[place:place] = numbers
        return numbers

    def next_on_lane(self, number: int) -> int | None:
        """The task right behind another one on its lane."""
        of_lane = self.lane_tasks[self.tasks[number].lane]
        place = of_lane.index(number) + 1
        return of_lane[place] if place < len(of_lane) else None

    def move(self, number: int, lane: int) -> None:
        """Put a task at the end of another *lane*; its old neighbours close up."""
        self.lane_tasks[self.tasks[number].lane].remove(number)
        self.tasks[number].lane = lane
        self.lane_tasks[lane].append(number)

    def redirect(self, targets: dict[int, int]) -> None:
        """Let whoever waits for a key of *targets* wait for its value instead."""
        for number, task in self.tasks.items():
            task.after = [
                replace(dep, task=targets[dep.task]) if dep.task in targets else dep
                for dep in task.dependencies
                if targets.get(dep.task) != number or dep.distance
            ]

    def remove(self, numbers: Iterable[int], *, keep_waits: bool = True) -> None:
        """Take tasks out. Without *keep_waits* what they waited for is forgotten too."""
        removed = set(numbers)
        if not keep_waits:
            for number in removed:
                self.tasks[number].after = []
        inheritance = Inheritance(
            {number: task.dependencies for number, task in self.tasks.items()},
            self.lane_tasks,
            removed,
        )
        for number, task in self.tasks.items():
            if number not in removed:
                task.after = inheritance.dependencies_of(number)
        for lane, numbers_of_lane in enumerate(self.lane_tasks):
            self.lane_tasks[lane] = [one for one in numbers_of_lane if one not in removed]
        for number in removed:
            del self.tasks[number]

    def waiters(self) -> dict[int, list[int]]:
        """For every task those that wait for it, lane order left out."""
        waiting: dict[int, list[int]] = {number: [] for number in self.tasks}
        for number, task in self.tasks.items():
            for dep in task.dependencies:
                waiting[dep.task].append(number)
        return waiting

    def build(self) -> Program:
        """The program as it is now."""
        if not self.tasks:
            raise ScenarioError(
                "nothing would be left of a rank: every task was removed. Narrow the pattern."
            )
        numbers = [number for of_lane in self.lane_tasks for number in of_lane]
        place = {number: index for index, number in enumerate(numbers)}
        tasks = [self.tasks[number] for number in numbers]
        deps = [list(dict.fromkeys(task.dependencies)) for task in tasks]
        flat = [dep for of_task in deps for dep in of_task]
        return Program(
            lanes=tuple(self.lanes),
            lane_start=_offsets([len(of_lane) for of_lane in self.lane_tasks]),
            op=np.array([task.op for task in tasks], dtype=np.int32),
            label=np.array([task.label for task in tasks], dtype=np.int32),
            origin=np.array([task.origin for task in tasks], dtype=np.int32),
            slot=np.array([task.slot for task in tasks], dtype=np.int32),
            sequence=_number_rendezvous(tasks),
            role=np.array([task.role for task in tasks], dtype=np.uint8),
            dep_start=_offsets([len(of_task) for of_task in deps]),
            dep_task=np.array([place[dep.task] for dep in flat], dtype=np.int32),
            dep_anchor=np.array([dep.anchor for dep in flat], dtype=np.uint8),
            dep_distance=np.array([dep.distance for dep in flat], dtype=np.uint8),
            dep_lag_ns=np.array([dep.lag_ns for dep in flat], dtype=np.int64),
        )


def _read_tasks(program: Program) -> Iterable[DraftTask]:
    columns = [
        column.tolist()
        for column in (
            program.task_lanes(), program.op, program.label, program.origin, program.slot,
            program.sequence, program.role, program.dep_start[:-1], program.dep_start[1:],
        )
    ]  # fmt: skip
    dependencies = [
        Dependency(task, Anchor(anchor), lag_ns, distance)
        for task, anchor, lag_ns, distance in zip(
            program.dep_task.tolist(), program.dep_anchor.tolist(),
            program.dep_lag_ns.tolist(), program.dep_distance.tolist(), strict=True,
        )
    ]  # fmt: skip
    lanes = columns[0]
    for number, row in enumerate(zip(*columns, strict=True)):
        lane, op, label, origin, slot, sequence, role, first, stop = row
        order = () if slot == PLAIN else (sequence, 0)
        # That a lane runs in order need not be said again: it would look like a wait.
        after = [
            dep
            for dep in dependencies[first:stop]
            if lanes[dep.task] != lane or dep.task >= number or dep != Dependency(dep.task)
        ]
        yield DraftTask(lane, op, label, origin, slot, order, role, after)


def _number_rendezvous(tasks: Sequence[DraftTask]) -> np.ndarray:
    """Sequence numbers without gaps, by slot, in the order that the tasks ask for."""
    sequence = np.full(len(tasks), PLAIN, dtype=np.int32)
    of_slot: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for place, task in enumerate(tasks):
        if task.slot != PLAIN:
            of_slot.setdefault(task.slot, []).append((task.order, place))
    for members in of_slot.values():
        for number, (_, place) in enumerate(sorted(members)):
            sequence[place] = number
    return sequence


def _offsets(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
