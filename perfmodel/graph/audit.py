"""Audit: refuse a job graph that cannot run, naming the place and the first difference.

Cycles and blocking orders of collectives show only in a replay, which then reports who waits for
whom.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import GraphError
from perfmodel.graph.job import NO_GROUP, JobGraph
from perfmodel.graph.ops import Fixed, Op, signature_of
from perfmodel.graph.program import NO_ORIGIN, PLAIN, Anchor, Int32s, Program, Role
from perfmodel.graph.rendezvous import describe_collective, find_divergence
from perfmodel.graph.stored_programs import BY_DEPENDENCY, BY_TASK

MOST_STATED = 2**53
"""Nanoseconds (104 days) and bytes that one value of a job may state."""
_Calls = dict[tuple[int, int], Int32s]
"""By program and communicator slot, the tasks that are collectives, in sequence order."""


def check_job(job: JobGraph) -> None:
    """Raise a GraphError unless *job* is sound."""
    _check_ranks(job)
    _check_durations(job)
    for index, program in enumerate(job.programs):
        _check_program(job, index, program)
    _check_groups(job)


def check_outline(job: JobGraph) -> None:
    """Raise a GraphError unless ranks have programs and groups have members; reads no task."""
    _check_ranks(job)
    _check_durations(job)
    _check_group_numbers(job)
    endpoints = job.endpoints()
    for group in range(len(job.groups)):
        rows = slice(endpoints.group_start[group], endpoints.group_start[group + 1])
        _check_members(job, group, endpoints.rank[rows])


def _check_group_numbers(job: JobGraph) -> None:
    if ((job.rank_group < NO_GROUP) | (job.rank_group >= len(job.groups))).any():
        raise GraphError(f"a slot names a group beyond the {len(job.groups)} that exist.")


def _check_ranks(job: JobGraph) -> None:
    if job.rank_count == 0:
        raise GraphError(f"job {job.facts.name!r}: must have at least one rank, has none.")
    wrong = np.flatnonzero((job.rank_program < 0) | (job.rank_program >= len(job.programs)))
    if len(wrong):
        rank = int(wrong[0])
        raise GraphError(
            f"rank {rank}: must run one of the {len(job.programs)} programs, "
            f"names program {int(job.rank_program[rank])}."
        )
    facts = job.facts
    if len(facts.peak_memory_bytes) not in (0, job.rank_count):
        raise GraphError(
            f"job {facts.name!r}: must state the memory of each of {job.rank_count} ranks or of "
            f"none, states that of {len(facts.peak_memory_bytes)}."
        )
    stated = {"peak_memory_bytes": facts.peak_memory_bytes} | {
        name: (getattr(facts, name),) for name in ("gpus_per_host", "others_late_ns")
    }
    for name, values in stated.items():
        if wrong_values := [value for value in values if not 0 <= value <= MOST_STATED]:
            raise GraphError(
                f"job {facts.name!r}: {name} must be 0 to 2^53, got {wrong_values[0]}."
            )


def _check_durations(job: JobGraph) -> None:
    for number, op in enumerate(job.ops):
        if isinstance(op, Fixed) and not 0 <= op.duration_ns <= MOST_STATED:
            raise GraphError(
                f"op {number} {op.name!r}: must last 0 to 2^53 ns, lasts {op.duration_ns}."
            )


def _check_program(job: JobGraph, index: int, program: Program) -> None:
    where = f"program {index} (rank {_first_rank(job, index)})"
    count = program.task_count
    if count == 0:
        raise GraphError(f"{where}: a rank must have an end, but it has no task at all.")
    starts = program.lane_start
    is_even = len(starts) == len(program.lanes) + 1 and not (np.diff(starts) < 0).any()
    if not is_even or starts[0] != 0 or starts[-1] != count:
        raise GraphError(f"{where}: its lanes do not cover its {count} tasks.")
    _check_lengths(where, program)
    _check_range(where, "op", program.op, len(job.ops))
    _check_range(where, "label", program.label, len(job.labels))
    _check_range(where, "origin", program.origin[program.origin != NO_ORIGIN], len(job.origins))
    _check_range(where, "source of a dependency", program.dep_task, count)
    _check_range(where, "anchor of a dependency", program.dep_anchor, len(Anchor))
    _check_range(where, "role", program.role, Role.BOTH + 1)
    _check_range(where, "slot", program.slot[program.slot != PLAIN], 2**31)
    if (program.dep_lag_ns < 0).any():
        raise GraphError(f"{where}: the lag of a dependency must not be negative.")
    _check_range(where, "lag of a dependency", program.dep_lag_ns, MOST_STATED)
    tasks = program.dep_owners()
    own = np.flatnonzero((tasks == program.dep_task) & (program.dep_distance == 0))
    if len(own):
        label = job.labels[int(program.label[tasks[own[0]]])]
        raise GraphError(f"{where}: cycle, task {tasks[own[0]]} {label!r} waits for itself.")


def _check_lengths(where: str, program: Program) -> None:
    """Raise unless every column has a row for each task, or for each dependency."""
    starts = program.dep_start
    wanted = dict.fromkeys(BY_TASK, program.task_count)
    wanted |= dict.fromkeys(BY_DEPENDENCY, int(starts[-1]) if len(starts) else 0)
    wanted["dep_start"] = program.task_count + 1
    for name, count in wanted.items():
        if len(getattr(program, name)) != count:
            raise GraphError(
                f"{where}: column {name} must have {count} rows, has {len(getattr(program, name))}."
            )


def _check_range(where: str, what: str, column: NDArray[Any], count: int) -> None:
    wrong = np.flatnonzero((column < 0) | (column >= count))
    if len(wrong):
        raise GraphError(
            f"{where}: {what} must be 0 to {count - 1}, row {int(wrong[0])} holds "
            f"{int(column[wrong[0]])}."
        )


def _check_groups(job: JobGraph) -> None:
    _check_group_numbers(job)
    calls: _Calls = {}
    for index in range(len(job.programs)):
        calls |= _calls_of_program(job, index)
    _check_slots(job, calls)
    endpoints = job.endpoints()
    checked: set[frozenset[tuple[int, int]]] = set()
    for group in range(len(job.groups)):
        rows = slice(endpoints.group_start[group], endpoints.group_start[group + 1])
        ranks, slots = endpoints.rank[rows], endpoints.slot[rows]
        _check_members(job, group, ranks)
        members = list(zip(job.rank_program[ranks].tolist(), slots.tolist(), strict=True))
        # Groups of the same programs on the same slots are checked once.
        key = frozenset(members)
        if key not in checked:
            checked.add(key)
            empty = np.empty(0, dtype=np.int32)
            of_group = {member: calls.get(member, empty) for member in sorted(key)}
            of_ranks = list(zip(ranks.tolist(), members, strict=True))
            _check_same_calls(job, job.groups[group].name, of_group, of_ranks)


def _calls_of_program(job: JobGraph, index: int) -> _Calls:
    program, found = job.programs[index], {}
    members = np.flatnonzero(program.slot != PLAIN)
    for slot in np.unique(program.slot[members]).tolist():
        tasks = members[program.slot[members] == slot]
        tasks = tasks[np.argsort(program.sequence[tasks], kind="stable")].astype(np.int32)
        if not np.array_equal(program.sequence[tasks], np.arange(len(tasks))):
            raise GraphError(
                f"program {index} (rank {_first_rank(job, index)}): the collectives of slot "
                f"{slot} must be numbered 0 to {len(tasks) - 1}, each once."
            )
        found[index, slot] = tasks
    return found


def _check_slots(job: JobGraph, calls: _Calls) -> None:
    for (index, slot), tasks in calls.items():
        lost = job.rank_program == index
        if slot < job.rank_group.shape[1]:
            lost &= job.rank_group[:, slot] == NO_GROUP
        if lost.any():
            rank = int(lost.argmax())
            raise GraphError(
                f"rank {rank}: {job.label_of(rank, int(tasks[0]))!r} uses communicator slot "
                f"{slot}, but that slot has no group. Add the rank to a group with that slot."
            )


def _check_members(job: JobGraph, group: int, ranks: Int32s) -> None:
    stated = job.groups[group]
    outside = [rank for rank in stated.ranks if not 0 <= rank < job.rank_count]
    if outside:
        raise GraphError(
            f"group {stated.name!r}: must name ranks 0 to {job.rank_count - 1}, "
            f"names rank {outside[0]}."
        )
    missing = np.setdiff1d(np.array(stated.ranks, dtype=np.int64), ranks)
    if len(missing):
        raise GraphError(
            f"group {stated.name!r}: rank {int(missing[0])} is a member but has no slot for the "
            "group, so its part in the collectives is missing."
        )


def _check_same_calls(
    job: JobGraph, name: str, calls: _Calls, members: list[tuple[int, tuple[int, int]]]
) -> None:
    """The *calls* of a group must agree; *members* has the program and slot of each rank."""
    ops = {of: job.programs[of[0]].op[tasks].tolist() for of, tasks in calls.items()}
    first = next(iter(ops.values()))
    if any(other != first for other in ops.values()):
        works = {of: [job.ops[op] for op in numbers] for of, numbers in ops.items()}
        # Ranks of the same program are compared only to say what most of them do.
        each = [(program, of) for (program, _), of in works.items()]
        if find_divergence(each, signature_of, _describe):
            all_ranks = [(rank, works[of]) for rank, of in members]
            divergence = find_divergence(all_ranks, signature_of, _describe)
            assert divergence is not None
            raise GraphError(divergence.sentence(name))
    roles = [job.programs[of[0]].role[tasks] & int(Role.SIGNALS) for of, tasks in calls.items()]
    lone = np.flatnonzero(np.sum(roles, axis=0) == 0)
    if len(lone):
        raise GraphError(
            f"group {name!r}: in #{int(lone[0])} every member waits and none signals. "
            "Give one of them the role SIGNALS."
        )


def _describe(op: Op) -> str:
    collective = signature_of(op)
    if collective is None:
        return f"{type(op).__name__} work"
    return describe_collective(collective)


def _first_rank(job: JobGraph, program: int) -> int:
    ranks = np.flatnonzero(job.rank_program == program)
    return int(ranks[0]) if len(ranks) else -1
