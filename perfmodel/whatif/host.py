"""What-ifs about host threads: pauses, launches, loading, and a rank that is slow."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN, Anchor, LaneKind, Program
from perfmodel.whatif.job_draft import JobDraft, edit_programs, retime
from perfmodel.whatif.launches import is_device, launch_of
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import (
    LaneWord,
    Pattern,
    RankSet,
    Selection,
    duration_of,
    lane_mask,
)

INPUT = Pattern("input/|HtoD|host_to_device|dataloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGap:
    """The host pauses for *to* right before tasks like *before*.

    A pause that is there (a host task that launches nothing and waits for
    nothing) is replaced, else one is put in. *number* picks one task in a rank.
    """

    before: Pattern
    to_ns: int
    rank: RankSet | None = None
    number: int | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = format_duration(self.to_ns)
        return (f"On {where} the host pauses for {to} right before host tasks {self._words}.",)

    @property
    def _words(self) -> str:
        number = "" if self.number is None else f", number {self.number}"
        return f"like {self.before}{number}"

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        if self.rank is not None:
            self.rank.check(job)
        selection = Selection(self.before, LaneWord.HOST, number=self.number)
        selection.check_found(job, self.rank)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            waiters = program.waiters()
            for task in np.flatnonzero(selection.mask(job, program.program)).tolist():
                self._set(draft, program, task, waiters)

        return edit_programs(job, edit, assumptions=self.assumptions, ranks=self.rank)

    def _set(
        self, draft: JobDraft, program: ProgramDraft, task: int, waiters: dict[int, list[int]]
    ) -> None:
        lane = program.tasks[task].lane
        place = program.lane_tasks[lane].index(task)
        previous = program.lane_tasks[lane][place - 1] if place else None
        if previous is not None and previous < program.program.task_count:
            pause = program.tasks[previous]
            if not pause.dependencies and not waiters[previous] and pause.slot == PLAIN:
                pause.op = draft.op(retime(draft.op_at(pause.op), self.to_ns))
                return
        op = draft.op(Fixed("pause", self.to_ns, Provenance.ASSUMED))
        program.insert([DraftTask(lane, op, draft.label("pause"))], before=task)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphs:
    """Device work is launched as graphs: one launch for each stretch of a host thread.

    A stretch ends where the thread waits for the device, which a graph cannot
    hold. *launch* is what one launch takes.
    """

    launch_ns: int = 10_000

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                "Each stretch of a host thread between two waits for the device is one launch of "
                f"{format_duration(self.launch_ns)}; all other host time in it falls away."
            ),
            "Kernels, collectives included, keep their order, dependencies and durations.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            op = draft.op(Fixed("graph launch", self.launch_ns, Provenance.ASSUMED))
            label = draft.label("graph launch")
            launched = {launch_of(program, number) for number in program.tasks}
            first_of: dict[int, int] = {}
            gone: list[int] = []
            for stretch in _stretches(program):
                launches = [number for number in stretch if number in launched]
                if not launches:
                    continue
                program.tasks[launches[0]].op, program.tasks[launches[0]].label = op, label
                first_of |= dict.fromkeys(launches[1:], launches[0])
                gone += [number for number in stretch if number != launches[0]]
            _launch_with(program, first_of)
            program.remove(gone)

        return edit_programs(job, edit, assumptions=self.assumptions)


def _stretches(program: ProgramDraft) -> list[list[int]]:
    """Host tasks between two that wait for the device, lane by lane."""
    stretches: list[list[int]] = []
    for lane, numbers in zip(program.lanes, program.lane_tasks, strict=True):
        if lane.kind is not LaneKind.HOST:
            continue
        stretches.append([])
        for number in numbers:
            deps = program.tasks[number].dependencies
            if program.tasks[number].slot != PLAIN or any(
                is_device(program, dep.task) for dep in deps
            ):
                stretches.append([])
            else:
                stretches[-1].append(number)
    return stretches


def _launch_with(program: ProgramDraft, first_of: dict[int, int]) -> None:
    """Let device tasks depend on the first launch of a stretch instead of their own."""
    for number, task in program.tasks.items():
        if is_device(program, number):
            task.after = [
                replace(dep, task=first_of.get(dep.task, dep.task)) for dep in task.dependencies
            ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStraggler:
    """Rank *rank* takes as long over everything as the other ranks do.

    A task's partners are those with the same label before the same next task,
    counted along the lanes of one kind; the lower median of them is taken.
    """

    rank: RankSet
    lane: LaneWord = LaneWord.ANY

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Rank {self.rank} takes as long as the other ranks do (lower median) for every "
                "task that they have too; the rest keeps its duration."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self.rank.check(job)
        others = [rank for rank in range(job.rank_count) if rank not in self.rank.ranks]
        if not others:
            raise ScenarioError("a rank can only be like others, but none is left.")
        known: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank in others:
            program = job.program_of(rank)
            for key, task in _keys(job, program):
                known[key].append(duration_of(job.ops[int(program.op[task])]))
        draft = JobDraft(job)

        def edit(program: Program, rank: int) -> Program:
            del rank
            chosen = lane_mask(program, self.lane)
            column = program.op.copy()
            for key, task in _keys(job, program):
                if chosen[task] and known.get(key):
                    op = job.ops[int(program.op[task])]
                    column[task] = draft.op(retime(op, median_low(known[key])))
            return replace(program, op=column)

        draft.edit(edit, self.rank)
        return draft.build(self.assumptions)


def _keys(job: JobGraph, program: Program) -> list[tuple[tuple[object, ...], int]]:
    """A key for every task under which its partners on other ranks are found."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[tuple[object, ...], int]] = []
    for lane, (first, stop) in enumerate(
        zip(program.lane_start[:-1].tolist(), program.lane_start[1:].tolist(), strict=True)
    ):
        labels = [job.labels[label] for label in program.label[first:stop].tolist()]
        for place, label in enumerate(labels):
            following = labels[place + 1] if place + 1 < len(labels) else ""
            key = (program.lanes[lane].kind, label, following)
            keys.append(((*key, seen[key]), first + place))
            seen[key] += 1
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchData:
    """Input tasks like *match* (loading, copies) work for the next iteration.

    They run beside everything else on a lane of their own, at most one
    iteration ahead.
    """

    match: Pattern = INPUT

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} prepare the next batch while this one is worked on, one "
                "ahead; the first batch is ready when the first iteration starts."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        selection = Selection(self.match)
        selection.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            del draft
            found = np.flatnonzero(selection.mask(job, program.program)).tolist()
            launches = {launch_of(program, number) for number in found}
            _prefetch(program, [number for number in found if number not in launches])

        return edit_programs(job, edit, assumptions=self.assumptions)


