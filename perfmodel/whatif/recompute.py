"""What-if about recomputation: layers run forward again before their backward pass.

A layer is what stands before the first `/` of a label. Its forward tasks are
repeated, with their launches and collectives, ahead of its first backward task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.cuda_graphs import launch_of
from perfmodel.whatif.job_draft import JobDraft, edit_programs
from perfmodel.whatif.program_draft import DraftTask, ProgramDraft
from perfmodel.whatif.selection import LaneWord, Mask, Pattern, Selection

FORWARD = Pattern("layer * forward")
BACKWARD = Pattern("layer * backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Kernels like *forward* run again before those like *backward* of the same layer."""

    forward: Pattern = FORWARD
    backward: Pattern = BACKWARD

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"Kernels like {self.forward} run again, with their launches, right before the "
                f"first kernel like {self.backward} of their layer; collectives are not repeated."
            ),
            (
                "Repeated kernels take as long as the first time. Memory that is saved changes "
                "nothing else."
            ),
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        forward = Selection(self.forward, LaneWord.COMPUTE)
        backward = Selection(self.backward, LaneWord.COMPUTE)
        forward.check_found(job)
        backward.check_found(job)

        def edit(draft: JobDraft, program: ProgramDraft) -> None:
            ahead = forward.mask(job, program.program) & (program.program.slot == PLAIN)
            back = backward.mask(job, program.program) & ~ahead
            stretches = _stretches(draft, program, ahead, back)
            for layer, first_runs in stretches[False].items():
                _check_pairs(layer, first_runs, stretches[True].get(layer, []))
                for run, users in zip(first_runs, stretches[True][layer], strict=True):
                    _repeat(draft, program, run, before=users[0])

        return edit_programs(job, edit, assumptions=self.assumptions)


Runs = dict[str, list[list[int]]]


def _stretches(draft: JobDraft, program: ProgramDraft, ahead: Mask, back: Mask) -> dict[bool, Runs]:
    """Runs of tasks of one layer and direction, by whether they are backward, by layer."""
    runs: dict[bool, Runs] = {False: {}, True: {}}
    last: tuple[str, bool] | None = None
    for number in np.flatnonzero(ahead | back).tolist():
        layer = draft.label_at(program.tasks[number].label).split("/")[0]
        key = (layer, bool(back[number]))
        of_layer = runs[key[1]].setdefault(layer, [])
        if key == last:
            of_layer[-1].append(number)
        else:
            of_layer.append([number])
        last = key
    return runs


def _check_pairs(layer: str, forward: list[list[int]], backward: list[list[int]]) -> None:
    if len(forward) != len(backward):
        raise ScenarioError(
            f"{layer!r}: must run backward as often as forward, but runs forward "
            f"{len(forward)} times and backward {len(backward)} times. Name the kernels of both "
            "with `forward` and `backward`."
        )


def _repeat(draft: JobDraft, program: ProgramDraft, run: list[int], *, before: int) -> None:
    """Put a copy of the tasks of *run*, with their launches, ahead of a task and its launch."""
    launch_before = launch_of(program, before)
    launch_of_copy: dict[int, int] = {}
    if launch_before is not None:
        lane = program.tasks[launch_before].lane
        launches = list(dict.fromkeys(launch_of(program, number) for number in run))
        known = [launch for launch in launches if launch is not None]
        copies = [_copy(draft, program, launch, lane) for launch in known]
        numbers = program.insert(copies, before=launch_before)
        launch_of_copy = dict(zip(known, numbers, strict=True))
    copies = []
    for number in run:
        copy = _copy(draft, program, number, program.tasks[before].lane)
        copy.after = [
            replace(dep, task=launch_of_copy[dep.task])
            for dep in program.tasks[number].dependencies
            if dep.task in launch_of_copy and not dep.distance
        ]
        copies.append(copy)
    program.insert(copies, before=before)


def _copy(draft: JobDraft, program: ProgramDraft, number: int, lane: int) -> DraftTask:
    task = program.tasks[number]
    label = draft.label(f"recompute {draft.label_at(task.label)}")
    return DraftTask(lane, task.op, label, task.origin)
