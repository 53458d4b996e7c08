"""Primitives about host threads: pauses, slow ranks, input that is loaded ahead."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from statistics import median_low

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.extensions.whatif.drafts import JobDraft, ProgramDraft
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.recosting import retime
from perfmodel.extensions.whatif.selection import Numbers, Selection
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import PLAIN, Anchor, Dependency, LaneKind, Program


def pause(program: ProgramDraft, found: Found, *, to_ns: int) -> None:
    """The host pauses for *to* before each task, or before the launch of a device task.

    An existing pause (a host task that launches nothing and waits for nothing) is replaced.
    """
    waiters = program.waiters()
    hosts: dict[int, None] = {}
    for number in found:
        is_device = program.kind_of(number).is_device
        host = program.launch_of(number) if is_device else number
        if host is None:
            raise ScenarioError(
                "a matching device task has no launch, so no host can pause before it."
            )
        hosts[host] = None
    for task in hosts:
        previous = next(reversed(program.ahead(task)), None)
        if previous is not None and previous < program.program.task_count:
            before = program.tasks[previous]
            if not before.after and not waiters[previous] and before.slot == PLAIN:
                program.set_op(previous, retime(program.op(previous), to_ns))
                continue
        op = Fixed("pause", to_ns, Provenance.ASSUMED)
        new = program.new_task(program.tasks[task].lane, op, "pause")
        program.insert([new], before=task)


def equalise(job: JobGraph, selection: Selection, *, ranks: Numbers) -> JobGraph:
    """Tasks of *ranks* take as long as the same tasks of the other ranks, by lower median.

    A task is compared with those of the same label before the same next task, counted along the
    lanes of one kind.
    """
    ranks.check_ranks(job)
    others = [rank for rank in range(job.rank_count) if rank not in ranks.values]
    if not others:
        raise ScenarioError("the rank is compared with others, but none is left.")
    known: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank in others:
        program = job.program_of(rank)
        for key, op in zip(_keys(job, program), program.op.tolist(), strict=True):
            known[key].append(duration_of(job.ops[op]))
    draft = JobDraft(job, ranks)

    def edit(program: Program, _: int) -> Program:
        column, keys = program.op.copy(), _keys(job, program)
        for task in np.flatnonzero(selection.mask(job, program)).tolist():
            if durations := known.get(keys[task]):
                op = job.ops[int(program.op[task])]
                column[task] = draft.op(retime(op, median_low(durations)))
        return replace(program, op=column)

    draft.edit(edit)
    return draft.build()


def _keys(job: JobGraph, program: Program) -> list[tuple[object, ...]]:
    """For every task a key that finds the same task on other ranks."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[object, ...]] = []
    for lane, (first, stop) in zip(
        program.lanes, pairwise(program.lane_start.tolist()), strict=True
    ):
        labels = [job.labels[label] for label in program.label[first:stop].tolist()]
        for label, following in pairwise([*labels, ""]):
            key = (lane.kind, label, following)
            keys.append((*key, seen[key]))
            seen[key] += 1
    return keys


def run_ahead(program: ProgramDraft, found: Found) -> None:
    """Input tasks work for the next iteration, on lanes of their own, at most one ahead.

    What they made one iteration ago is used.
    """
    launches = {program.launch_of(number) for number in found}
    early = dict.fromkeys(number for number in found if number not in launches)
    for number, task in program.tasks.items():
        if number not in early:
            task.after = [
                dep._replace(distance=dep.distance + (dep.task in early and not dep.distance))
                for dep in task.after
            ]
    apart: dict[int, int] = {}
    for number in early:
        lane, kind = program.tasks[number].lane, program.kind_of(number)
        if kind in (LaneKind.COPY, LaneKind.LOADER):
            continue
        if lane not in apart:
            new = LaneKind.COPY if kind.is_device else LaneKind.LOADER
            apart[lane] = program.add_lane(f"prefetch of {program.lanes[lane].name}", new)
        user = next((one for one in program.behind(number) if one not in early), None)
        if user is not None:
            program.tasks[user].after.append(Dependency(number, distance=1))
            ahead = Dependency(user, anchor=Anchor.START, distance=1)
            program.tasks[number].after.append(ahead)
        program.move(number, apart[lane])
