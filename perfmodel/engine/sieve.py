"""Sieve: a fast compiled check that a flat job can be replayed.

It accepts the same jobs as the audit and is many times faster, because it does not report faults. A
job that fails is passed to the audit, which raises the error.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.base.compiling import compiled
from perfmodel.engine.layout import Bytes8, FlatJob, Int32s, Int64s, build_layout
from perfmodel.graph.job import NO_GROUP, JobGraph
from perfmodel.graph.ops import Op, signature_of
from perfmodel.graph.program import PLAIN, Anchor, Role

SIGNALS = 1


def lay_out_sound(job: JobGraph) -> FlatJob:
    """The layout of *job*; raises the audit's error if the job is not sound."""
    if _can_be_laid_out(job):
        layout = build_layout(job)
        if is_sound(job, layout):
            return layout
    from perfmodel.graph.audit import check_job  # only a job that is not sound needs it

    check_job(job)
    return build_layout(job)


def is_sound(job: JobGraph, layout: FlatJob) -> bool:
    """Whether *job*, which has *layout*, would pass the audit."""
    if not _names_members(job) or int(layout.dep_anchor.max(initial=0)) > Anchor.START:
        return False
    if (layout.lane_first > layout.lane_stop).any():
        return False
    # One signature per member of every program that is used.
    used = [job.programs[int(index)] for index in np.unique(job.rank_program)]
    ops = np.concatenate([program.op[program.slot != PLAIN] for program in used])
    distinct, place = np.unique(ops, return_inverse=True)
    signatures = number_signatures(job.ops[op] for op in distinct.tolist())
    met = find_members(layout, signatures[place])
    return met is not None and bool((met[:, 1] > 0).all())


def find_members(layout: FlatJob, signature: Int64s) -> Int64s | None:
    """Check every rendezvous of *layout*; None if it cannot be replayed.

    *signature* numbers, for each member of every program, the collective that partners must agree
    on. Rows of the result are by rendezvous: that number plus one, and how many members signal.
    """
    # Wrong sequence numbers could request unbounded memory.
    if layout.g_member[-1] != np.diff(layout.p_member)[layout.r_program].sum():
        return None
    seen = np.zeros(int(layout.g_member[-1]), dtype=np.uint8)
    found = np.zeros((int(layout.g_rendezvous[-1]), 2), dtype=np.int64)
    if _is_walkable(layout) and _meets_alike(layout, signature, seen, found):
        return found
    return None


def number_signatures(ops: Iterable[Op]) -> Int64s:
    """Number the collectives of *ops* that partners in a rendezvous must agree on."""
    numbers: dict[object, int] = {}
    numbered = [numbers.setdefault(signature_of(op), len(numbers)) for op in ops]
    return np.array(numbered, dtype=np.int64)


def _can_be_laid_out(job: JobGraph) -> bool:
    """Whether all indices that a layout uses are in range."""
    if job.rank_count == 0 or not _is_within(job.rank_program, len(job.programs)):
        return False
    if not _is_within(job.rank_group + 1, len(job.groups) + 1):
        return False
    most_role = int(Role.BOTH)  # comparing with a flag takes longer than finding the maximum
    return all(
        program.task_count > 0
        and len(program.lane_start) == len(program.lanes) + 1
        and program.lane_start[0] == 0
        and program.lane_start[-1] == program.task_count
        and int(program.role.max()) <= most_role
        and _is_within(program.op, len(job.ops))
        and _is_within(program.label, len(job.labels))
        for program in job.programs
    )


def _is_within(numbers: Int32s, count: int) -> bool:
    """Whether all *numbers* are 0 to *count* - 1; negative ones are huge as unsigned."""
    return numbers.size == 0 or int(numbers.view(np.uint32).max()) < count


def _names_members(job: JobGraph) -> bool:
    """Whether every rank that a group names has a slot for the group."""
    ranks, group = job.members()
    if len(ranks) and not 0 <= ranks.min() <= ranks.max() < job.rank_count:
        return False
    stated = group * job.rank_count + ranks
    who, slots = np.nonzero(job.rank_group != NO_GROUP)
    found = job.rank_group[who, slots].astype(np.int64) * job.rank_count + who
    return bool(np.isin(stated, found).all())


@compiled
def _is_walkable(s: FlatJob) -> bool:
    """Whether dependencies are inside their program, in order, and none is on its own task."""
    for program in range(len(s.p_task) - 1):
        tasks = s.p_task[program + 1] - s.p_task[program]
        first = s.p_task[program] + program
        deps = s.p_dep[program + 1] - s.p_dep[program]
        stop = s.dep_start[first]
        if stop != 0 or s.dep_start[first + tasks] != deps:
            return False
        for task in range(tasks):
            start, stop = stop, s.dep_start[first + task + 1]
            if start > stop:
                return False
            for row in range(s.p_dep[program] + start, s.p_dep[program] + stop):
                source = s.dep_task[row]
                if source < 0 or source >= tasks or s.dep_lag_ns[row] < 0:
                    return False
                if source == task and s.dep_distance[row] == 0:
                    return False
    return True


@compiled
def _meets_alike(s: FlatJob, signature: Int64s, seen: Bytes8, found: Int64s) -> bool:
    """Whether every endpoint joins every rendezvous once, all with one signature.

    *found* is by rendezvous: its signature plus one, and how many members signal.
    """
    for rank in range(len(s.r_program)):
        program = s.r_program[rank]
        for i in range(s.p_member[program], s.p_member[program + 1]):
            group, sequence = s.r_group[rank, s.m_slot[i]], s.m_sequence[i]
            if group < 0 or sequence < 0:
                return False
            rendezvous = s.g_rendezvous[group] + sequence
            if rendezvous >= s.g_rendezvous[group + 1]:
                return False
            member = (
                s.g_member[group] + sequence * s.g_size[group] + s.r_position[rank, s.m_slot[i]]
            )
            if seen[member]:
                return False
            seen[member] = 1
            if found[rendezvous, 0] == 0:
                found[rendezvous, 0] = signature[i] + 1
            if found[rendezvous, 0] != signature[i] + 1:
                return False
            found[rendezvous, 1] += s.m_role[i] & SIGNALS
    return True
