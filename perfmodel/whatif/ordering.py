"""Primitives about the order of kernels and collectives: overlapped, in turns, by priority."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import Dependency
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed, duration_of
from perfmodel.graph.program import LaneKind
from perfmodel.whatif.drafts import ProgramDraft, edit_programs, read_dependencies
from perfmodel.whatif.editing import Found
from perfmodel.whatif.recosting import bytes_of
from perfmodel.whatif.selection import Pattern, Selection


def detach(program: ProgramDraft, found: Found, *, until: Pattern) -> None:
    """Of the device only tasks like *until* wait for the collectives; the rest runs beside them.

    Collectives on a compute stream move to a stream of their own.
    """
    users = program.find(Selection(until))
    waits: dict[int, list[Dependency]] = {}
    for number, task in program.tasks.items():
        user = _next_user(program, number, users)
        if number in found or user is None or not program.kind_of(number).is_device:
            continue
        lost = [dep for dep in task.after if dep.task in found and not dep.distance]
        task.after = [dep for dep in task.after if dep not in lost]
        waits.setdefault(user, []).extend(lost)
    on_compute = [one for one in found if program.kind_of(one) is LaneKind.COMPUTE]
    for number in on_compute:
        user = _next_user(program, number, users)
        if user is not None:
            waits.setdefault(user, []).append(Dependency(number))
    for user, added in waits.items():
        program.tasks[user].after.extend(added)
    _move_off_compute(program, on_compute)


def _move_off_compute(program: ProgramDraft, found: Sequence[int]) -> None:
    """Give collectives of a compute lane a lane beside it; they wait for what came before."""
    apart: dict[int, int] = {}
    for number in found:
        task = program.tasks[number]
        if task.lane not in apart:
            name = f"communication of {program.lanes[task.lane].name}"
            apart[task.lane] = program.add_lane(name, LaneKind.COMMUNICATION)
        program.wait_for(number, program.ahead(number)[-1:])
        program.move(number, apart[task.lane])


def _next_user(program: ProgramDraft, number: int, until: list[int]) -> int | None:
    """The first task of *until* (ascending) on the lane of a task, at or behind it."""
    place = bisect_left(until, number)
    if place == len(until) or program.tasks[until[place]].lane != program.tasks[number].lane:
        return None
    return until[place]


def take_turns(program: ProgramDraft, found: Found) -> None:
    """Every collective and the kernels launched around it by one thread wait for each other."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for number in program.tasks:
        launch = program.launch_of(number)
        is_kernel = program.kind_of(number) is LaneKind.COMPUTE
        if launch is not None and (is_kernel or number in found):
            threads.setdefault(program.tasks[launch].lane, []).append((launch, number))
    for launched in threads.values():
        # Numbers grow along a lane, so this is the order of the launches.
        for (_, before), (_, after) in pairwise(sorted(launched)):
            if (before in found) != (after in found):
                program.wait_for(after, [before])


def prioritise(job: JobGraph, selection: Selection, *, update: Pattern) -> JobGraph:
    """Collectives run by when they are needed, and the forward pass waits for its own.

    The collective that comes last is needed first. Tasks like *update* are done piece by piece
    behind the collectives.
    """
    updates = Selection(update)
    selection.check_found(job)
    updates.check_found(job)
    ready_ns = _ready_ns(job, selection)

    def edit(program: ProgramDraft) -> None:
        own_ns = {
            task: ready_ns[_rendezvous(job, program.rank, task)] for task in program.find(selection)
        }
        if own_ns:
            _prioritise(program, own_ns, program.find(updates))

    return edit_programs(job, edit)


def _rendezvous(job: JobGraph, rank: int, task: int) -> tuple[int, int]:
    """Group and sequence of a collective."""
    program = job.program_of(rank)
    return int(job.rank_group[rank, program.slot[task]]), int(program.sequence[task])


