"""Advance: the compiled pass that computes when every task starts and ends.

There is no clock and no event queue. A lane is walked until its next task waits for something that
is not known yet, and resumed once it is known. The order of the walk cannot change the result
(max-plus algebra), so blocks of ranks may be advanced anywhere, in any order.

Lanes that another block released are walked first. If other blocks wait for a result of this one,
the walk stops early to report it.

Only ends, and when members of a rendezvous were ready, are stored; `history` derives from them why
a task started when it did. The code has loops instead of slices because numba compiles them many
times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.engine.layout import FlatJob, Int32s, Int64s

NOT_DONE = -1
"""The end of a task that has not run yet; the clock starts at 0."""
NOTHING = -1
"""No lane, no task: the link of an empty list."""
SIGNALS = 1
WAITS = 2

ITERATION = 0
STACK_HEIGHT = 1
OUTBOX_LENGTH = 2
URGENT_HEIGHT = 3
LANES_LEFT = 4
COUNTS = 5

TO_THE_END = 2**62
"""How many tasks a walk may take if no other block waits for it: no limit."""

_Pass = TypeVar("_Pass", bound=Callable[..., object])


def _compiled(function: _Pass) -> _Pass:
    """Compile *function* without reference counting.

    No function here creates or frees an array. With reference counting numba updates a counter for
    each array of FlatJob and State on every call, which doubles the time.
    """
    return compiled(function, _nrt=False)


def _inlined(function: _Pass) -> _Pass:
    """Compile *function* into its callers.

    A call passes seven words for each of about forty arrays, which takes as long as twenty tasks.
    """
    return compiled(function, cache=False, _nrt=False, forceinline=True)


class State(NamedTuple):
    """Durations and what is known so far. *end_ns* and *member_ready_ns* store a few iterations."""

    values_ns: Int64s
    r_offset: Int64s
    end_ns: NDArray[np.int64]
    member_ready_ns: NDArray[np.int64]
    # lane: next task, time reached, the task it waits for, the lanes that wait for it
    head: Int32s
    lane_now_ns: Int64s
    waits_for: Int32s
    first_waiter: Int32s
    next_waiter: Int32s
    # lanes to walk; those that another block released are separate
    stack: Int32s
    urgent: Int32s
    # rendezvous: signals still missing, and the latest one received
    missing: Int32s
    signal_ns: Int64s
    # member of a rendezvous: the lane that waits there
    member_lane: Int32s
    # when the current task is ready
    ready_ns: Int64s
    # rendezvous to report: group and sequence
    outbox: Int64s
    # ITERATION, STACK_HEIGHT, OUTBOX_LENGTH, URGENT_HEIGHT, LANES_LEFT
    counts: Int64s


@_compiled
def begin_iteration(s: FlatJob, x: State, iteration: int) -> None:
    """Prepare *x* for an iteration; lanes keep the time that they have reached."""
    x.counts[ITERATION] = iteration
    row = iteration % x.end_ns.shape[0]
    # Only the first vector shows whether a task is done.
    for task in range(x.end_ns.shape[1]):
        x.end_ns[row, task, 0] = NOT_DONE
    _expect_signals(s, x)
    for rank in range(len(s.r_program)):
        program = s.r_program[rank]
        for local in range(s.p_lane[program + 1] - s.p_lane[program]):
            x.head[s.r_lane[rank] + local] = s.lane_first[s.p_lane[program] + local]
    for lane in range(len(x.head)):
        x.first_waiter[lane] = NOTHING
        # The first rank is walked first: pushed last.
        x.stack[lane] = len(x.head) - 1 - lane
    x.counts[STACK_HEIGHT] = len(x.head)
    x.counts[URGENT_HEIGHT] = 0
    x.counts[LANES_LEFT] = len(x.head)


@_compiled
def advance(s: FlatJob, x: State, patience: int) -> None:
    """Walk all lanes on the stacks, and the lanes they wake, as far as possible.

    Stops early if there is something to report, no urgent lane is left and *patience* tasks were
    walked.
    """
    walked = 0
    while x.counts[STACK_HEIGHT] + x.counts[URGENT_HEIGHT] > 0:
        if x.counts[URGENT_HEIGHT] > 0:
            x.counts[URGENT_HEIGHT] -= 1
            lane = x.urgent[x.counts[URGENT_HEIGHT]]
        elif walked >= patience and x.counts[OUTBOX_LENGTH] > 0:
            return
        else:
            x.counts[STACK_HEIGHT] -= 1
            lane = x.stack[x.counts[STACK_HEIGHT]]
        before = x.head[lane]
        _walk_lane(s, x, lane)
        _wake_waiters(x, lane)
        walked += x.head[lane] - before


@_compiled
def resolve(s: FlatJob, x: State, found: Int64s, signal_ns: Int64s) -> None:
    """Apply rendezvous that were resolved outside: rows (group, sequence)."""
    for i in range(len(found)):
        rendezvous = s.g_rendezvous[found[i, 0]] + found[i, 1]
        x.missing[rendezvous] = 0
        for v in range(signal_ns.shape[1]):
            x.signal_ns[rendezvous, v] = signal_ns[i, v]
        _release(s, x, found[i, 0], rendezvous)


@_compiled
def _expect_signals(s: FlatJob, x: State) -> None:
    """Count, for every rendezvous, the members that others wait for."""
    for rendezvous in range(len(x.missing)):
        x.missing[rendezvous] = 0
        for v in range(x.signal_ns.shape[1]):
            x.signal_ns[rendezvous, v] = 0
    for member in range(len(x.member_lane)):
        x.member_lane[member] = NOTHING
    for group in range(len(s.g_size)):
        if s.g_is_external[group]:
            # The members in other blocks count as one, until `resolve` applies their time.
            for rendezvous in range(s.g_rendezvous[group], s.g_rendezvous[group + 1]):
                x.missing[rendezvous] = 1
    for rank in range(len(s.r_program)):
        program = s.r_program[rank]
        for i in range(s.p_member[program], s.p_member[program + 1]):
            if s.m_role[i] & SIGNALS:
                group = s.r_group[rank, s.m_slot[i]]
                x.missing[s.g_rendezvous[group] + s.m_sequence[i]] += 1


@_compiled
def is_repeated(s: FlatJob, x: State, before_ns: Int64s, shift_ns: Int64s) -> bool:  # noqa: C901  loops
    """Whether the next iteration is a copy of the one just done, *shift_ns* later by vector.

    *before_ns* is what lanes had reached before it. What an iteration takes over from earlier ones,
    the time of lanes and dependencies on their tasks, must come as much later for the next one, or
    decide in neither: the task was ready later than that. Then so is every further iteration.
    """
    now, kept = x.counts[ITERATION], x.end_ns.shape[0]
    for lane in range(len(s.lane_rank)):
        program = s.r_program[s.lane_rank[lane]]
        row = s.p_lane[program] + lane - s.r_lane[s.lane_rank[lane]]
        if s.lane_first[row] < s.lane_stop[row]:
            for v in range(len(shift_ns)):
                then, later = before_ns[lane, v], x.lane_now_ns[lane, v] - shift_ns[v]
                if not _is_copied(s, x, s.lane_rank[lane], s.lane_first[row], v, then, later):
                    return False
    for rank in range(len(s.r_program)):
        program = s.r_program[rank]
        for task in range(s.p_task[program + 1] - s.p_task[program]):
            row = s.p_task[program] + program + task
            for place in range(s.dep_start[row], s.dep_start[row + 1]):
                d = s.p_dep[program] + place
                # Those that reach further back would have to repeat for as many iterations.
                if s.dep_distance[d] > min(now, 1):
                    return False
                if s.dep_distance[d] == 1:
                    source = s.dep_task[d]
                    for v in range(len(shift_ns)):
                        lag = s.dep_lag_ns[d]
                        if s.dep_anchor[d]:
                            lag -= x.values_ns[x.r_offset[rank] + source, v]
                        then = x.end_ns[(now - 1) % kept, s.r_task[rank] + source, v] + lag
                        later = x.end_ns[now % kept, s.r_task[rank] + source, v] + lag
                        if not _is_copied(s, x, rank, task, v, then, later - shift_ns[v]):
                            return False
    return True


@_inlined
def _is_copied(
    s: FlatJob, x: State, rank: int, task: int, v: int, then_ns: int, later_ns: int
) -> bool:
    """Whether *task*, which waited for *then_ns*, would wait as long for *later_ns*."""
    if then_ns == later_ns:
        return True
    row, flat = x.counts[ITERATION] % x.end_ns.shape[0], s.r_task[rank] + task
    ready_ns = x.end_ns[row, flat, v] - x.values_ns[x.r_offset[rank] + task, v]
    # When a member was ready before the others is not looked up: it must wait as long.
    is_plain = s.member[s.p_task[s.r_program[rank]] + task] < 0
    return bool(is_plain and then_ns < ready_ns and later_ns <= ready_ns)


@_inlined
def _walk_lane(s: FlatJob, x: State, lane: int) -> None:  # noqa: C901, PLR0912, PLR0915  see below
    """Run tasks of *lane* in order until one waits for something unknown.

    This is the hot loop. It is long because a call per task, with about forty arrays to pass, would
    be many times slower.
    """
    rank = s.lane_rank[lane]
    program = s.r_program[rank]
    stop = s.lane_stop[s.p_lane[program] + (lane - s.r_lane[rank])]
    task_base, flat_base, offset = s.p_task[program], s.r_task[rank], x.r_offset[rank]
    # A program has one row more of dep_start than tasks.
    start_base, dep_base = task_base + program, s.p_dep[program]
    iteration, kept, width = x.counts[ITERATION], x.end_ns.shape[0], x.end_ns.shape[2]
    end_ns = x.end_ns[iteration % kept]
    now = x.lane_now_ns[lane, 0]
    task = x.head[lane]
    stop_dep = dep_base + s.dep_start[start_base + task]
    while task < stop:
        ready = now
        for v in range(1, width):
            x.ready_ns[v] = x.lane_now_ns[lane, v]
        blocker = NOTHING
        first_dep, stop_dep = stop_dep, dep_base + s.dep_start[start_base + task + 1]
        for d in range(first_dep, stop_dep):
            distance = s.dep_distance[d]
            if distance > iteration:
                continue
            source = s.dep_task[d]
            lag = s.dep_lag_ns[d]
            if distance == 0:
                moment = end_ns[flat_base + source, 0]
                if moment == NOT_DONE:
                    blocker = source
                    break
            else:
                moment = x.end_ns[(iteration - distance) % kept, flat_base + source, 0]
            if s.dep_anchor[d]:
                moment -= x.values_ns[offset + source, 0]
            ready = max(ready, moment + lag)
            if width > 1:
                then_ns = x.end_ns[(iteration - distance) % kept, flat_base + source]
                # One loop with and one without, so that each is compiled to vector instructions.
                if s.dep_anchor[d]:
                    for v in range(width):
                        moment = then_ns[v] - x.values_ns[offset + source, v]
                        x.ready_ns[v] = max(x.ready_ns[v], moment + lag)
                else:
                    for v in range(width):
                        x.ready_ns[v] = max(x.ready_ns[v], then_ns[v] + lag)
        if blocker != NOTHING:
            source_lane = s.r_lane[rank] + _lane_of(s, program, blocker)
            x.waits_for[lane] = blocker
            x.next_waiter[lane] = x.first_waiter[source_lane]
            x.first_waiter[source_lane] = lane
            break
        if s.member[task_base + task] >= 0:
            x.ready_ns[0] = ready
            if not _arrive(s, x, lane, task):
                break
            now = x.lane_now_ns[lane, 0]
        else:
            now = ready + x.values_ns[offset + task, 0]
            end_ns[flat_base + task, 0] = now
            for v in range(1, width):
                x.lane_now_ns[lane, v] = x.ready_ns[v] + x.values_ns[offset + task, v]
                end_ns[flat_base + task, v] = x.lane_now_ns[lane, v]
        task += 1
    x.head[lane] = task
    x.lane_now_ns[lane, 0] = now
    if task == stop:
        x.counts[LANES_LEFT] -= 1


@_inlined
def _lane_of(s: FlatJob, program: int, task: int) -> int:
    """The lane of *task*, counted from the first of its program."""
    low, high = s.p_lane[program], s.p_lane[program + 1] - 1
    while low < high:
        middle = (low + high) // 2
        if s.lane_stop[middle] <= task:
            low = middle + 1
        else:
            high = middle
    return int(low - s.p_lane[program])


@_inlined
def _arrive(s: FlatJob, x: State, lane: int, task: int) -> bool:
    """Add a member, ready at `x.ready_ns`, to its rendezvous; False if it must wait there."""
    rank = s.lane_rank[lane]
    program = s.r_program[rank]
    here = s.p_member[program] + s.member[s.p_task[program] + task]
    slot, sequence, role = s.m_slot[here], s.m_sequence[here], s.m_role[here]
    group = s.r_group[rank, slot]
    rendezvous = s.g_rendezvous[group] + sequence
    member = s.g_member[group] + sequence * s.g_size[group] + s.r_position[rank, slot]
    row = x.counts[ITERATION] % x.end_ns.shape[0]
    for v in range(len(x.ready_ns)):
        x.member_ready_ns[row, member, v] = x.ready_ns[v]
    if role & SIGNALS:
        x.missing[rendezvous] -= 1
        for v in range(len(x.ready_ns)):
            x.signal_ns[rendezvous, v] = max(x.signal_ns[rendezvous, v], x.ready_ns[v])
        if x.missing[rendezvous] == 0:
            # Members that arrived earlier are released; this one continues below.
            _release(s, x, group, rendezvous)
        elif x.missing[rendezvous] == 1 and s.g_is_external[group]:
            x.outbox[x.counts[OUTBOX_LENGTH], 0] = group
            x.outbox[x.counts[OUTBOX_LENGTH], 1] = sequence
            x.counts[OUTBOX_LENGTH] += 1
    if (role & WAITS) and x.missing[rendezvous] > 0:
        x.member_lane[member] = lane
        return False
    _start_member(s, x, lane, task, rendezvous, member, (role & WAITS) > 0)
    return True


@_inlined
def _start_member(
    s: FlatJob, x: State, lane: int, task: int, rendezvous: int, member: int, waits: bool
) -> None:
    """Start a member that is ready, once the members it waits for are ready too."""
    rank = s.lane_rank[lane]
    row = x.counts[ITERATION] % x.end_ns.shape[0]
    for v in range(len(x.ready_ns)):
        start = x.member_ready_ns[row, member, v]
        if waits:
            start = max(start, x.signal_ns[rendezvous, v])
        end = start + x.values_ns[x.r_offset[rank] + task, v]
        x.end_ns[row, s.r_task[rank] + task, v] = end
        x.lane_now_ns[lane, v] = end


@_inlined
def _release(s: FlatJob, x: State, group: int, rendezvous: int) -> None:
    """Start every member that waits in a rendezvous, and put its lane back on a stack."""
    first = s.g_member[group] + (rendezvous - s.g_rendezvous[group]) * s.g_size[group]
    for member in range(first, first + s.g_size[group]):
        lane = x.member_lane[member]
        if lane != NOTHING:
            x.member_lane[member] = NOTHING
            _start_member(s, x, lane, x.head[lane], rendezvous, member, True)
            x.head[lane] += 1
            if s.g_is_external[group]:
                x.urgent[x.counts[URGENT_HEIGHT]] = lane
                x.counts[URGENT_HEIGHT] += 1
            else:
                x.stack[x.counts[STACK_HEIGHT]] = lane
                x.counts[STACK_HEIGHT] += 1


@_inlined
def _wake_waiters(x: State, lane: int) -> None:
    """Put lanes back on the stack that wait for a task on *lane* which is now done."""
    waiter = x.first_waiter[lane]
    x.first_waiter[lane] = NOTHING
    while waiter != NOTHING:
        following = x.next_waiter[waiter]
        if x.waits_for[waiter] < x.head[lane]:
            x.stack[x.counts[STACK_HEIGHT]] = waiter
            x.counts[STACK_HEIGHT] += 1
        else:
            x.next_waiter[waiter] = x.first_waiter[lane]
            x.first_waiter[lane] = waiter
        waiter = following
