"""Trace stats: what every stream spent its time on, and how much of that time has known work.

The parts of a stream are those of the paper's figure: lookup, GEMM, memory, communication, other
and idle. They add up to the window, which is the same for all streams of a rank. Known work is a
share of device time, in which waiting inside matched collectives of a job does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from perfmodel.base.units import NS_PER_MS
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.recordings.collective_calls import find_collective_calls
from perfmodel.recordings.operator_calls import link_rows
from perfmodel.recordings.rank_view import RankView, is_communication, view_rank
from perfmodel.recordings.recorded_job import SCHEMA_VERSION
from perfmodel.recordings.task_work import WorkReader
from traces.job_trace import JobTrace


class Part(Enum):
    """The kind of a device task; the value is the word used in reports."""

    LOOKUP = "lookup"
    GEMM = "gemm"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    OTHER = "other"
    IDLE = "idle"


# The first word found in the name of a kernel decides.
_WORDS = (
    (Part.LOOKUP, ("embedding", "fbgemm_gpu", "indexing_backward", "index_select", "gather")),
    (Part.GEMM, ("gemm", "cijk_", "xmma", "nvjet", "cutlass", "conv", "gemv")),
    (
        Part.MEMORY,
        ("elementwise", "reduce", "memcpy", "memset", "copy", "cat", "norm", "softmax", "fill",
         "transpose", "scan", "sort", "multi_tensor", "adam", "pool", "dropout", "foreach",
         "triton"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StreamParts:
    """How long one stream of one rank spent on each part, in nanoseconds."""

    rank: int
    stream: int
    tasks: int
    parts_ns: dict[Part, int]

    @property
    def window_ns(self) -> int:
        """The whole window."""
        return sum(self.parts_ns.values())


def part_of(name: str) -> Part:
    """The part that device task *name* belongs to."""
    if is_communication(name):
        return Part.COMMUNICATION
    word = name.lower()
    parts = (part for part, words in _WORDS if any(piece in word for piece in words))
    return next(parts, Part.OTHER)


def split_streams(traces: JobTrace) -> tuple[StreamParts, ...]:
    """The parts of every stream of every rank of *traces*."""
    views = [view_rank(trace) for trace in traces.ranks]
    return tuple(
        _parts_of(view, stream)
        for view in views
        for stream in np.unique(view.device.stream).tolist()
    )


def _parts_of(view: RankView, stream: int) -> StreamParts:
    device, tasks = view.device, np.flatnonzero(view.device.stream == stream)
    start_ns, end_ns = device.start_ns[tasks].copy(), device.end_ns[tasks]
    # Stamps are rounded: the time that an earlier task of the stream covers does not count.
    np.maximum(start_ns[1:], np.maximum.accumulate(end_ns)[:-1], out=start_ns[1:])
    spent_ns = np.maximum(end_ns - start_ns, 0).tolist()
    totals = dict.fromkeys(Part, 0)
    for task, length_ns in zip(tasks.tolist(), spent_ns, strict=True):
        totals[part_of(view.task_name(task))] += length_ns
    window_ns = int(device.end_ns.max() - device.start_ns.min())
    totals[Part.IDLE] = window_ns - sum(spent_ns)
    return StreamParts(view.trace.rank, stream & 0xFFFFFFFF, len(tasks), totals)


@dataclass(frozen=True, slots=True)
class KnownShare:
    """Device time of all ranks: counted from shapes, estimated from launches, and unknown."""

    counted_ns: int
    estimated_ns: int
    unknown_ns: int

    @classmethod
    def of(cls, tasks: Iterable[tuple[int, bool | None]]) -> KnownShare:
        """The share of *tasks*: how long each took, and if its work is estimated, None: unknown."""
        totals: dict[bool | None, int] = {False: 0, True: 0, None: 0}
        for length_ns, is_estimated in tasks:
            totals[is_estimated] += length_ns
        return cls(totals[False], totals[True], totals[None])

    @property
    def total_ns(self) -> int:
        """All device time."""
        return self.counted_ns + self.estimated_ns + self.unknown_ns

    @property
    def counted_ratio(self) -> float:
        """Share whose work was counted from shapes, sizes or metadata."""
        return self.counted_ns / self.total_ns if self.total_ns else 0.0

    @property
    def known_ratio(self) -> float:
        """Share whose work is counted or estimated."""
        return (self.counted_ns + self.estimated_ns) / self.total_ns if self.total_ns else 0.0

    def document(self) -> dict[str, Any]:
        """The share as plain values for JSON."""
        return {
            "device_time_ms": self.total_ns / NS_PER_MS,
            "counted_pct": round(100 * self.counted_ratio, 2),
            "estimated_pct": round(100 * (self.known_ratio - self.counted_ratio), 2),
            "known_pct": round(100 * self.known_ratio, 2),
        }


def known_share(job: JobGraph) -> KnownShare:
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
    return KnownShare.of(found)


def known_share_of_trace(traces: JobTrace) -> KnownShare:
    """The same for recordings that are not imported; collectives count with all their time."""
    tasks: list[tuple[int, bool | None]] = []
    executed = {trace.rank: trace for trace in traces.executed}
    for trace in traces.ranks:
        view = view_rank(trace)
        rows = link_rows(view, executed.get(trace.rank))
        reader = WorkReader(view, rows)
        sized = {call.task for call in find_collective_calls(view, rows) if call.collective}
        for task in range(len(view.device)):
            is_known = task in reader.works or task in sized
            is_estimated = task in reader.estimated if is_known else None
            tasks.append((view.device.length_ns(task), is_estimated))
    return KnownShare.of(tasks)


def stats_document(traces: JobTrace) -> dict[str, Any]:
    """The stats of one recording as plain values for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "trace_stats",
        "job": traces.name,
        "known_work": known_share_of_trace(traces).document(),
        "streams": [
            {
                "rank": stream.rank,
                "stream": stream.stream,
                "tasks": stream.tasks,
                "window_ms": stream.window_ns / NS_PER_MS,
                "parts_ms": {
                    part.value: length_ns / NS_PER_MS for part, length_ns in stream.parts_ns.items()
                },
            }
            for stream in split_streams(traces)
        ],
    }