def _prefetch(program: ProgramDraft, found: list[int]) -> None:
    """Let others use what the tasks *found* made one iteration ago, and free their lanes."""
    early = set(found)
    for number, task in program.tasks.items():
        if number not in early:
            task.after = [
                replace(dep, distance=dep.distance + (dep.task in early and not dep.distance))
                for dep in task.dependencies
            ]
    apart: dict[LaneKind, int] = {}
    for number in found:
        kind = program.lanes[program.tasks[number].lane].kind
        if kind in (LaneKind.COPY, LaneKind.LOADER):
            continue
        if kind not in apart:
            new = LaneKind.COPY if kind.is_device else LaneKind.LOADER
            apart[kind] = program.add_lane(f"prefetch {new.value}", new)
        _set_apart(program, number, apart[kind], early)


def _set_apart(program: ProgramDraft, number: int, lane: int, early: set[int]) -> None:
    """Move a task to *lane*; the next task of its old lane uses what it made one iteration ago."""
    of_lane = program.lane_tasks[program.tasks[number].lane]
    rest = of_lane[of_lane.index(number) + 1 :]
    user = next((one for one in rest if one not in early), None)
    if user is not None:
        program.tasks[user].dependencies.append(Dependency(number, distance=1))
        ahead = Dependency(user, anchor=Anchor.START, distance=1)
        program.tasks[number].dependencies.append(ahead)
    program.move(number, lane)
