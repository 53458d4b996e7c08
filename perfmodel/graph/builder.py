"""Builders: make programs and jobs one task at a time.

Tasks may be added to lanes in any order; only the order within a lane counts. `build` sorts them
lane by lane and renumbers the dependencies.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import GraphError
from perfmodel.graph.job import NO_GROUP, Group, JobFacts, JobGraph, Origin
from perfmodel.graph.ops import Op
from perfmodel.graph.program import (
    COLUMN_TYPES,
    PLAIN,
    Anchor,
    Dependency,
    Lane,
    LaneKind,
    Program,
    Role,
    offsets,
)
from perfmodel.graph.tables import Naming, Piece, Tables

Answer = TypeVar("Answer")
MOST_DISTANCE = 255
_TASK_FIELDS = 7
_SLOT = 4
"""Field of a task's row with its communicator slot; the next one is its sequence."""
_DEP_FIELDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class TaskColumns:
    """Many tasks at once: ops, labels and origins by their numbers in the tables."""

    lane: NDArray[np.int64]
    op: NDArray[np.int64]
    label: NDArray[np.int64]
    origin: NDArray[np.int64]
    slot: NDArray[np.int64]
    role: NDArray[np.int64]


class ProgramBuilder:
    """Collects the tasks of one rank's iteration.

    Stored as flat numbers, seven per task and five per dependency: programs may have a million
    tasks.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._lanes: list[Lane] = []
        self._tasks = array("q")
        self._deps = array("q")
        self._next_sequence: Counter[int] = Counter()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes added so far."""
        return tuple(self._lanes)

    @property
    def task_count(self) -> int:
        """Number of tasks added so far."""
        return len(self._tasks) // _TASK_FIELDS

    def add_lane(self, name: str, kind: LaneKind) -> int:
        """Add a lane and return its number."""
        self._lanes.append(Lane(name, kind))
        return len(self._lanes) - 1

    def add_task(
        self,
        lane: int,
        op: Op,
        *,
        label: str,
        slot: int = PLAIN,
        role: Role = Role.BOTH,
        origin: Origin | None = None,
        after: Iterable[Dependency | int] = (),
    ) -> int:
        """Append a task to *lane* and return its number for later dependencies.

        With a *slot* it is this rank's part in the next rendezvous of that communicator.
        """
        tables, task = self.tables, self.task_count
        if not 0 <= lane < len(self._lanes):
            raise GraphError(f"task needs a lane that was added before, got lane {lane}.")
        sequence, part = PLAIN, 0
        if slot != PLAIN:
            sequence, part = self._next_sequence[slot], int(role)
            self._next_sequence[slot] = sequence + 1
        named = tables.label(label), tables.origin(origin, label)
        self._tasks.extend((lane, tables.op(op), *named, slot, sequence, part))
        for dependency in after:
            self.add_dependency(task, dependency)
        return task

    def add_dependency(self, task: int, dependency: Dependency | int) -> None:
        """Let *task* also wait for *dependency*, which may be a task added later."""
        if isinstance(dependency, int):
            self._deps.extend((task, dependency, Anchor.END, 0, 0))
            return
        if not 0 <= dependency.distance <= MOST_DISTANCE:
            raise GraphError(
                f"dependency on task {dependency.task}: distance must be 0 to {MOST_DISTANCE} "
                f"iterations, got {dependency.distance}."
            )
        self._deps.extend(
            (task, dependency.task, dependency.anchor, dependency.distance, dependency.lag_ns)
        )

    def add_columns(self, tasks: TaskColumns) -> int:
        """Append many tasks at once, in order; the number of the first."""
        first = self.task_count
        columns = np.stack(
            [
                tasks.lane,
                tasks.op,
                tasks.label,
                tasks.origin,
                tasks.slot,
                self._number_rendezvous(tasks.slot),
                np.where(tasks.slot == PLAIN, 0, tasks.role),
            ],
            axis=1,
        )
        self._tasks.frombytes(columns.astype(np.int64, copy=False).tobytes())
        return first

    def _number_rendezvous(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequence of every task of *slots*, counted on from the tasks before."""
        sequence = np.full(len(slots), PLAIN, dtype=np.int64)
        for slot in sorted(set(slots[slots != PLAIN].tolist())):
            own = np.flatnonzero(slots == slot)
            before = self._next_sequence[slot]
            sequence[own] = before + np.arange(len(own))
            self._next_sequence[slot] = before + len(own)
        return sequence

    def add_dependencies(
        self,
        tasks: NDArray[np.int64],
        sources: NDArray[np.int64],
        *,
        lag_ns: NDArray[np.int64] | int = 0,
        anchor: NDArray[np.integer[Any]] | int = Anchor.END,
    ) -> None:
        """Let each of *tasks* also wait for the task at the same place of *sources*."""
        rows = np.zeros((len(tasks), _DEP_FIELDS), dtype=np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 4] = tasks, sources, anchor, lag_ns
        self._deps.frombytes(rows.tobytes())

    def drop_dependencies(self) -> None:
        """Forget all dependencies, to write others between the same tasks."""
        self._deps = array("q")

    def cut(
        self, write: Callable[[], Answer], *, naming: Naming, leans_on: Sequence[int]
    ) -> tuple[Piece, Answer]:
        """The tasks that *write* adds, with labels under *naming*, and what it returns.

        They may depend on each other and on the tasks in *leans_on*.
        """
        start, first_dep, before = self.task_count, len(self._deps), self._next_sequence.copy()
        answer = write()
        tasks = np.array(self._tasks[start * _TASK_FIELDS :], dtype=np.int64)
        deps = np.array(self._deps[first_dep:], dtype=np.int64)
        tasks, deps = tasks.reshape(-1, _TASK_FIELDS), deps.reshape(-1, _DEP_FIELDS)
        numbers, tasks[:, 2] = np.unique(tasks[:, 2], return_inverse=True)
        names = tuple(self.tables.label_index)
        deps[:, :2] -= start
        place_of = {task - start: place for place, task in enumerate(leans_on)}
        outside = np.flatnonzero(deps[:, 1] < 0)
        for slot, count in before.items():
            tasks[tasks[:, _SLOT] == slot, _SLOT + 1] -= count
        sequences = self._next_sequence - before
        place_of_slot = {slot: place for place, slot in enumerate(sequences)}
        members = np.flatnonzero(tasks[:, _SLOT] != PLAIN)
        slots = [place_of_slot[slot] for slot in tasks[members, _SLOT].tolist()]
        sources = [place_of[task] for task in deps[outside, 1].tolist()]
        piece = Piece(
            tasks=tasks,
            deps=deps,
            labels=tuple(naming.take_off(names[number]) for number in numbers.tolist()),
            members=members,
            slot_of=np.array(slots, dtype=np.int64),
            sequences=sequences,
            outside=outside,
            source_of=np.array(sources, dtype=np.int64),
        )
        return piece, answer

    def paste(self, piece: Piece, *, naming: Naming, leans_on: Sequence[int]) -> None:
        """Add *piece* again, with labels under *naming*, depending on the tasks in *leans_on*."""
        start, following = self.task_count, self._next_sequence
        tasks, deps = piece.named(self.tables, naming).copy(), piece.deps.copy()
        if len(piece.members):
            before = np.array([following[slot] for slot in piece.sequences], dtype=np.int64)
            tasks[piece.members, _SLOT + 1] += before[piece.slot_of]
            for slot, count in piece.sequences.items():
                following[slot] += count
        deps[:, :2] += start
        if len(piece.outside):
            deps[piece.outside, 1] = np.array(leans_on, dtype=np.int64)[piece.source_of]
        self._tasks.frombytes(tasks.tobytes())
        self._deps.frombytes(deps.tobytes())

    def build(self) -> Program:
        """The program; the builder can go on being used."""
        # Views, not copies: programs may have millions of tasks.
        tasks = np.frombuffer(self._tasks, dtype=np.int64).reshape(-1, _TASK_FIELDS)
        deps = np.frombuffer(self._deps, dtype=np.int64).reshape(-1, _DEP_FIELDS)
        self._check_sources(deps[:, 1])
        place = self.place_of_tasks()
        order = np.argsort(tasks[:, 0], kind="stable")
        targets = place[deps[:, 0]]
        dep_order = np.argsort(targets, kind="stable")
        columns = chain(
            [offsets(np.bincount(tasks[:, 0], minlength=len(self._lanes)))],
            (tasks[order, number] for number in range(1, _TASK_FIELDS)),
            [offsets(np.bincount(targets, minlength=len(tasks)))],
            (place[deps[dep_order, 1]] for _ in range(1)),
            (deps[dep_order, number] for number in range(2, _DEP_FIELDS)),
        )
        typed: dict[str, Any] = {
            name: column.astype(dtype)
            for (name, dtype), column in zip(COLUMN_TYPES.items(), columns, strict=True)
        }
        return Program(lanes=tuple(self._lanes), **typed)

    def place_of_tasks(self) -> NDArray[np.int64]:
        """The number of each added task in the built program."""
        lanes = np.frombuffer(self._tasks, dtype=np.int64).reshape(-1, _TASK_FIELDS)[:, 0]
        place = np.empty(len(lanes), dtype=np.int64)
        place[np.argsort(lanes, kind="stable")] = np.arange(len(lanes))
        return place

    def _check_sources(self, sources: NDArray[np.int64]) -> None:
        wrong = sources[(sources < 0) | (sources >= self.task_count)]
        if len(wrong):
            raise GraphError(
                f"dependency: must name a task of the same rank (0 to {self.task_count - 1}), "
                f"got {wrong[0]}."
            )


class JobBuilder:
    """Collects programs, ranks and groups into a job."""

    def __init__(self, tables: Tables | None = None) -> None:
        """*tables* are those of an earlier job whose pieces are reused."""
        self.tables = tables or Tables()
        self._programs: list[Program] = []
        self._rank_program: list[int] = []
        self._groups: list[Group] = []
        self._endpoints: list[tuple[int, int, int]] = []

    def new_program(self) -> ProgramBuilder:
        """A builder for a program that uses the tables of this job."""
        return ProgramBuilder(self.tables)

    def add_program(self, program: Program) -> int:
        """Add a finished program and return its number."""
        self._programs.append(program)
        return len(self._programs) - 1

    def swap_ops(self, program: Program, swapped: Iterable[tuple[Op, Op]]) -> Program | None:
        """*program* with ops replaced; None if an op to replace occurs more than once."""
        ops = program.op.copy()
        for before, after in swapped:
            places = np.flatnonzero(program.op == self.tables.op_index.get(before, PLAIN))
            if len(places) > 1:
                return None
            if len(places):
                ops[places] = self.tables.op(after)
        return replace(program, op=ops)

    def add_rank(self, program: int) -> int:
        """Add a rank that runs *program* and return it; ranks count from 0."""
        self._rank_program.append(program)
        return len(self._rank_program) - 1

    def add_group(self, name: str, ranks: Sequence[int], *, slot: int | Sequence[int]) -> int:
        """Add a group; *slot* is its communicator slot on each of its ranks."""
        slots = [slot] * len(ranks) if isinstance(slot, int) else list(slot)
        self._groups.append(Group(name, tuple(ranks)))
        group = len(self._groups) - 1
        self._endpoints.extend(
            (rank, of_rank, group) for rank, of_rank in zip(ranks, slots, strict=True)
        )
        return group

    def build(self, facts: JobFacts) -> JobGraph:
        """The job. Its audit is `perfmodel.graph.audit.check_job`."""
        slot_count = max((program.slot_count for program in self._programs), default=0)
        slot_count = max([slot_count, *(slot + 1 for _, slot, _ in self._endpoints)])
        rank_group = np.full((len(self._rank_program), slot_count), NO_GROUP, dtype=np.int32)
        for rank, slot, group in self._endpoints:
            self._place_endpoint(rank_group, rank, slot, group)
        return JobGraph(
            ops=tuple(self.tables.op_index),
            labels=tuple(self.tables.label_index),
            origins=tuple(self.tables.origin_index),
            programs=tuple(self._programs),
            rank_program=np.array(self._rank_program, dtype=np.int32),
            groups=tuple(self._groups),
            rank_group=rank_group,
            facts=facts,
        )

    def _place_endpoint(self, rank_group: np.ndarray, rank: int, slot: int, group: int) -> None:
        name = self._groups[group].name
        if not 0 <= rank < len(rank_group):
            raise GraphError(
                f"group {name!r}: must name ranks 0 to {len(rank_group) - 1}, got rank {rank}."
            )
        if rank_group[rank, slot] != NO_GROUP:
            other = self._groups[int(rank_group[rank, slot])].name
            raise GraphError(
                f"group {name!r}: slot {slot} of rank {rank} is taken by group {other!r}. "
                "Give each communicator of a rank its own slot."
            )
        rank_group[rank, slot] = group
