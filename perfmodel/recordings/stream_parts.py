"""Stream parts: what every stream of every rank spent its time on.

The parts of the paper's figure: lookup, GEMM, memory, communication, other and
idle. They add up to the window, which is the same for all streams of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from perfmodel.recordings.rank_view import Int64s, RankView, is_communication, view_rank
from traces.job_trace import JobTrace


class Part(Enum):
    """What a device task is; the value is the word used in reports."""

    LOOKUP = "lookup"
    GEMM = "gemm"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    OTHER = "other"
    IDLE = "idle"


# The first word that is in the name of a kernel decides.
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
    """What the device task *name* is."""
    if is_communication(name):
        return Part.COMMUNICATION
    word = name.lower()
    for part, words in _WORDS:
        if any(piece in word for piece in words):
            return part
    return Part.OTHER


def split_streams(traces: JobTrace) -> tuple[StreamParts, ...]:
    """The parts of every stream of every rank of *traces*."""
    return tuple(part for trace in traces.ranks for part in _of_rank(view_rank(trace)))


def _of_rank(view: RankView) -> Sequence[StreamParts]:
    if not len(view.device):
        return ()
    part_of_name = [part_of(name) for name in view.trace.names]
    parts = [part_of_name[int(view.trace.columns.name[row])] for row in view.device.row]
    window_ns = int(view.device.end_ns.max() - view.device.start_ns.min())
    found = []
    for stream in np.unique(view.device.stream).tolist():
        tasks = np.flatnonzero(view.device.stream == stream)
        spent = _spent(view, tasks)
        totals = dict.fromkeys(Part, 0)
        for task, spent_ns in zip(tasks.tolist(), spent.tolist(), strict=True):
            totals[parts[task]] += spent_ns
        totals[Part.IDLE] = window_ns - int(spent.sum())
        found.append(StreamParts(view.trace.rank, stream & 0xFFFFFFFF, len(tasks), totals))
    return found


def _spent(view: RankView, tasks: Int64s) -> Int64s:
    """Time of each task that no earlier one of the stream covers: stamps are rounded."""
    start_ns, end_ns = view.device.start_ns[tasks], view.device.end_ns[tasks]
    reached_ns = np.maximum.accumulate(end_ns)
    from_ns = start_ns.copy()
    from_ns[1:] = np.maximum(start_ns[1:], reached_ns[:-1])
    spent: Int64s = np.maximum(end_ns - from_ns, 0)
    return spent
