"""Steady job: the warm steps of a recording as one iteration that repeats.

A recording shows a few steps after another state: the host led when the window opened, and loses
its lead while it is profiled. What a change is worth shows only once the job has settled, so the
last warm steps are cut out and follow themselves. All ranks are cut where they launch the same
work. What a task waited for before the cut, it waits for at the end of the previous iteration.

A stream holds 1,024 launches that have not begun; a call that launches one more waits. A recording
without two ends of steps inside its window is not cut: its time is its span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.reasons import Window
from perfmodel.extensions.recordings.recorded_job import (
    RecordedJob,
    rank_parts,
    with_programs,
)
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import COLUMN_TYPES, PLAIN, Anchor, Int64s, Program, offsets

QUEUE = 1_024
_MOST_DISTANCE = 8
"""The queue is not modelled where it holds more iterations."""
_GONE = -1
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SteadyJob:
    """A *graph* of so many *steps*, whose origins number the tasks of the recording.

    If it *repeats*, its period is theirs, otherwise its span.
    """

    graph: JobGraph
    steps: int
    repeats: bool


def with_numbers(graph: JobGraph) -> JobGraph:
    """*graph* with a program per rank, whose origins number its tasks."""
    return with_own_origins(with_programs(graph, (part for part, _ in rank_parts(graph))))


def build_steady(recorded: RecordedJob) -> SteadyJob:
    """The steady job of *recorded* with durations as recorded."""
    graph = with_numbers(recorded.graph)
    cuts = _find_cuts(recorded)
    if cuts is None:
        programs = [_with_queue(program, 0) for program in graph.programs]
        return SteadyJob(with_programs(graph, programs), 1, repeats=False)
    programs = [
        _with_queue(_cut(part, _kept(part, recorded.recorded_end_ns[rows], cut)), _MOST_DISTANCE)
        for (part, rows), cut in zip(rank_parts(graph), cuts, strict=True)
    ]
    cut = with_programs(graph, _matched(graph, programs))
    return SteadyJob(cut, len(recorded.step_ends) - 1, repeats=True)


def origins_by_row(graph: JobGraph) -> NDArray[np.int32]:
    """The origin of every task."""
    return np.concatenate([program.origin for program, _ in rank_parts(graph)])


def longest_span(
    graph: JobGraph, window_starts: Int64s, start_ns: Int64s, end_ns: Int64s
) -> Window:
    """The longest pass of a rank, from its first task but for *window_starts* to its last."""
    is_task = ~np.isin(origins_by_row(graph), window_starts)
    spans = []
    for _, part in rank_parts(graph):
        rows = part.start + np.flatnonzero(is_task[part])
        if len(rows):
            spans.append(Window(int(start_ns[rows].min()), int(end_ns[rows].max())))
    return max(spans, key=lambda span: span.to_ns - span.from_ns)


def arriving(graph: JobGraph, earlier_ns: Int64s) -> JobGraph:
    """*graph* where ranks that were not recorded arrive earlier, by the origin of device tasks."""
    programs = []
    for program in graph.programs:
        earlier = np.where(program.is_on_device(), earlier_ns[program.origin], 0)
        lag_ns = np.maximum(program.dep_lag_ns - earlier[program.dep_owners()], 0)
        programs.append(replace(program, dep_lag_ns=lag_ns))
    return with_programs(graph, programs)


def with_lengths(graph: JobGraph, lengths_ns: NDArray[np.float64]) -> JobGraph:
    """*graph* whose tasks take *lengths_ns*, by row."""
    ops, numbers = list(graph.ops), dict[tuple[int, int], int]()
    own_ns = np.array([op.duration_ns for op in graph.ops if isinstance(op, Fixed)])
    programs = []
    for program, rows in rank_parts(graph):
        column, now_ns = program.op.copy(), lengths_ns[rows].astype(np.int64)
        for task in np.flatnonzero(now_ns != own_ns[column]).tolist():
            key = int(column[task]), int(now_ns[task])
            op = graph.ops[key[0]]
            if key not in numbers and isinstance(op, Fixed):
                numbers[key] = len(ops)
                ops.append(replace(op, duration_ns=key[1]))
            column[task] = numbers[key]
        programs.append(replace(program, op=column))
    return with_programs(replace(graph, ops=tuple(ops)), programs)


def launch_of(program: Program, task: int) -> int | None:
    """The host task that launched the device *task*."""
    is_device = program.is_on_device()
    deps = program.dep_task[slice(*program.dep_start[task : task + 2])]
    launches = [int(dep) for dep in deps if not is_device[dep] and dep]
    return max(launches, default=None)


def _find_cuts(recorded: RecordedJob) -> list[tuple[int, int]] | None:
    """By rank the host tasks after which the steps begin and with which they end."""
    if len(recorded.step_ends) < 2:
        return None
    graph, firsts = recorded.graph, recorded.graph.rank_rows()
    cuts = []
    for rank in range(graph.rank_count):
        launches = []
        for rows in (recorded.step_ends[0], recorded.step_ends[-1]):
            own = rows[(rows >= firsts[rank]) & (rows < firsts[rank + 1])] - firsts[rank]
            found = [launch_of(graph.program_of(rank), int(task)) for task in own]
            launches.append(max((one for one in found if one is not None), default=None))
        first, last = launches
        if first is None or last is None or first >= last:
            return None
        cuts.append((first, last))
    return cuts


def _kept(program: Program, end_ns: Int64s, cut: tuple[int, int]) -> Mask:
    """The tasks between the host tasks of *cut*: by time on the host, by launch on the device."""
    lanes, is_device = program.task_lanes(), program.is_on_device()
    kept: Mask = ~is_device & (end_ns > end_ns[cut[0]]) & (end_ns <= end_ns[cut[1]])
    kept[0] = False
    for task, is_inside in zip(cut, (False, True), strict=True):
        # Tasks without a length may end at the moment of the cut.
        same = (lanes == lanes[task]) & (end_ns == end_ns[task])
        places = np.arange(len(kept))
        kept[same] = (places[same] <= task) if is_inside else (places[same] > task)
    owners = program.dep_owners()
    is_launch = is_device[owners] & ~is_device[program.dep_task] & (program.dep_task > 0)
    launched = np.zeros(len(kept), dtype=np.int8)
    launched[owners[is_launch]] = np.where(kept[program.dep_task[is_launch]], 1, -1)
    for first, stop in zip(
        program.lane_start[:-1].tolist(), program.lane_start[1:].tolist(), strict=True
    ):
        if first < stop and is_device[first]:
            # What no call launched goes with the task ahead of it.
            known = np.where(launched[first:stop] != 0, np.arange(stop - first), -1)
            latest = np.maximum.accumulate(known)
            kept[first:stop] = (latest >= 0) & (launched[first:stop][latest] > 0)
    return kept


def _cut(program: Program, kept: Mask) -> Program:
    """*program* with only the *kept* tasks, which repeat."""
    number = np.where(kept, np.cumsum(kept) - 1, _GONE)
    lanes, counts = program.task_lanes(), np.zeros(len(program.lanes), dtype=np.int64)
    np.add.at(counts, lanes[kept], 1)
    places = np.arange(len(kept))
    first, last = np.full((2, len(program.lanes)), _GONE, dtype=np.int64)
    first[lanes[kept][::-1]] = places[kept][::-1]
    last[lanes[kept]] = places[kept]
    owners, sources = program.dep_owners(), program.dep_task.astype(np.int64)
    lane = lanes[sources]
    # What is as far before the first task of its lane as another is before its end.
    earlier = last[lane] + 1 - (first[lane] - sources)
    is_earlier = (number[sources] == _GONE) & (first[lane] > sources) & (earlier >= first[lane])
    earlier = np.where(is_earlier, earlier, 0)
    is_earlier &= number[earlier] != _GONE
    is_alike = program.label[sources] == program.label[earlier]
    is_earlier &= is_alike | ~program.is_on_device()[sources]
    sources = np.where(is_earlier, earlier, sources)
    chosen = kept[owners] & (number[sources] != _GONE)
    per_task = np.bincount(number[owners[chosen]], minlength=int(kept.sum()))
    return replace(
        program,
        lane_start=offsets(counts).astype(np.int32),
        **{
            name: getattr(program, name)[kept]
            for name in ("op", "label", "origin", "slot", "sequence", "role")
        },
        dep_start=offsets(per_task).astype(np.int32),
        dep_task=number[sources[chosen]].astype(np.int32),
        dep_anchor=program.dep_anchor[chosen],
        dep_distance=(program.dep_distance + is_earlier)[chosen].astype(np.uint8),
        dep_lag_ns=program.dep_lag_ns[chosen],
    )


def _matched(graph: JobGraph, programs: Sequence[Program]) -> list[Program]:
    """*programs* whose collectives meet only where every member has kept them, numbered anew."""
    met: dict[int, list[set[int]]] = {}
    for rank, program in enumerate(programs):
        for slot in np.unique(program.slot[program.slot != PLAIN]).tolist():
            own = set(program.sequence[program.slot == slot].tolist())
            met.setdefault(int(graph.rank_group[rank, slot]), []).append(own)
    common = {
        group: sorted(set.intersection(*of_members))
        if len(of_members) == len(graph.groups[group].ranks)
        else []
        for group, of_members in met.items()
    }
    matched = []
    for rank, program in enumerate(programs):
        slot, sequence = program.slot.copy(), program.sequence.copy()
        for one in np.unique(slot[slot != PLAIN]).tolist():
            numbers = np.array(common[int(graph.rank_group[rank, one])], dtype=np.int64)
            members = np.flatnonzero(program.slot == one)
            sequence[members] = np.searchsorted(numbers, program.sequence[members])
            lone = members[~np.isin(program.sequence[members], numbers)]
            slot[lone], sequence[lone] = PLAIN, PLAIN
        matched.append(replace(program, slot=slot, sequence=sequence))
    return matched


def _with_queue(program: Program, most_distance: int) -> Program:
    """*program* whose launches wait while their stream holds as many that have not begun."""
    is_device, owners = program.is_on_device(), program.dep_owners()
    is_launch = is_device[owners] & ~is_device[program.dep_task] & (program.dep_distance == 0)
    is_launch &= program.dep_task > 0 if most_distance == 0 else True
    launch = np.full(program.task_count, _GONE, dtype=np.int64)
    launch[owners[is_launch]] = program.dep_task[is_launch]
    added: list[tuple[Int64s, Int64s, Int64s]] = []
    for first, stop in zip(
        program.lane_start[:-1].tolist(), program.lane_start[1:].tolist(), strict=True
    ):
        tasks = np.arange(first, stop)[launch[first:stop] != _GONE]
        if not len(tasks) or not is_device[first]:
            continue
        place = np.arange(len(tasks)) - QUEUE
        distance = -(place // len(tasks))
        chosen = distance <= most_distance
        added.append((launch[tasks][chosen], tasks[place % len(tasks)][chosen], distance[chosen]))
    if not added:
        return program
    waits, sources, distance = (np.concatenate(column) for column in zip(*added, strict=True))
    count = len(waits)
    every = np.concatenate([owners, waits])
    order = np.argsort(every, kind="stable")
    added_columns = {
        "dep_task": sources,
        "dep_anchor": np.full(count, int(Anchor.START)),
        "dep_distance": distance,
        "dep_lag_ns": np.zeros(count),
    }
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(program, name), new])[order].astype(COLUMN_TYPES[name])
        for name, new in added_columns.items()
    }
    dep_start = offsets(np.bincount(every, minlength=program.task_count)).astype(np.int32)
    return replace(program, dep_start=dep_start, **columns)
