"""Trace stats: what every stream spent its time on, and how much of that time has known work.

The parts of a stream are those of the paper's figure: lookup, GEMM, memory, communication, other
and idle. They add up to the window, which is the same for all streams of a rank. Known work is a
share of device time, in which waiting inside matched collectives of a job does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.base.units import NS_PER_MS
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel, find_collective_calls
from perfmodel.extensions.recordings.idle_time import describe_idle
from perfmodel.extensions.recordings.operator_calls import link_ranks
from perfmodel.extensions.recordings.operators.calls import OperatorCall
from perfmodel.extensions.recordings.rank_view import RankView, is_communication, view_rank
from perfmodel.extensions.recordings.recorded_job import SCHEMA_VERSION
from perfmodel.extensions.recordings.task_work import UNKNOWN, WorkReader
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from traces.job_trace import JobTrace


class DeviceWork(Enum):
    """The kind of a device task; the value is the word used in reports."""

    LOOKUP = "lookup"
    GEMM = "gemm"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    OTHER = "other"
    IDLE = "idle"


_WORDS = load_yaml(Path(__file__).with_suffix(".yaml"))
"""Parts of kernel names by the value of their `Part`; the first one found decides."""


def part_of(name: str) -> DeviceWork:
    """The part that device task *name* belongs to."""
    if is_communication(name):
        return DeviceWork.COMMUNICATION
    word = name.lower()
    parts = (
        DeviceWork(part) for part, words in _WORDS.items() if any(piece in word for piece in words)
    )
    return next(parts, DeviceWork.OTHER)


def _describe_stream(view: RankView, stream: int) -> dict[str, Any]:
    """How long one stream of one rank spent on each part, as plain values for JSON."""
    device, tasks = view.device, np.flatnonzero(view.device.stream == stream)
    start_ns, end_ns = device.start_ns[tasks].copy(), device.end_ns[tasks]
    # Stamps are rounded: the time that an earlier task of the stream covers does not count.
    np.maximum(start_ns[1:], np.maximum.accumulate(end_ns)[:-1], out=start_ns[1:])
    spent_ns = np.maximum(end_ns - start_ns, 0).tolist()
    totals = dict.fromkeys(DeviceWork, 0)
    for task, length_ns in zip(tasks.tolist(), spent_ns, strict=True):
        totals[part_of(view.task_name(task))] += length_ns
    window_ns = int(device.end_ns.max() - device.start_ns.min())
    totals[DeviceWork.IDLE] = window_ns - sum(spent_ns)
    return {
        "rank": view.trace.rank,
        "stream": stream & 0xFFFFFFFF,
        "tasks": len(tasks),
        "window_ms": sum(totals.values()) / NS_PER_MS,
        "parts_ms": {part.value: length_ns / NS_PER_MS for part, length_ns in totals.items()},
    }


def _describe_share(tasks: Iterable[tuple[int, bool | None]]) -> dict[str, Any]:
    """How much of the time of *tasks* has known work, as plain values for JSON.

    Each task has a duration, and whether its work is estimated, or None if it is unknown.
    """
    totals: dict[bool | None, int] = {False: 0, True: 0, None: 0}
    for length_ns, is_estimated in tasks:
        totals[is_estimated] += length_ns
    total_ns = sum(totals.values())
    counted, known = (
        of_total / total_ns if total_ns else 0.0
        for of_total in (totals[False], totals[False] + totals[True])
    )
    return {
        "device_time_ms": total_ns / NS_PER_MS,
        "counted_pct": round(100 * counted, 2),
        "estimated_pct": round(100 * (known - counted), 2),
        "known_pct": round(100 * known, 2),
    }


def known_share(job: JobGraph) -> dict[str, Any]:
    """How much of the device time of *job* has known work; tasks without durations do not count."""
    found: list[tuple[int, bool | None]] = []
    for number, program in enumerate(job.programs):
        ranks = int((job.rank_program == number).sum())
        ops, counts = np.unique(program.op[program.is_on_device()], return_counts=True)
        for op_number, count in zip(ops.tolist(), counts.tolist(), strict=True):
            op = job.ops[op_number]
            if isinstance(op, Fixed):
                is_estimated = None if op.work is None else op.is_estimated
                found.append((op.duration_ns * count * ranks, is_estimated))
    return _describe_share(found)


def _known_share_of_views(
    views: Sequence[RankView],
    linked: Sequence[dict[int, OperatorCall]],
    calls: Sequence[Sequence[CollectiveKernel]],
) -> dict[str, Any]:
    """The same for recordings that are not imported; collectives count with all their time."""
    tasks: list[tuple[int, bool | None]] = []
    for view, rows, of_rank in zip(views, linked, calls, strict=True):
        reader = WorkReader(view, rows)
        sized = {call.task for call in of_rank if call.collective}
        for task in range(len(view.device)):
            is_known = reader.number[task] != UNKNOWN or task in sized
            is_estimated = bool(reader.is_estimated[task]) if is_known else None
            tasks.append((view.device.length_ns(task), is_estimated))
    return _describe_share(tasks)


def stats_document(traces: JobTrace) -> dict[str, Any]:
    """The stats of one recording as plain values for JSON."""
    views = [view_rank(trace) for trace in traces.ranks]
    linked = link_ranks(traces, views)
    calls = [find_collective_calls(view, rows) for view, rows in zip(views, linked, strict=True)]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_stats",
        "job": traces.name,
        "known_work": _known_share_of_views(views, linked, calls),
        "idle": describe_idle(views, calls),
        "streams": [
            _describe_stream(view, stream)
            for view in views
            for stream in np.unique(view.device.stream).tolist()
        ],
    }
