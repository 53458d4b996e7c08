"""What-if about a slow rank: it takes as long as the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median_low

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import PLAIN, Program
from perfmodel.whatif.cuda_graphs import is_device, launch_of
from perfmodel.whatif.job_draft import JobDraft, edit_programs, retime
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import (
    LaneWord,
    Numbers,
    Pattern,
    RankSet,
    Selection,
    lane_mask,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGap:
    """The host pauses for *to* right before tasks like *before*.

    A device task stands for its launch. A pause that is there (a host task that
    launches nothing and waits for nothing) is replaced, else one is put in.
    *number* picks some of the tasks that match in a rank, from 0.
    """

    before: Pattern
    to_ns: int
    lane: LaneWord = LaneWord.ANY
    rank: RankSet | None = None
    number: Numbers | None = None

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(self.before, self.lane, number=self.number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = format_duration(self.to_ns)
        return (f"On {where} the host pauses for {to} before a task {self.selection.words}.",)

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        self.selection.check_found(job, self.rank)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            waiters = program.waiters()
            found = self.selection.tasks(job, program.program)
            hosts = [_host_task(program, number) for number in found]
            for task in dict.fromkeys(hosts):
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


def _host_task(program: ProgramDraft, number: int) -> int:
    """The task itself on a host lane, and the launch of one on the device."""
    if not is_device(program, number):
        return number
    launch = launch_of(program, number)
    if launch is None:
        raise ScenarioError("a device task that matches has no launch, so no host pauses for it.")
    return launch


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStraggler:
    """Rank *rank* takes as long over everything as the other ranks do.

    A task's partners are those with the same label before the same next task,
    counted along the lanes of one kind; the lower median of them is taken.
    """

    rank: RankSet
    lane: LaneWord = LaneWord.ANY

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(None, self.lane)

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

        def edit(program: Program, _: int) -> Program:
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
