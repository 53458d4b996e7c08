"""What-ifs about when collectives of gradients begin: as soon as backward has made them, by rank.

The kernels that make what a collective carries are the last stretch on its compute stream
that another host thread launched: the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import duration_of
from perfmodel.graph.program import LaneKind
from perfmodel.whatif.cuda_graphs import is_device, launch_of
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import ProgramDraft
from perfmodel.whatif.selection import LaneWord, Pattern, Selection
from perfmodel.whatif.touching import bytes_of

GRADIENTS = Pattern("ReduceScatter|reduce_scatter|AllReduce|all_reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCollectives:
    """Collectives like *match* begin in hooks of the backward pass, when their gradients are made.

    Their launches move to the thread that launches the backward kernels.
    """

    match: Pattern = GRADIENTS

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Collectives like {self.match} begin as the backward pass before them makes what "
                "they carry, evenly along its time, in the order that they have; whoever waited "
                "for them still does."
            ),
            (
                "Their launches take as long on the backward thread, ranks that were not recorded "
                "come as early, and kernels are not slowed by them."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        chosen = Selection(self.match, LaneWord.DEVICE)
        chosen.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            stretches: dict[tuple[int, ...], list[int]] = {}
            kernel: int | None = None
            for number in chosen.tasks(job, program.program):
                kernel = _kernel_before(program, number) or kernel
                launch = launch_of(program, number)
                if kernel is None or launch is None:
                    continue
                thread = program.tasks[launch].lane
                # What was launched before a recording began hangs on its only beginning.
                if len(program.lane_tasks[thread]) > 1:
                    backward = _backward_before(program, kernel, thread)
                    stretches.setdefault(backward, []).append(number)
            for stretch, collectives in stretches.items():
                if stretch:
                    _spread(draft, program, stretch, collectives)

        return edit_programs(job, edit, assumptions=self.assumptions)


def _kernel_before(program: ProgramDraft, number: int) -> int | None:
    """The last kernel of a compute stream that a collective waits for."""
    kernels = [
        dep.task
        for dep in program.tasks[number].dependencies
        if program.lanes[program.tasks[dep.task].lane].kind is LaneKind.COMPUTE
    ]
    return max(kernels, default=None)


def _backward_before(program: ProgramDraft, kernel: int, thread: int) -> tuple[int, ...]:
    """The last stretch of kernels up to *kernel* that another thread than *thread* launched."""
    first = program.lane_tasks[program.tasks[kernel].lane][0]
    stretch: list[int] = []
    for number in range(kernel, first - 1, -1):
        launch = launch_of(program, number)
        is_other = launch is not None and program.tasks[launch].lane != thread
        if is_other:
            stretch.append(number)
        elif stretch and launch is not None:
            break
    return tuple(stretch[::-1])


def _spread(
    draft: JobDraft, program: ProgramDraft, backward: tuple[int, ...], collectives: list[int]
) -> None:
    sizes = [bytes_of(draft.op_of(program, one)) for one in collectives]
    if not all(sizes):
        raise ScenarioError(
            "a collective that matches does not say what it carries, so nobody knows when that is "
            "made. Narrow the pattern."
        )
    lengths_ns = [duration_of(draft.op_of(program, one)) for one in backward]
    for number, place in zip(collectives, made_at(lengths_ns, sizes), strict=True):
        _begin_with(program, number, backward[place])


def made_at(lengths_ns: Sequence[int], sizes: Sequence[float]) -> list[int]:
    """The places of kernels of *lengths_ns* that finish *sizes*, made evenly along their time."""
    done_ns = list(accumulate(lengths_ns))
    shares = [made / sum(sizes) * done_ns[-1] for made in accumulate(sizes)]
    return [min(int(np.searchsorted(done_ns, share)), len(done_ns) - 1) for share in shares]


def _begin_with(program: ProgramDraft, number: int, kernel: int) -> None:
    """Let a collective wait for *kernel* alone, launched right behind it."""
    task = program.tasks[number]
    launch, beside = launch_of(program, number), launch_of(program, kernel)
    assert launch is not None
    assert beside is not None
    own = program.tasks[launch]
    program.lane_tasks[own.lane].remove(launch)
    own.lane = program.tasks[beside].lane
    of_lane = program.lane_tasks[own.lane]
    of_lane.insert(of_lane.index(beside) + 1, launch)
    own.after = [dep for dep in own.dependencies if is_device(program, dep.task)]
    task.after = [Dependency(launch), Dependency(kernel)]
