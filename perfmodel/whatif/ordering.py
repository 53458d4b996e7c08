"""What-ifs about what communication waits for and who waits for it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, LaneKind
from perfmodel.whatif.cuda_graphs import is_device, launch_of
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.traffic import ALL_REDUCE

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

        def edit(_: JobDraft, program: ProgramDraft) -> None:
            found = selection.tasks(job, program.program)
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

        def edit(_: JobDraft, program: ProgramDraft) -> None:
            found = chosen.collectives(job, program.program)
            _release(program, set(found), users.tasks(job, program.program))

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

        def edit(_: JobDraft, program: ProgramDraft) -> None:
            _take_turns(program, set(chosen.collectives(job, program.program)))

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
