"""What-if about pauses: how long the host does nothing that is recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.job_draft import JobDraft, edit_programs, retime
from perfmodel.whatif.launches import is_device, launch_of
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import (
    LaneWord,
    Numbers,
    Pattern,
    RankSet,
    Selection,
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
        if self.rank is not None:
            self.rank.check(job)
        self.selection.check_found(job, self.rank)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            waiters = program.waiters()
            found = np.flatnonzero(self.selection.mask(job, program.program)).tolist()
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
