"""What-ifs about what communication waits for and who waits for it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, LaneKind
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.launches import is_device, launch_of
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.traffic import ALL_REDUCE

UPDATE = Pattern("optimizer/|adam|sgd|adagrad|multi_tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Only tasks like *until* wait for collectives like *match*; the rest runs beside them.

    Collectives that stand on a compute stream move to a stream of their own.
    """

    match: Pattern = ALL_REDUCE
    until: Pattern = UPDATE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Nothing needs collectives like {self.match} before the next task like "
                f"{self.until}; they still wait for what they carry. Kernels are not slowed."
            ),
            (
                "Host threads that wait for them, and streams on which no such task follows, "
                "keep waiting where they do."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen, users = Selection(self.match, LaneWord.DEVICE), Selection(self.until)
        chosen.check_found(job)
        users.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            del draft
            found = chosen.mask(job, program.program) & (program.program.slot != PLAIN)
            until = np.flatnonzero(users.mask(job, program.program)).tolist()
            _release(program, set(np.flatnonzero(found).tolist()), until)

        return edit_programs(job, edit, assumptions=self.assumptions)


def _release(program: ProgramDraft, found: set[int], until: list[int]) -> None:
    users: dict[int, list[Dependency]] = {}
    for number, task in program.tasks.items():
        user = _next_user(program, number, until)
        if number in found or user is None or not is_device(program, number):
            continue
        lost = [dep for dep in task.dependencies if dep.task in found and not dep.distance]
        task.after = [dep for dep in task.dependencies if dep not in lost]
        users.setdefault(user, []).extend(lost)
    for number in sorted(found):
        if program.lanes[program.tasks[number].lane].kind is LaneKind.COMPUTE:
            user = _next_user(program, number, until)
            if user is not None:
                users.setdefault(user, []).append(Dependency(number))
    for user, waits in users.items():
        program.tasks[user].dependencies.extend(waits)
    _move_off_compute(program, sorted(found))


def _move_off_compute(program: ProgramDraft, found: list[int]) -> None:
    """Give collectives of a compute lane a lane beside it; they wait for what came before."""
    apart: dict[int, int] = {}
    for number in found:
        task = program.tasks[number]
        if program.lanes[task.lane].kind is not LaneKind.COMPUTE:
            continue
        if task.lane not in apart:
            name = f"communication of {program.lanes[task.lane].name}"
            apart[task.lane] = program.add_lane(name, LaneKind.COMMUNICATION)
        of_lane = program.lane_tasks[task.lane]
        place = of_lane.index(number)
        if place:
            task.dependencies.append(Dependency(of_lane[place - 1]))
        program.move(number, apart[task.lane])


def _next_user(program: ProgramDraft, number: int, until: list[int]) -> int | None:
    """The first task of *until* (ascending) on the lane of a task, at or behind it."""
    place = bisect_left(until, number)
    if place == len(until) or program.tasks[until[place]].lane != program.tasks[number].lane:
        return None
    return until[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serialise:
    """Compute and collectives like *match* take turns, in the order they are launched."""

    match: Pattern = ALL_REDUCE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} and kernels run one at a time in the order in "
                "which one host thread launches them; work of different threads is left as it is."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen = Selection(self.match, LaneWord.DEVICE)
        chosen.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            del draft
            found = chosen.mask(job, program.program) & (program.program.slot != PLAIN)
            _take_turns(program, set(np.flatnonzero(found).tolist()))

        return edit_programs(job, edit, assumptions=self.assumptions)


def _take_turns(program: ProgramDraft, found: set[int]) -> None:
    """Let every collective and the kernels launched around it wait for each other."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for number, task in program.tasks.items():
        is_kernel = program.lanes[task.lane].kind is LaneKind.COMPUTE
        launch = launch_of(program, number)
        if launch is not None and (is_kernel or number in found):
            threads.setdefault(program.tasks[launch].lane, []).append((launch, number))
    for launched in threads.values():
        # Numbers grow along a lane, so this is the order of the launches.
        order = [number for _, number in sorted(launched)]
        for before, after in pairwise(order):
            if (before in found) != (after in found):
                program.tasks[after].dependencies.append(Dependency(before))
