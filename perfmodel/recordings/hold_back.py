"""Hold-back: a kernel of several waves keeps kernels of other streams waiting.

Which kernel meets which depends on when they are ready, so it is found after a
replay and put in as dependencies for the next one, until nothing changes.

Leaves out: how many places the last wave leaves free. Streams of high priority
are exempt; a trace does not name them, but shows them.
Source: recorded V100 traces, where kernels held on the main and NCCL streams
started at 0.96 to 1.11 of the time that the rule gives. Not so everywhere: on
short-lived side streams every second one came at 0.6 to 0.7, and on an A100 a
third of those of one stream came earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.replay import Replay, replay
from perfmodel.engine.steady import Replayer
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import Anchor, Int64s, Program
from perfmodel.recordings.rank_view import RankView
from perfmodel.recordings.turns import allocations_by_host

# While blocks of a kernel still wait for a place, no block of another stream
# gets one: a kernel of several waves holds back other streams until its last.


_BLOCKS_PER_MULTIPROCESSOR = 32
_THREADS_OF_A_WARP = 32
_REGISTERS_AT_ONCE = 8


def hold_ratios(view: RankView) -> NDArray[np.float64]:
    """Share of each device task, from its start, in which it holds back other streams.

    Zero for copies, for kernels of up to one wave, and where the trace does not
    describe the device.
    """
    columns, device = view.trace.columns, view.device
    devices = {item.get("id"): item for item in view.trace.devices}
    ratio_of: dict[tuple[int, int], float] = {}
    ratios = np.zeros(len(device))
    for task, row in enumerate(device.row.tolist()):
        key = (int(columns.detail[row]), int(columns.device[row]))
        if key[0] < 0:
            continue
        if key not in ratio_of:
            waves = _waves(view.trace.detail_of(row), devices.get(key[1]))
            ratio_of[key] = 1 - 1 / waves if waves > 1 else 0.0
        ratios[task] = ratio_of[key]
    return ratios


def can_be_held(view: RankView) -> NDArray[np.bool_]:
    """Which device tasks need a multiprocessor: all but copies to and from the host."""
    is_dma = np.array(
        [
            "memcpy htod" in name.lower() or "memcpy dtoh" in name.lower()
            for name in view.trace.names
        ],
        dtype=bool,
    )
    held: NDArray[np.bool_] = ~is_dma[view.trace.columns.name[view.device.row]]
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
    return blocks / (multiprocessors * resident) if multiprocessors > 0 else 0.0


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
# Enough to tell whether a stream is exempt: three waits of 30 us that did not happen.
_TELLING_WAIT_NS = 30_000
_TELLING_COUNT = 3
_HELD_RATIO = 0.8
_EXEMPT_RATIO = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class HeldReplay:
    """When every task started and ended, how long it took, and whether all that had settled."""

    start_ns: Int64s
    end_ns: Int64s
    graph: JobGraph
    replay: Replay
    durations: DurationTable
    rounds: int
    unsettled: int
    moved_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class _Holds:
    """Task *task* starts no earlier than *lag_ns* after the start of *source*."""

    task: Int64s
    source: Int64s
    lag_ns: Int64s

    def differs_from(self, other: _Holds) -> int:
        mine, theirs = (
            {tuple(row) for row in np.column_stack([h.task, h.source, h.lag_ns]).tolist()}
            for h in (self, other)
        )
        return len(mine ^ theirs)


@dataclass(frozen=True, slots=True, eq=False)
class HoldRule:
    """By row: for which share of its time a task holds back others, and which can be held."""

    ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]

    def part(self, rows: slice) -> HoldRule:
        """The rule for some *rows*."""
        return HoldRule(self.ratio[rows], self.can_be_held[rows])


def replay_in_process(job: JobGraph, durations: DurationTable, iterations: int) -> Replay:
    """The replayer that is always there."""
    return replay(job, durations, iterations=iterations)


def replay_held(
    graph: JobGraph,
    durations: DurationTable,
    rule: HoldRule,
    *,
    replayer: Replayer = replay_in_process,
) -> HeldReplay:
    """Replay one pass of *graph* with kernels holding back others as *rule* says.

    Allocations that meet on a host take turns.
    """
    own_ns = np.concatenate(
        [durations.of_rank(graph, rank)[:, 0] for rank in range(graph.rank_count)]
    )
    allocations = allocations_by_host(graph)
    lengths_ns, held = own_ns, graph
    empty = np.empty(0, dtype=np.int64)
    holds = [_Holds(empty, empty, empty)] * graph.rank_count
    played = replayer(graph, durations, 1)
    end_ns = played.last.end_ns[:, 0]
    rounds, unsettled, moved_ns = 1, 0, 0
    while rounds < MAX_ROUNDS and ((rule.ratio > 0).any() or allocations):
        start_ns = end_ns - lengths_ns
        found = _find_all_holds(graph, start_ns, end_ns, rule)
        turned_ns = own_ns.copy()
        for calls in allocations:
            turned_ns[calls.rows] = calls.shared_ns(start_ns, end_ns, own_ns)
        unsettled = sum(new.differs_from(old) for new, old in zip(found, holds, strict=True))
        unsettled += int((np.abs(turned_ns - lengths_ns) > _SETTLED_NS).sum())
        if not unsettled:
            break
        holds, lengths_ns, before_ns = found, turned_ns, int(end_ns.max())
        held, durations = _with_holds(graph, holds), _table_of(graph, lengths_ns)
        played = replayer(held, durations, 1)
        end_ns = played.last.end_ns[:, 0]
        moved_ns = int(end_ns.max()) - before_ns
        rounds += 1
    start_ns = end_ns - lengths_ns
    return HeldReplay(start_ns, end_ns, held, played, durations, rounds, unsettled, moved_ns)


def _table_of(graph: JobGraph, lengths_ns: Int64s) -> DurationTable:
    """One row a rank, as `_with_holds` gives each a program of its own."""
    firsts = np.concatenate([[0], np.cumsum(graph.task_counts())])[:-1]
    return DurationTable(np.ascontiguousarray(lengths_ns[:, None]), firsts.astype(np.int64))


def _find_all_holds(
    graph: JobGraph, start_ns: Int64s, end_ns: Int64s, rule: HoldRule
) -> list[_Holds]:
    offsets = np.concatenate([[0], np.cumsum(graph.task_counts())])
    found = []
    for rank in range(graph.rank_count):
        part = slice(offsets[rank], offsets[rank + 1])
        program = graph.program_of(rank)
        found.append(_find_holds(program, start_ns[part], end_ns[part], rule.part(part)))
    return found


def exempt_tasks(
    program: Program, start_ns: Int64s, end_ns: Int64s, rule: HoldRule
) -> NDArray[np.bool_]:
    """Tasks of streams that are not held back: those of high priority, told by what they did.

    *start_ns* and *end_ns* are as recorded. A stream most of whose tasks started
    while a kernel of another stream still had blocks to place is exempt.
    """
    holds = _find_holds(program, start_ns, end_ns, rule)
    ready_ns = ready_ns_of(program, start_ns, end_ns)[holds.task]
    free_ns = start_ns[holds.source] + holds.lag_ns
    is_telling = free_ns - ready_ns > _TELLING_WAIT_NS
    waited_ratio = (start_ns[holds.task] - start_ns[holds.source]) / np.maximum(holds.lag_ns, 1)
    lanes = program.task_lanes()
    exempt = np.zeros(program.task_count, dtype=bool)
    for lane in range(len(program.lanes)):
        ratios = waited_ratio[is_telling & (lanes[holds.task] == lane)]
        if len(ratios) >= _TELLING_COUNT and (ratios < _HELD_RATIO).mean() > _EXEMPT_RATIO:
            exempt |= lanes == lane
    return exempt


def _with_holds(graph: JobGraph, holds: list[_Holds]) -> JobGraph:
    """Each rank gets a program of its own, because holds differ between ranks."""
    programs = tuple(
        _with_dependencies(graph.program_of(rank), of_rank) for rank, of_rank in enumerate(holds)
    )
    ranks = np.arange(graph.rank_count, dtype=np.int32)
    return replace(graph, programs=programs, rank_program=ranks)


def _with_dependencies(program: Program, holds: _Holds) -> Program:
    if not len(holds.task):
        return program
    counts = np.diff(program.dep_start)
    tasks = np.concatenate([np.repeat(np.arange(program.task_count), counts), holds.task])
    order = np.argsort(tasks, kind="stable")
    added = len(holds.task)
    new_counts = np.bincount(tasks, minlength=program.task_count)
    return replace(
        program,
        dep_start=np.concatenate([[0], np.cumsum(new_counts)]).astype(np.int32),
        dep_task=np.concatenate([program.dep_task, holds.source])[order].astype(np.int32),
        dep_anchor=np.concatenate(
            [program.dep_anchor, np.full(added, int(Anchor.START), dtype=np.uint8)]
        )[order],
        dep_distance=np.concatenate([program.dep_distance, np.zeros(added, dtype=np.uint8)])[order],
        dep_lag_ns=np.concatenate([program.dep_lag_ns, holds.lag_ns])[order],
    )


def _find_holds(program: Program, start_ns: Int64s, end_ns: Int64s, rule: HoldRule) -> _Holds:
    """Tasks that were ready while a kernel of another stream still had blocks to place."""
    ready_ns = ready_ns_of(program, start_ns, end_ns)
    lanes = program.task_lanes()
    is_device = np.array([lane.kind.is_device for lane in program.lanes], dtype=bool)[lanes]
    held_ns = ((end_ns - start_ns) * rule.ratio).astype(np.int64)
    can_be_held = is_device & rule.can_be_held & (end_ns > start_ns)
    tasks, sources = [], []
    for lane in np.unique(lanes[is_device & (held_ns > 0)]).tolist():
        holders = np.flatnonzero((lanes == lane) & (held_ns > 0))
        others = np.flatnonzero(can_be_held & (lanes != lane))
        place = np.searchsorted(start_ns[holders], ready_ns[others], side="right") - 1
        # Of two that could start in the same nanosecond the one stored first goes first.
        first = holders[np.maximum(place, 0)]
        is_tied = (place >= 0) & (start_ns[first] == ready_ns[others]) & (first > others)
        place = place - is_tied
        holder = holders[np.maximum(place, 0)]
        is_held = (place >= 0) & (ready_ns[others] < start_ns[holder] + held_ns[holder])
        tasks.append(others[is_held])
        sources.append(holder[is_held])
    task = np.concatenate(tasks) if tasks else np.empty(0, dtype=np.int64)
    source = np.concatenate(sources) if sources else np.empty(0, dtype=np.int64)
    return _Holds(task.astype(np.int64), source.astype(np.int64), held_ns[source])


def ready_ns_of(program: Program, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """When each task could have started if no kernel of another stream had held it back."""
    ready_ns = np.zeros(program.task_count, dtype=np.int64)
    ready_ns[1:] = end_ns[:-1]
    ready_ns[program.lane_start[:-1][program.lane_start[:-1] < program.task_count]] = 0
    tasks = np.repeat(np.arange(program.task_count), np.diff(program.dep_start))
    moments = np.where(
        program.dep_anchor == int(Anchor.START),
        start_ns[program.dep_task],
        end_ns[program.dep_task],
    )
    now = program.dep_distance == 0
    np.maximum.at(ready_ns, tasks[now], (moments + program.dep_lag_ns)[now])
    return ready_ns
