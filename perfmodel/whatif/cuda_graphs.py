"""What-if about CUDA graphs: one launch in place of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import PLAIN, LaneKind
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import ProgramDraft


def is_device(draft: ProgramDraft, number: int) -> bool:
    """Whether a task runs on a stream of the GPU."""
    return draft.lanes[draft.tasks[number].lane].kind.is_device


def launch_of(draft: ProgramDraft, number: int) -> int | None:
    """The host task that launched a device task: its last dependency on a host lane."""
    if not is_device(draft, number):
        return None
    launches = [
        dep.task
        for dep in draft.tasks[number].dependencies
        if dep.distance == 0 and not is_device(draft, dep.task)
    ]
    return launches[-1] if launches else None


def lone_launches(draft: ProgramDraft, numbers: Iterable[int]) -> set[int]:
    """Host tasks that do nothing but launch device tasks among *numbers*."""
    gone = set(numbers)
    waiters = draft.waiters()
    launches = (launch_of(draft, number) for number in gone)
    return {
        launch
        for launch in launches
        if launch is not None
        and launch not in gone
        and draft.tasks[launch].slot == PLAIN
        and gone.issuperset(waiters[launch])
    }


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
