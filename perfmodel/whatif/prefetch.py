"""What-if about input: the next batch is prepared while this one is worked on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, LaneKind
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.launches import launch_of
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import (
    Pattern,
    Selection,
)

INPUT = Pattern("input/|HtoD|host_to_device|dataloader")


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
            "In a recording of several steps all input is ready when it is asked for.",
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
    apart: dict[int, int] = {}
    for number in found:
        lane = program.tasks[number].lane
        kind = program.lanes[lane].kind
        if kind in (LaneKind.COPY, LaneKind.LOADER):
            continue
        if lane not in apart:
            new = LaneKind.COPY if kind.is_device else LaneKind.LOADER
            apart[lane] = program.add_lane(f"prefetch of {program.lanes[lane].name}", new)
        _set_apart(program, number, apart[lane], early)


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
