"""Splitting: an all-reduce that is carried out in levels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from collectives import Collective, CollectiveKind
from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.drafts import ProgramDraft, edit_programs, members_of
from perfmodel.whatif.durations import collective_of
from perfmodel.whatif.pinning import PricingMachine
from perfmodel.whatif.recosting import rework
from perfmodel.whatif.selection import Selection


def split(
    job: JobGraph, selection: Selection, *, inner: int, machine: PricingMachine | None = None
) -> JobGraph:
    """All-reduces are a reduce-scatter and an all-gather among *inner* neighbours.

    Between them the ranks of equal position reduce their pieces across, on the same stream.
    """
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
