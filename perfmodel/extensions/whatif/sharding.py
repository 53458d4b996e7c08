"""Primitives that divide equal work of all ranks: all-reduces in levels, and sharded updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.drafts import ProgramDraft, edit_programs, members_of
from perfmodel.extensions.whatif.durations import collective_of
from perfmodel.extensions.whatif.editing import Found
from perfmodel.extensions.whatif.gradients import first_updates
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.recosting import retime, rework
from perfmodel.extensions.whatif.selection import LaneWord, Only, Selection
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, MemoryBound, Op, duration_of, work_of
from perfmodel.graph.program import PLAIN, Dependency
from perfmodel.prediction.saved_jobs import PricingMachine


def split(
    job: JobGraph, selection: Selection, *, inner: int, machine: PricingMachine | None = None
) -> JobGraph:
    """All-reduces are a reduce-scatter and an all-gather among *inner* neighbours.

    Between them the ranks of equal position reduce their pieces across, on the same stream.
    """
    if machine is None:
        raise ScenarioError(
            "levels differ by their links, so the machine must be known: it is neither stated nor "
            "known from the GPU names. Give topology=NAME and hosts=N."
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


def shard_update(
    program: ProgramDraft,
    found: Found,
    *,
    gradients: LabelPattern,
    calls: int = 1,
    machine: PricingMachine | None = None,
) -> None:
    """Each rank updates its share of the parameters, which are then sent to all others.

    *gradients* are the collectives that carry gradients, of as many bytes as the parameters. One
    call gathers all shares; of several, each broadcasts one tensor.
    """
    reduced = program.find(Selection(gradients, LaneWord.DEVICE, only=Only.COLLECTIVES))
    updates = sorted(found)
    firsts = first_updates(program, updates)
    if len(reduced) % len(firsts):
        raise ScenarioError(
            f"{len(firsts)} updates follow {len(reduced)} collectives like {gradients.text!r}: "
            "every step must reduce its gradients in the same way. Name other collectives."
        )
    count, of_step = len(program.members(reduced[0])), len(reduced) // len(firsts)
    for number in updates:
        program.set_op(number, _share_of(program.op(number), count))
    for step, following in enumerate([*firsts[1:], None]):
        last = max(one for one in updates if following is None or one < following)
        of_lane = program.behind(last)
        own = reduced[step * of_step : (step + 1) * of_step]
        sent = _send_parameters(program, own, last, calls, machine)
        if of_lane:
            program.wait_for(of_lane[0], [sent])
        else:
            first = program.lane_tasks[program.tasks[last].lane][0]
            program.tasks[first].after.append(Dependency(sent, distance=1))


def _share_of(op: Op, count: int) -> Fixed:
    """*op* with one of *count* equal parts of its work."""
    work = work_of(op)
    if isinstance(work, MemoryBound):
        read, written = (size // count for size in (work.read_bytes, work.write_bytes))
        work = replace(work, read_bytes=read, write_bytes=written)
    return retime(op, duration_of(op) / count, work=work)


def _send_parameters(
    program: ProgramDraft,
    reduced: Sequence[int],
    update: int,
    calls: int,
    machine: PricingMachine | None,
) -> int:
    """Add the collectives that send what *update* made, and return the last of them.

    They run where those of *reduced* do, and are launched as long.
    """
    like = reduced[-1]
    task, op, ranks = program.tasks[like], program.op(like), program.members(like)
    launch, beside = program.launch_of(like), program.launch_of(update)
    whole = collective_of(op)
    kind = CollectiveKind.ALL_GATHER if calls == 1 else CollectiveKind.BROADCAST
    total_bytes = sum(collective_of(program.op(one)).size_bytes for one in reduced)
    for place, size_bytes in enumerate(_parts_sent(program, total_bytes, calls)):
        work = Communication(Collective(kind, size_bytes, whole.dtype))
        after = [Dependency(update)]
        if launch is not None and beside is not None:
            own = program.new_task(
                program.tasks[beside].lane, program.op(launch), f"launch of {kind.value}"
            )
            beside = program.insert_after(beside, own)
            after.append(Dependency(beside))
        sent = replace(
            task,
            op=program.draft.op(rework(op, Communication(whole), work, ranks, machine=machine)),
            label=program.draft.label(f"{kind.value} of parameters"),
            order=(task.order[0], place + 1),
            after=after,
        )
        like = program.insert_after(like, sent)
    return like


def _parts_sent(program: ProgramDraft, total_bytes: int, calls: int) -> list[int]:
    """What each of *calls* carries: the tensors whose gradients the job makes, or equal parts."""
    works = (work_of(program.op(one)) for one in program.tasks)
    made = [
        work.write_bytes
        for work in works
        if isinstance(work, MemoryBound) and work.operator == "accumulate"
    ]
    return made if len(made) == calls else [-(-total_bytes // calls)] * calls