def _ready_ns(job: JobGraph, selection: Selection) -> dict[tuple[int, int], int]:
    """When the last member of each collective could begin, by group and sequence, in one pass."""
    end_ns = replay(job, stated_durations(job)).last.end_ns[:, 0].tolist()
    ready: dict[tuple[int, int], int] = {}
    for rank, first in enumerate(job.rank_rows()[: job.rank_count].tolist()):
        program = job.program_of(rank)
        after = read_dependencies(program)
        for task in selection.tasks(job, program):
            key = _rendezvous(job, rank, task)
            ends = (
                end_ns[first + dep.task] + dep.lag_ns for dep in after[task] if not dep.distance
            )
            ready[key] = max(ready.get(key, 0), *ends, 0)
    return ready


def _prioritise(program: ProgramDraft, ready_ns: dict[int, int], updates: Sequence[int]) -> None:
    """Reorder the collectives, split the update, and let forward wait for its own parameters."""
    updates = [one for one in updates if program.kind_of(one).is_device]
    if not updates:
        raise ScenarioError("no update runs on the device, so no task can wait for less.")
    forward = _forward(program, ready_ns, updates)
    order = _priority_order(program, ready_ns)
    total_ns = sum(_length_ns(program, number) for number in updates)
    sizes = {one: bytes_of(program.op(one)) for one in order}
    if not all(sizes.values()):
        raise ScenarioError("a collective does not say its bytes. Narrow the pattern.")
    # What the updates waited for no longer holds up the forward pass behind them.
    program.remove(updates, with_launches=True, keep_waits=False)
    lane = program.tasks[order[0]].lane
    if any(program.tasks[one].lane != lane for one in order):
        raise ScenarioError("collectives of several streams have no order. Narrow the pattern.")
    program.lane_tasks[lane] = [one for one in program.lane_tasks[lane] if one not in sizes]
    pieces = {}
    for place, number in enumerate(order):
        program.tasks[number].order = (place, 0)
        program.lane_tasks[lane].append(number)
        share_ns = round(total_ns * sizes[number] / sum(sizes.values()))
        op = Fixed("update", share_ns, Provenance.ASSUMED)
        [pieces[number]] = program.insert([program.new_task(lane, op, "update piece")])
    # Stretches of the forward pass wait for the pieces they use, the last made first.
    used = sorted(pieces, reverse=True)
    needed = list(accumulate(sizes[one] for one in used))
    lengths = [_length_ns(program, number) for number in forward]
    starts = [end - own for end, own in zip(accumulate(lengths), lengths, strict=True)]
    for number, start_ns in zip(forward, starts, strict=True):
        share = start_ns / max(sum(lengths), 1) * needed[-1]
        place = min(int(np.searchsorted(needed, share, side="right")), len(used) - 1)
        own = Dependency(pieces[used[place]], distance=1)
        program.tasks[number].after.append(own)


def _length_ns(program: ProgramDraft, number: int) -> int:
    return duration_of(program.op(number))


def _forward(
    program: ProgramDraft, collectives: Collection[int], updates: Sequence[int]
) -> list[int]:
    """Kernels ahead of the first one whose gradient a collective carries."""
    sources = [
        dep.task
        for number in collectives
        for dep in program.tasks[number].after
        if program.kind_of(dep.task).is_device and dep.task not in collectives
    ]
    if not sources:
        raise ScenarioError("no collective waits for a kernel, so no forward pass is known.")
    if min(updates) < max(sources):
        raise ScenarioError(
            "the job contains several steps, but must be one iteration that repeats: an update "
            "comes ahead of kernels that a collective waits for. Use a job that was built or "
            "emulated, or record one step."
        )
    return program.ahead(min(sources))


def _priority_order(program: ProgramDraft, ready_ns: dict[int, int]) -> list[int]:
    """The collectives as a stream takes them: the last made of those that are ready."""
    left = sorted(ready_ns, key=lambda one: program.tasks[one].order)
    place = {number: index for index, number in enumerate(left)}
    order, now_ns = [], 0
    while left:
        ready = [one for one in left if ready_ns[one] <= now_ns]
        if not ready:
            now_ns = min(ready_ns[one] for one in left)
            continue
        taken = max(ready, key=place.__getitem__)
        now_ns += _length_ns(program, taken)
        order.append(taken)
        left.remove(taken)
    return order
