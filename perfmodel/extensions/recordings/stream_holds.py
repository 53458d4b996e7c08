"""Stream holds: a kernel of several waves delays kernels of other streams.

While blocks of a kernel still wait for a multiprocessor, no block of another stream gets one, so
the kernel holds back other streams until its last wave. Which kernel delays which depends on when
they are ready: a replay shows it, and the rule delays tasks of the next replay (see
`perfmodel.engine.settle`). Allocations that overlap on a host are slowed down in the same rounds.

Leaves out: how much of the device the last wave leaves free. High-priority streams are exempt; a
trace does not name them, but their start times show them.
Source: recorded V100 traces, where kernels held on the main and NCCL streams started at 0.96 to
1.11 of the predicted time. Exceptions: on short-lived side streams every second kernel started at
0.6 to 0.7, and on an A100 a third of the kernels of one stream started earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.replay import replay
from perfmodel.engine.settle import Effects, Round, Rule, Rules, settle
from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.extensions.recordings.recorded_job import rank_parts
from perfmodel.extensions.recordings.throttle import SharedDriver, allocations_by_host
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, Int64s, Program

_BLOCKS_PER_MULTIPROCESSOR = 32
_THREADS_OF_A_WARP = 32
_REGISTERS_AT_ONCE = 8


def waves_of(view: RankView) -> NDArray[np.float64]:
    """How often the blocks of each device task fill the device.

    Zero for copies and collectives, and where the trace does not describe the device.
    """
    columns, rows = view.trace.columns, view.device.row
    devices = {item.get("id"): item for item in view.trace.devices}
    details, owners = columns.detail[rows].astype(np.int64), columns.device[rows].astype(np.int64)
    waves = np.zeros(len(rows))
    is_described = np.flatnonzero((details >= 0) & ~view.device.is_collective)
    kinds = np.stack([details[is_described], owners[is_described]], axis=1)
    found, first, place = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    of_kind = np.zeros(len(found))
    for number, (row, owner) in enumerate(
        zip(rows[is_described[first]].tolist(), found[:, 1].tolist(), strict=True)
    ):
        of_kind[number] = _waves(view.trace.detail_of(row), devices.get(owner))
    waves[is_described] = of_kind[place.reshape(-1)]
    return waves


def can_be_held(view: RankView) -> NDArray[np.bool_]:
    """Which device tasks need a multiprocessor: all but copies to and from the host."""
    names = [name.lower() for name in view.trace.names]
    is_held = np.array(["memcpy htod" not in n and "memcpy dtoh" not in n for n in names], bool)
    held: NDArray[np.bool_] = is_held[view.trace.columns.name[view.device.row]]
    return held


def _waves(geometry: dict[str, Any], device: dict[str, Any] | None) -> float:
    """Blocks of the kernel over the blocks that fit on *device* at once."""
    try:
        blocks = int(np.prod([int(extent) for extent in geometry["grid"]]))
        threads = int(np.prod([int(extent) for extent in geometry["block"]]))
        assert device is not None
        multiprocessors = int(device["numSms"])
        resident = _resident_blocks(geometry, device, max(threads, 1))
    except (KeyError, TypeError, ValueError, AssertionError):
        return 0.0
    if multiprocessors <= 0:
        return 0.0
    waves = blocks / (multiprocessors * resident)
    # As many blocks as multiprocessors go on to more work each: how much, the grid does not say.
    return waves if waves > 1 or blocks % multiprocessors else 0.0


def _resident_blocks(geometry: dict[str, Any], device: dict[str, Any], threads: int) -> int:
    limits = [
        _BLOCKS_PER_MULTIPROCESSOR,
        int(device.get("maxThreadsPerMultiprocessor", 2048)) // threads,
    ]
    registers = int(geometry.get("registers per thread") or 0)
    if registers:
        # Registers are given out eight at a time, to whole warps.
        rounded = -(-registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
        warps = -(-threads // _THREADS_OF_A_WARP)
        available = int(device.get("regsPerMultiprocessor", 65536))
        limits.append(available // (rounded * warps * _THREADS_OF_A_WARP))
    shared_bytes = int(geometry.get("shared memory") or 0)
    if shared_bytes:
        limits.append(int(device.get("sharedMemPerMultiprocessor", 98304)) // shared_bytes)
    return max(min(limits), 1)


MAX_ROUNDS = 16
_SETTLED_NS = 1_000
# Enough evidence that a stream is exempt: three holds of 30 us that did not happen.
_EVIDENT_WAIT_NS = 30_000
_EVIDENT_COUNT = 3
_HELD_RATIO = 0.8
_EXEMPT_RATIO = 0.6
_NO_HOLDS = np.empty((0, 3), dtype=np.int64)
"""One row per hold of a rank: a task, the kernel that holds it, and for how long from its start."""


def hold_ratios(graph: JobGraph) -> NDArray[np.float64]:
    """By row, the share of each task, from its start, in which it holds back other streams."""
    waves = np.array([getattr(op, "waves", 0.0) for op in graph.ops])
    return held_shares(np.concatenate([waves[program.op] for program, _ in rank_parts(graph)]))


def held_shares(waves: NDArray[np.float64]) -> NDArray[np.float64]:
    """All but the last of *waves*."""
    shares: NDArray[np.float64] = 1 - 1 / np.maximum(waves, 1.0)
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class HoldRule:
    """By row: the share of its time in which a task holds back others, and which can be held."""

    ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]

    def __call__(self, last: Round, found: Effects) -> None:
        """Delay the tasks that were ready while a kernel held them back."""
        for rank, (program, rows) in enumerate(rank_parts(last.undelayed)):
            rule = HoldRule(self.ratio[rows], self.can_be_held[rows])
            holds = _find_holds(program, last.start_ns[rows], last.end_ns[rows], rule)
            if len(holds):
                found.delays[rank] = holds


def recorded_rules(graph: JobGraph, hold: HoldRule, *, iterations: int = 1) -> Rules:
    """What tasks of a recording do to each other: *hold* back, and share the drivers of hosts."""
    rules: list[Rule] = [hold] if (hold.ratio > 0).any() else []
    rules += [SharedDriver(*calls) for calls in allocations_by_host(graph)]
    return Rules(rules, rounds=MAX_ROUNDS, iterations=iterations, noticed_ns=_SETTLED_NS)


@dataclass(frozen=True, slots=True, eq=False)
class KnownEffects:
    """What tasks of a settled job do to each other, in proportion for tasks of other lengths.

    Which task holds back which stays as it is, so a shorter task never lengthens an iteration.
    """

    settled: Round

    def __call__(self, last: Round, found: Effects) -> None:
        """Delay and lengthen the same tasks again."""
        own_ns, was_ns = last.alone_ns, self.settled.alone_ns
        found.lost_ns[:] += self.settled.lost_ns * (own_ns / np.maximum(was_ns, 1))
        before, ratio = self.settled.undelayed.programs, hold_ratios(last.undelayed)
        for rank, (delayed, rows) in enumerate(rank_parts(self.settled.job)):
            # Delays follow the dependencies of their task.
            counts = np.diff(before[rank].dep_start)
            place = np.arange(len(delayed.dep_task)) - delayed.dep_start[delayed.dep_owners()]
            is_delay = place >= counts[delayed.dep_owners()]
            tasks, sources = delayed.dep_owners()[is_delay], delayed.dep_task[is_delay]
            held_ns = (own_ns[rows][sources] * ratio[rows][sources]).astype(np.int64)
            if len(tasks):
                found.delays[rank] = np.column_stack([tasks, sources, held_ns])


def replay_with_holds(graph: JobGraph, durations: DurationTable, hold: HoldRule) -> Round:
    """Replay one pass of *graph* with kernels that hold back others as *hold* says.

    Allocations that overlap on a host share its driver.
    """
    own_ns = [durations.of_rank(graph, rank)[:, 0] for rank in range(graph.rank_count)]
    alone_ns = np.concatenate(own_ns).astype(np.float64)
    return settle(replay, graph, alone_ns, recorded_rules(graph, hold))


def exempt_tasks(
    program: Program, start_ns: Int64s, end_ns: Int64s, rule: HoldRule
) -> NDArray[np.bool_]:
    """Tasks of high-priority streams, which are not held back.

    *start_ns* and *end_ns* are as recorded. A stream is exempt if most of its tasks started
    while a kernel of another stream still had blocks to place.
    """
    tasks, sources, held_ns = _find_holds(program, start_ns, end_ns, rule).T
    ready_ns = ready_ns_of(program, start_ns, end_ns)[tasks]
    is_evident = start_ns[sources] + held_ns - ready_ns > _EVIDENT_WAIT_NS
    waited_ratio = (start_ns[tasks] - start_ns[sources]) / np.maximum(held_ns, 1)
    lanes = program.task_lanes()
    exempt = np.zeros(program.task_count, dtype=bool)
    for lane in range(len(program.lanes)):
        ratios = waited_ratio[is_evident & (lanes[tasks] == lane)]
        if len(ratios) >= _EVIDENT_COUNT and (ratios < _HELD_RATIO).mean() > _EXEMPT_RATIO:
            exempt |= lanes == lane
    return exempt


def _find_holds(program: Program, start_ns: Int64s, end_ns: Int64s, rule: HoldRule) -> Int64s:
    """Tasks that were ready while a kernel of another stream still had blocks to place."""
    ready_ns = ready_ns_of(program, start_ns, end_ns)
    lanes, is_device = program.task_lanes(), program.is_on_device()
    held_ns = ((end_ns - start_ns) * rule.ratio).astype(np.int64)
    can_be_held = is_device & rule.can_be_held & (end_ns > start_ns)
    found = [_NO_HOLDS]
    for lane in np.unique(lanes[is_device & (held_ns > 0)]).tolist():
        holders = np.flatnonzero((lanes == lane) & (held_ns > 0))
        others = np.flatnonzero(can_be_held & (lanes != lane))
        place = np.searchsorted(start_ns[holders], ready_ns[others], side="right") - 1
        # Of two tasks ready in the same nanosecond the one stored first goes first.
        first = holders[np.maximum(place, 0)]
        place -= (place >= 0) & (start_ns[first] == ready_ns[others]) & (first > others)
        holder = holders[np.maximum(place, 0)]
        is_held = (place >= 0) & (ready_ns[others] < start_ns[holder] + held_ns[holder])
        tasks, sources = others[is_held], holder[is_held]
        found.append(np.column_stack([tasks, sources, held_ns[sources]]))
    return np.concatenate(found)


def ready_ns_of(program: Program, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """When each task could have started if no kernel of another stream had held it back."""
    ready_ns = np.zeros(program.task_count, dtype=np.int64)
    ready_ns[1:] = end_ns[:-1]
    ready_ns[program.lane_start[:-1][program.lane_start[:-1] < program.task_count]] = 0
    tasks = program.dep_owners()
    moments = np.where(
        program.dep_anchor == int(Anchor.START),
        start_ns[program.dep_task],
        end_ns[program.dep_task],
    )
    now = program.dep_distance == 0
    np.maximum.at(ready_ns, tasks[now], (moments + program.dep_lag_ns)[now])
    return ready_ns
