"""What-ifs about host threads: pauses, slow ranks, CUDA graphs, input that is loaded ahead."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import PLAIN, Anchor, LaneKind, Program
from perfmodel.whatif.drafts import JobDraft, ProgramDraft
from perfmodel.whatif.recosting import retime
from perfmodel.whatif.selection import LaneWord, Numbers, Pattern, Selection, lane_mask
from perfmodel.whatif.transformation import Transformation

INPUT = Pattern("input/|HtoD|host_to_device|dataloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGap(Transformation):
    """The host pauses for *to* right before tasks like *before*.

    For a device task, that is before its launch. An existing pause (a host task that launches
    nothing and waits for nothing) is replaced, else one is inserted. *number* picks some of the
    matching tasks of a rank, from 0.
    """

    before: Pattern
    to_ns: int
    lane: LaneWord = LaneWord.ANY
    rank: Numbers | None = None
    number: Numbers | None = None

    @property
    def selection(self) -> Selection:
        """The tasks that follow the pause."""
        return Selection(self.before, self.lane, number=self.number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = format_duration(self.to_ns)
        return (f"On {where} the host pauses for {to} before a task {self.selection.words}.",)

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        waiters = program.waiters()
        hosts: dict[int, None] = {}
        for number in program.find(self.selection):
            is_device = program.kind_of(number).is_device
            host = program.launch_of(number) if is_device else number
            if host is None:
                raise ScenarioError(
                    "a matching device task has no launch, so no host can pause before it."
                )
            hosts[host] = None
        for task in hosts:
            lane = program.tasks[task].lane
            place = program.lane_tasks[lane].index(task)
            previous = program.lane_tasks[lane][place - 1] if place else None
            if previous is not None and previous < program.program.task_count:
                pause = program.tasks[previous]
                if not pause.dependencies and not waiters[previous] and pause.slot == PLAIN:
                    program.set_op(previous, retime(program.op(previous), self.to_ns))
                    continue
            op = Fixed("pause", self.to_ns, Provenance.ASSUMED)
            program.insert([program.new_task(lane, op, "pause")], before=task)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStraggler(Transformation):
    """Rank *rank* takes as long for everything as the other ranks do.

    A task is compared with those of the same label before the same next task, counted along the
    lanes of one kind; the lower median of them is taken.
    """

    rank: Numbers
    lane: LaneWord = LaneWord.ANY

    @property
    def selection(self) -> Selection:
        """The tasks that may change."""
        return Selection(None, self.lane)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Rank {self.rank} takes as long as the other ranks (lower median) for every task "
                "that they also have; the rest keeps its duration."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self.rank.check_ranks(job)
        others = [rank for rank in range(job.rank_count) if rank not in self.rank.values]
        if not others:
            raise ScenarioError("the rank is compared with others, but none is left.")
        known: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank in others:
            program = job.program_of(rank)
            for key, task in _keys(job, program):
                known[key].append(duration_of(job.ops[int(program.op[task])]))
        draft = JobDraft(job, self.rank)

        def edit(program: Program, _: int) -> Program:
            chosen = lane_mask(program, self.lane)
            column = program.op.copy()
            for key, task in _keys(job, program):
                if chosen[task] and known.get(key):
                    op = job.ops[int(program.op[task])]
                    column[task] = draft.op(retime(op, median_low(known[key])))
            return replace(program, op=column)

        draft.edit(edit)
        return draft.build(self.assumptions)


def _keys(job: JobGraph, program: Program) -> list[tuple[tuple[object, ...], int]]:
    """Every task with a key that finds the same task on other ranks."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[tuple[object, ...], int]] = []
    for lane, (first, stop) in zip(
        program.lanes, pairwise(program.lane_start.tolist()), strict=True
    ):
        labels = [job.labels[label] for label in program.label[first:stop].tolist()]
        for place, (label, following) in enumerate(pairwise([*labels, ""])):
            key = (lane.kind, label, following)
            keys.append(((*key, seen[key]), first + place))
            seen[key] += 1
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphs(Transformation):
    """Device work is launched as graphs: one launch for each stretch of a host thread.

    A stretch ends where the thread waits for the device, which a graph cannot contain. One
    launch takes *launch*.
    """

    launch_ns: int = 10_000

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                "Each stretch of a host thread between two waits for the device is one launch of "
                f"{format_duration(self.launch_ns)}; all other host time in it is dropped."
            ),
            "Kernels, including collectives, keep their order, dependencies and durations.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Change one program."""
        op = program.draft.op(Fixed("graph launch", self.launch_ns, Provenance.ASSUMED))
        label = program.draft.label("graph launch")
        launched = {program.launch_of(number) for number in program.tasks}
        first_of: dict[int, int] = {}
        gone: list[int] = []
        for stretch in _host_stretches(program):
            launches = [number for number in stretch if number in launched]
            if not launches:
                continue
            first = program.tasks[launches[0]]
            first.op, first.label = op, label
            first_of |= dict.fromkeys(launches[1:], launches[0])
            gone += [number for number in stretch if number != launches[0]]
        for number, task in program.tasks.items():
            if program.kind_of(number).is_device:
                task.after = [
                    replace(dep, task=first_of.get(dep.task, dep.task)) for dep in task.dependencies
                ]
        program.remove(gone)


def _host_stretches(program: ProgramDraft) -> list[list[int]]:
    """Host tasks between two that wait for the device, lane by lane."""
    stretches: list[list[int]] = []
    for lane, numbers in zip(program.lanes, program.lane_tasks, strict=True):
        if lane.kind is not LaneKind.HOST:
            continue
        stretches.append([])
        for number in numbers:
            task = program.tasks[number]
            waits = any(program.kind_of(dep.task).is_device for dep in task.dependencies)
            if task.slot != PLAIN or waits:
                stretches.append([])
            else:
                stretches[-1].append(number)
    return stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchData(Transformation):
    """Input tasks like *match* (loading, copies) work for the next iteration.

    They run beside everything else on a lane of their own, at most one iteration ahead.
    """

    match: Pattern = INPUT

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Tasks like {self.match} prepare the next batch during the current one, one "
                "ahead; the first batch is ready when the first iteration starts."
            ),
            "In a recording of several steps all input is ready when it is needed.",
        )

    def edit(self, program: ProgramDraft) -> None:
        """Use what the input tasks made one iteration ago, and free their lanes."""
        found = program.find(Selection(self.match))
        launches = {program.launch_of(number) for number in found}
        early = dict.fromkeys(number for number in found if number not in launches)
        for number, task in program.tasks.items():
            if number not in early:
                task.after = [
                    replace(dep, distance=dep.distance + (dep.task in early and not dep.distance))
                    for dep in task.dependencies
                ]
        apart: dict[int, int] = {}
        for number in early:
            lane, kind = program.tasks[number].lane, program.kind_of(number)
            if kind in (LaneKind.COPY, LaneKind.LOADER):
                continue
            if lane not in apart:
                new = LaneKind.COPY if kind.is_device else LaneKind.LOADER
                apart[lane] = program.add_lane(f"prefetch of {program.lanes[lane].name}", new)
            of_lane = program.lane_tasks[lane]
            rest = of_lane[of_lane.index(number) + 1 :]
            user = next((one for one in rest if one not in early), None)
            if user is not None:
                program.tasks[user].dependencies.append(Dependency(number, distance=1))
                ahead = Dependency(user, anchor=Anchor.START, distance=1)
                program.tasks[number].dependencies.append(ahead)
            program.move(number, apart[lane])
