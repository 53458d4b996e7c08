"""Buckets: gradients reduced in more or fewer pieces, or in levels.

Buckets that follow each other in one group are joined until a bucket is full, and cut where they
are larger. All members of a group decide by the sizes alone, so that they keep making the same
calls. A bucket that only follows another on its lane may be joined to it; one whose dependencies
lead to the other's result may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from math import ceil

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.errors import GraphError, ScenarioError
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication, duration_of
from perfmodel.graph.program import PLAIN, LaneKind, Program
from perfmodel.whatif.drafts import (
    ProgramDraft,
    Ranks,
    edit_programs,
    members_of,
    read_dependencies,
)
from perfmodel.whatif.durations import carry, collective_of
from perfmodel.whatif.editing import Found
from perfmodel.whatif.pinning import PricingMachine
from perfmodel.whatif.recosting import retime, rework, time_ratio
from perfmodel.whatif.selection import Selection

NOTHING = -1


def awaited_sequences(program: Program, collectives: Sequence[int]) -> dict[int, int]:
    """For each of *collectives* the last one of its slot that its dependencies lead to."""
    waits = [
        [dep.task for dep in after if not dep.distance] for after in read_dependencies(program)
    ]
    firsts = set(program.lane_start.tolist())
    before = {task: own if task in firsts else [*own, task - 1] for task, own in enumerate(waits)}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        raise GraphError(
            "tasks of a rank wait for each other in a circle. Make the job again."
        ) from None
    awaited = {}
    for slot in sorted({int(program.slot[task]) for task in collectives}):
        # The last collective of the slot that has ended when a task has ended.
        reached = [NOTHING] * program.task_count
        for task in order:
            own = int(program.sequence[task]) if program.slot[task] == slot else NOTHING
            reached[task] = max([own, *(reached[source] for source in before[task])])
        for task in collectives:
            if program.slot[task] == slot:
                awaited[task] = max((reached[source] for source in waits[task]), default=NOTHING)
    return awaited


def resize(
    program: ProgramDraft,
    found: Found,
    *,
    size_bytes: int,
    machine: PricingMachine | None = None,
) -> None:
    """Collectives carry about *size* each: small ones are joined, large ones cut.

    A joined one starts when the last of its parts could. Gradients of a cut one are made evenly
    by the kernels between the previous bucket and this one.
    """
    tasks = program.tasks
    ordered = sorted(found, key=lambda number: (tasks[number].slot, tasks[number].order))
    # For every collective the last kernel that the one before in its slot waited for.
    kernel_before: dict[int, int | None] = {}
    last: dict[int, int | None] = {}
    for number in ordered:
        slot = tasks[number].slot
        kernel_before[number] = last.get(slot)
        last[slot] = _last_kernel(program, number)
    for chunk in _chunks(program, ordered, size_bytes):
        number, parts = chunk[-1], [_collective(program, one) for one in chunk]
        total_bytes = sum(part.size_bytes for part in parts)
        count = -(-total_bytes // size_bytes)
        if len(chunk) > 1:
            new = [replace(parts[0], size_bytes=total_bytes)]
        elif count > 1:
            new = [carry(parts[0], ratio=1 / count)] * count
        else:
            continue
        stated_ns = sum(duration_of(program.op(one)) for one in chunk)
        ratio = _ratio(parts, new, program.members(number), machine) / len(new)
        work = Communication(new[0])
        program.set_op(number, retime(program.op(number), stated_ns * ratio, work=work))
        if len(chunk) > 1:
            program.merge(dict.fromkeys(chunk[:-1], number))
            continue
        pieces = [
            replace(
                tasks[number],
                order=(tasks[number].order[0], part - count),
                after=_waits_of_piece(
                    program, number, kernel_before[number], share=(part + 1) / count
                ),
            )
            for part in range(count - 1)
        ]
        program.insert(pieces, before=number)


def _chunks(program: ProgramDraft, found: Sequence[int], size_bytes: int) -> list[list[int]]:
    """Collectives to join: neighbours in their slot, alike, none waiting for another."""
    awaited = awaited_sequences(program.program, found)
    chunks: list[list[int]] = []
    filled_bytes = 0
    for number in found:
        own_bytes = _collective(program, number).size_bytes
        if (
            chunks
            and filled_bytes < size_bytes
            and _are_alike(program, chunks[-1][-1], number)
            and awaited[number] < program.tasks[chunks[-1][0]].order[0]
        ):
            chunks[-1].append(number)
            filled_bytes += own_bytes
        else:
            chunks.append([number])
            filled_bytes = own_bytes
    return chunks


def _ratio(
    old: Sequence[Collective],
    new: Sequence[Collective],
    ranks: Ranks,
    machine: PricingMachine | None,
) -> float:
    """How many times as long *ranks* take for the *new* collectives together as for the *old*."""
    reference = Communication(old[0])
    after, before = (
        sum(time_ratio(reference, Communication(one), ranks, machine=machine) for one in several)
        for several in (new, old)
    )
    return after / before


def _collective(program: ProgramDraft, number: int) -> Collective:
    return collective_of(program.op(number))


def _are_alike(program: ProgramDraft, first: int, second: int) -> bool:
    """Whether the collective *second* directly follows *first* and differs in size only."""
    one, other = program.tasks[first], program.tasks[second]
    ahead, behind = _collective(program, first), _collective(program, second)
    return (
        (one.slot, one.lane) == (other.slot, other.lane)
        and other.order[0] == one.order[0] + 1
        and (ahead.kind, ahead.dtype) == (behind.kind, behind.dtype)
        and ahead.byte_matrix is None
    )


def _waits_of_piece(
    program: ProgramDraft, number: int, kernel_before: int | None, *, share: float
) -> list[Dependency]:
    """What a piece waits for that needs the first *share* of the gradients of a bucket."""
    own, tasks = program.tasks[number].after, program.tasks
    kernel = _last_kernel(program, number)
    if kernel is None or kernel_before is None or not kernel_before < kernel:
        return list(own)
    if tasks[kernel].lane != tasks[kernel_before].lane:
        return list(own)
    early = kernel_before + ceil((kernel - kernel_before) * share)
    launch = program.launch_of(early)
    lag_ns = max(dep.lag_ns for dep in own)
    launches = [] if launch is None else [Dependency(launch, lag_ns=lag_ns)]
    return [*launches, Dependency(early)]


def _last_kernel(program: ProgramDraft, number: int) -> int | None:
    """The last task on a compute lane that a collective waits for in this iteration."""
    kernels = [
        dep.task
        for dep in program.tasks[number].after
        if not dep.distance and program.kind_of(dep.task) is LaneKind.COMPUTE
    ]
    return max(kernels, default=None)


def split(
    job: JobGraph, selection: Selection, *, inner: int, machine: PricingMachine | None = None
) -> JobGraph:
    """All-reduces are a reduce-scatter and an all-gather among *inner* neighbours.

    Between them the ranks of equal position reduce their pieces across, on the same stream.
    """
    if machine is None:
        raise ScenarioError(
            "levels differ by their links, so the machine must be known: it is neither stated nor "
            "told by the names of the GPUs. Say topology=NAME, and hosts=N."
        )
    selection.check_found(job)
    slots = {
        int(slot) for program in job.programs for slot in program.slot[selection.mask(job, program)]
    }
    grouped, levels = _split_groups(job, sorted(slots - {PLAIN}), inner)

    def edit(program: ProgramDraft) -> None:
        for number in program.find(selection):
            _split_one(program, number, inner, levels[program.tasks[number].slot], machine)

    return edit_programs(grouped, edit)


def _split_groups(
    job: JobGraph, slots: Iterable[int], inner: int
) -> tuple[JobGraph, dict[int, tuple[int, int]]]:
    """*job* with neighbour and cross groups in new slots, and these two by old slot."""
    groups, columns, levels = list(job.groups), [job.rank_group], {}
    next_slot = job.rank_group.shape[1]
    for slot in slots:
        added = np.full((job.rank_count, 2), NO_GROUP, dtype=np.int32)
        for number in np.unique(job.rank_group[:, slot]):
            if number == NO_GROUP:
                continue
            group = job.groups[int(number)]
            ranks, size = group.ranks, len(group.ranks)
            if not 1 < inner < size or size % inner:
                raise ScenarioError(
                    f"inner: must divide the {size} ranks of group {group.name!r} and leave "
                    f"several across, got {inner}."
                )
            parts = [(0, "beside", ranks[at : at + inner]) for at in range(0, size, inner)]
            parts += [(1, "across", ranks[place::inner]) for place in range(inner)]
            for level, word, part in parts:
                added[list(part), level] = len(groups)
                groups.append(Group(f"{group.name} {word} {part[0]}", part))
        columns.append(added)
        levels[slot] = (next_slot, next_slot + 1)
        next_slot += 2
    rank_group = np.concatenate(columns, axis=1)
    return replace(job, groups=tuple(groups), rank_group=rank_group), levels


def _split_one(
    program: ProgramDraft,
    number: int,
    inner: int,
    slots: tuple[int, int],
    machine: PricingMachine | None,
) -> None:
    draft, task, op = program.draft, program.tasks[number], program.op(number)
    whole, ranks, (beside, across) = collective_of(op), program.members(number), slots
    # Order within a slot: the reduce-scatter of a call, then its all-gather.
    parts = (
        (CollectiveKind.REDUCE_SCATTER, whole.size_bytes, beside, 0),
        (CollectiveKind.ALL_REDUCE, -(-whole.size_bytes // inner), across, 0),
        (CollectiveKind.ALL_GATHER, whole.size_bytes, beside, 1),
    )
    last = number
    for kind, size_bytes, slot, order in parts:
        work = Communication(Collective(kind, size_bytes, whole.dtype))
        among = members_of(draft.job, program.rank, slot)
        part = replace(
            task,
            op=draft.op(rework(op, Communication(whole), work, ranks, among, machine=machine)),
            label=draft.label(f"{draft.labels[task.label]}: {kind.value}"),
            slot=slot,
            order=(task.order[0], order),
            after=list(task.after) if last == number else [],
        )
        last = program.insert_after(last, part)
    program.redirect({number: last})
    program.remove([number])
