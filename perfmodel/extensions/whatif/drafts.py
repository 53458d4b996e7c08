"""Drafts: a job and its programs while they are edited, with sound dependencies.

Tasks of the original program keep their numbers; new ones get higher numbers. Removing a task is
like letting it take no time: tasks that waited for it, or followed it on its lane, wait for its
own dependencies instead. Ranks that share a program get separate ones only where they must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.inheritance import Inheritance
from perfmodel.extensions.whatif.passes import Mask
from perfmodel.extensions.whatif.selection import Numbers, Selection
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Op, duration_of
from perfmodel.graph.program import (
    COLUMN_TYPES,
    NO_ORIGIN,
    PLAIN,
    Anchor,
    Dependency,
    Lane,
    LaneKind,
    Program,
    Role,
    offsets,
    read_dependencies,
)

Ranks = tuple[int, ...]


@dataclass(slots=True)
class DraftTask:
    """A task while it is edited. *order* sorts it among the rendezvous of its slot.

    It starts *gap_ns* after the task ahead of it on its lane at the earliest, whichever that is.
    """

    lane: int
    op: int
    label: int
    origin: int = NO_ORIGIN
    slot: int = PLAIN
    order: tuple[int, ...] = ()
    role: int = int(Role.NONE)
    after: list[Dependency] = field(default_factory=list)
    gap_ns: int = 0


class JobDraft:
    """Ops, labels and programs of a job, which may grow; only *ranks* are edited, if given."""

    def __init__(self, job: JobGraph, ranks: Numbers | None = None) -> None:
        self.job = job
        self.ops = list(job.ops)
        self.labels = list(job.labels)
        self._op_index = {op: index for index, op in enumerate(job.ops)}
        self._label_index = {label: index for index, label in enumerate(job.labels)}
        self._programs: list[Program] = list(job.programs)
        self._rank_program = job.rank_program.copy()
        self._ranks = ranks
        self._found: set[Selection] = set()

    def op(self, op: Op) -> int:
        """The index of *op*, added if it is new."""
        if op not in self._op_index:
            self._op_index[op] = len(self.ops)
            self.ops.append(op)
        return self._op_index[op]

    def label(self, label: str) -> int:
        """The index of *label*, added if it is new."""
        if label not in self._label_index:
            self._label_index[label] = len(self.labels)
            self.labels.append(label)
        return self._label_index[label]

    def check_found(self, selection: Selection) -> None:
        """Raise unless *selection* selects a task of the edited ranks."""
        if selection not in self._found:
            selection.check_found(self.job, self._ranks)
            self._found.add(selection)

    def edit(self, edit: Callable[[Program, int], Program]) -> None:
        """Put programs through *edit*, with one of their ranks; other ranks keep the old ones."""
        ranks = self._ranks
        chosen = np.arange(self.job.rank_count) if ranks is None else np.array(ranks.values)
        for index in np.unique(self._rank_program[chosen]).tolist():
            of_program = chosen[self._rank_program[chosen] == index]
            edited = edit(self._programs[index], int(of_program[0]))
            if edited is self._programs[index]:
                continue
            if len(of_program) == np.count_nonzero(self._rank_program == index):
                self._programs[index] = edited
            else:
                self._programs.append(edited)
                self._rank_program[of_program] = len(self._programs) - 1

    def build(self) -> JobGraph:
        """The job as it is now."""
        return replace(
            self.job,
            ops=tuple(self.ops),
            labels=tuple(self.labels),
            programs=tuple(self._programs),
            rank_program=self._rank_program,
        )


def members_of(job: JobGraph, rank: int, slot: int) -> Ranks:
    """The ranks that communicate with *rank* through *slot*."""
    return () if slot == PLAIN else job.groups[int(job.rank_group[rank, slot])].ranks


def edit_programs(
    job: JobGraph, edit: Callable[[ProgramDraft], None], *, ranks: Numbers | None = None
) -> JobGraph:
    """*job* with the structure of its programs changed by *edit*."""
    if ranks is not None:
        ranks.check_ranks(job)
    draft = JobDraft(job, ranks)

    def edit_one(program: Program, rank: int) -> Program:
        of_program = ProgramDraft(draft, program, rank)
        edit(of_program)
        return of_program.build()

    draft.edit(edit_one)
    return draft.build()


def change_ops(
    job: JobGraph,
    selection: Selection,
    change: Callable[[Op, Ranks], Op],
    *,
    ranks: Numbers | None = None,
) -> JobGraph:
    """*job* with other ops for the tasks of *selection*, which must not be empty.

    *change* takes an op and the ranks that carry it out together (none for a plain task).
    """
    selection.check_found(job, ranks)
    draft = JobDraft(job, ranks)

    def change_one(program: Program, rank: int) -> Program:
        tasks = np.flatnonzero(selection.mask(job, program))
        column = program.op.copy()
        for op, slot in {(int(program.op[task]), int(program.slot[task])) for task in tasks}:
            same = tasks[(program.op[tasks] == op) & (program.slot[tasks] == slot)]
            column[same] = draft.op(change(job.ops[op], members_of(job, rank, slot)))
        return program if np.array_equal(column, program.op) else replace(program, op=column)

    draft.edit(change_one)
    return draft.build()


def add_assumptions(job: JobGraph, sentences: Iterable[str]) -> JobGraph:
    """*job* with more *sentences* about its assumptions."""
    stated = tuple(dict.fromkeys((*job.facts.assumptions, *sentences)))
    return replace(job, facts=replace(job.facts, assumptions=stated))


class ProgramDraft:
    """Tasks by number, and the order of numbers on every lane; *rank* is one that runs them."""

    def __init__(self, draft: JobDraft, program: Program, rank: int) -> None:
        self.draft = draft
        self.program = program
        self.rank = rank
        self.lanes = list(program.lanes)
        self.tasks: dict[int, DraftTask] = dict(enumerate(_read_tasks(program)))
        self.lane_tasks = [list(range(*ends)) for ends in pairwise(program.lane_start.tolist())]
        self._next = program.task_count

    def mask(self, selection: Selection) -> Mask:
        """Which tasks of the original program are selected."""
        return selection.mask(self.draft.job, self.program)

    def find(self, selection: Selection) -> list[int]:
        """The selected tasks, in order; a selection without any task in the job is refused."""
        self.draft.check_found(selection)
        return selection.tasks(self.draft.job, self.program)

    def op(self, number: int) -> Op:
        """The op of a task."""
        return self.draft.ops[self.tasks[number].op]

    def duration_ns(self, number: int) -> int:
        """The stated duration of a task."""
        return duration_of(self.op(number))

    def set_op(self, number: int, op: Op) -> None:
        """Give a task another op."""
        self.tasks[number].op = self.draft.op(op)

    def new_task(
        self, lane: int, op: Op, label: str, after: Iterable[Dependency] = ()
    ) -> DraftTask:
        """A task that is not on its lane yet."""
        return DraftTask(lane, self.draft.op(op), self.draft.label(label), after=list(after))

    def members(self, number: int) -> Ranks:
        """The ranks that carry out a task together."""
        return members_of(self.draft.job, self.rank, self.tasks[number].slot)

    def kind_of(self, number: int) -> LaneKind:
        """What kind of lane a task runs on."""
        return self.lanes[self.tasks[number].lane].kind

    def launch_of(self, number: int) -> int | None:
        """The host task that launched a device task: its last dependency on a host lane."""
        if not self.kind_of(number).is_device:
            return None
        launches = [
            dep.task
            for dep in self.tasks[number].after
            if dep.distance == 0 and not self.kind_of(dep.task).is_device
        ]
        return launches[-1] if launches else None

    def launch_lane(self, number: int) -> int | None:
        """The lane of the host thread that launched a device task."""
        launch = self.launch_of(number)
        return None if launch is None else self.tasks[launch].lane

    def add_lane(self, name: str, kind: LaneKind) -> int:
        """Add an empty lane and return its number."""
        self.lanes.append(Lane(name, kind))
        self.lane_tasks.append([])
        return len(self.lanes) - 1

    def insert(self, tasks: Sequence[DraftTask], *, before: int | None = None) -> list[int]:
        """Add *tasks* of one lane, right before task *before* or at the end; their numbers."""
        if not tasks:
            return []
        numbers = list(range(self._next, self._next + len(tasks)))
        self._next += len(tasks)
        self.tasks.update(zip(numbers, tasks, strict=True))
        of_lane = self.lane_tasks[tasks[0].lane]
        place = len(of_lane) if before is None else of_lane.index(before)
        of_lane[place:place] = numbers
        return numbers

    def insert_after(self, number: int, new: DraftTask) -> int:
        """Add *new* right after a task of its lane, and return its number."""
        return self.insert([new], before=next(iter(self.behind(number)), None))[0]

    def ahead(self, number: int) -> list[int]:
        """The tasks before a task on its lane, the nearest last."""
        of_lane = self.lane_tasks[self.tasks[number].lane]
        return of_lane[: of_lane.index(number)]

    def behind(self, number: int) -> list[int]:
        """The tasks after a task on its lane, the nearest first."""
        of_lane = self.lane_tasks[self.tasks[number].lane]
        return of_lane[of_lane.index(number) + 1 :]

    def wait_for(self, number: int, sources: Iterable[int]) -> None:
        """Let a task also wait for the end of *sources*."""
        self.tasks[number].after += [Dependency(source) for source in sources]

    def move(self, number: int, lane: int, *, after: int | None = None) -> None:
        """Put a task right after *after*, or at the end of another *lane*."""
        self.lane_tasks[self.tasks[number].lane].remove(number)
        self.tasks[number].lane = lane
        of_lane = self.lane_tasks[lane]
        of_lane.insert(len(of_lane) if after is None else of_lane.index(after) + 1, number)

    def redirect(self, targets: dict[int, int]) -> None:
        """Make tasks that wait for a key of *targets* wait for its value instead."""
        for number, task in self.tasks.items():
            task.after = [
                dep._replace(task=targets[dep.task]) if dep.task in targets else dep
                for dep in task.after
                if targets.get(dep.task) != number or dep.distance
            ]

    def merge(self, targets: dict[int, int], *, unneeded: Iterable[int] = ()) -> None:
        """Remove the keys of *targets*, whose values do their work, and their launches.

        Tasks that are *unneeded* then are removed with them.
        """
        launches = self._lone_launches(targets)
        for number in targets:
            self.tasks[number].after = []
        self.redirect(targets)
        self.remove([*targets, *launches, *unneeded])

    def remove(
        self, numbers: Iterable[int], *, with_launches: bool = False, keep_waits: bool = True
    ) -> None:
        """Remove tasks, and the launches that serve only them if wanted.

        Without *keep_waits* their dependencies are dropped instead of inherited.
        """
        removed = set(numbers)
        if with_launches:
            removed |= self._lone_launches(removed)
        if not keep_waits:
            for number in removed:
                self.tasks[number].after = []
        waits = {number: task.after for number, task in self.tasks.items()}
        inheritance = Inheritance(waits, self.lane_tasks, removed)
        for number, task in self.tasks.items():
            if number not in removed:
                task.after = inheritance.dependencies_of(number)
        for lane, numbers_of_lane in enumerate(self.lane_tasks):
            self.lane_tasks[lane] = [one for one in numbers_of_lane if one not in removed]
        for number in removed:
            del self.tasks[number]

    def waiters(self) -> dict[int, list[int]]:
        """For every task those that wait for it, apart from lane order."""
        waiting: dict[int, list[int]] = {number: [] for number in self.tasks}
        for number, task in self.tasks.items():
            for dep in task.after:
                waiting[dep.task].append(number)
        return waiting

    def _lone_launches(self, numbers: Iterable[int]) -> set[int]:
        """Host tasks that do nothing but launch device tasks among *numbers*."""
        gone = set(numbers)
        waiters = self.waiters()
        return {
            launch
            for number in gone
            if (launch := self.launch_of(number)) is not None
            and launch not in gone
            and self.tasks[launch].slot == PLAIN
            and gone.issuperset(waiters[launch])
        }

    def build(self) -> Program:
        """The program as it is now."""
        if not self.tasks:
            raise ScenarioError(
                "every task of a rank would be removed, which leaves nothing. Narrow the pattern."
            )
        numbers = [number for of_lane in self.lane_tasks for number in of_lane]
        place = {number: index for index, number in enumerate(numbers)}
        tasks = [self.tasks[number] for number in numbers]
        deps = [list(dict.fromkeys(task.after)) for task in tasks]
        for of_lane in self.lane_tasks:
            for before, number in pairwise(of_lane):
                if gap_ns := self.tasks[number].gap_ns:
                    deps[place[number]].append(Dependency(before, lag_ns=gap_ns))
        flat = [dep for of_task in deps for dep in of_task]
        columns: dict[str, Any] = {
            "lane_start": offsets([len(of_lane) for of_lane in self.lane_tasks]),
            "sequence": _number_rendezvous(tasks),
            "dep_start": offsets([len(of_task) for of_task in deps]),
            "dep_task": [place[dep.task] for dep in flat],
        }
        for name in ("op", "label", "origin", "slot", "role"):
            columns[name] = [getattr(task, name) for task in tasks]
        for name in ("anchor", "distance", "lag_ns"):
            columns[f"dep_{name}"] = [getattr(dep, name) for dep in flat]
        typed = {name: np.array(columns[name], dtype=kind) for name, kind in COLUMN_TYPES.items()}
        return Program(lanes=tuple(self.lanes), **typed)


def _read_tasks(program: Program) -> Iterator[DraftTask]:
    names = ("op", "label", "origin", "slot", "sequence", "role")
    columns = [getattr(program, name).tolist() for name in names]
    lanes, after = program.task_lanes().tolist(), read_dependencies(program)
    for number, (op, label, origin, slot, sequence, role) in enumerate(zip(*columns, strict=True)):
        lane, order = lanes[number], () if slot == PLAIN else (sequence, 0)
        # A lane runs in order anyway: as a dependency this would look like a wait.
        waits, gap_ns = [], 0
        for dep in after[number]:
            is_ahead = lanes[dep.task] == lane and dep.task < number
            is_order = is_ahead and not dep.distance and dep.anchor is Anchor.END
            if is_order and dep.task == number - 1:
                gap_ns = max(gap_ns, dep.lag_ns)
            elif not is_order or dep.lag_ns:
                waits.append(dep)
        yield DraftTask(lane, op, label, origin, slot, order, role, waits, gap_ns)


def _number_rendezvous(tasks: Sequence[DraftTask]) -> list[int]:
    """Sequence numbers without gaps, by slot, sorted by the *order* of the tasks."""
    sequence = [PLAIN] * len(tasks)
    counts: Counter[int] = Counter()
    for place in sorted(range(len(tasks)), key=lambda place: (tasks[place].order, place)):
        slot = tasks[place].slot
        if slot != PLAIN:
            sequence[place] = counts[slot]
            counts[slot] += 1
    return sequence
