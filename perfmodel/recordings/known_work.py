"""Known work: how much of a job's device time says what was done in it.

Time is what the graph holds: waiting inside collectives is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.recordings.collective_calls import find_collective_calls
from perfmodel.recordings.operator_calls import link_rows
from perfmodel.recordings.rank_view import view_rank
from perfmodel.recordings.task_work import WorkReader
from traces.job_trace import JobTrace


@dataclass(frozen=True, slots=True)
class KnownShare:
    """Device time of all ranks: counted from shapes, estimated from launches, and unknown."""

    counted_ns: int
    estimated_ns: int
    unknown_ns: int

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


def known_share(job: JobGraph) -> KnownShare:
    """How much of the device time of *job* has known work; tasks without durations have all."""
    counted_ns = estimated_ns = unknown_ns = 0
    for program, ranks in zip(job.programs, _ranks_of_programs(job), strict=True):
        is_device = program.is_on_device()
        for op_number, count in zip(
            *np.unique(program.op[is_device], return_counts=True), strict=True
        ):
            op = job.ops[int(op_number)]
            if not isinstance(op, Fixed):
                continue
            length_ns = op.duration_ns * int(count) * ranks
            if op.work is None:
                unknown_ns += length_ns
            elif op.is_estimated:
                estimated_ns += length_ns
            else:
                counted_ns += length_ns
    return KnownShare(counted_ns, estimated_ns, unknown_ns)


def _ranks_of_programs(job: JobGraph) -> list[int]:
    return [int((job.rank_program == number).sum()) for number in range(len(job.programs))]


def known_share_of_trace(traces: JobTrace) -> KnownShare:
    """The same of recordings that are not imported; collectives count as long as they took."""
    counted_ns = estimated_ns = unknown_ns = 0
    executed = {trace.rank: trace for trace in traces.executed}
    for trace in traces.ranks:
        view = view_rank(trace)
        rows = link_rows(view, executed.get(trace.rank))
        reader = WorkReader(view, rows)
        sized = {call.task for call in find_collective_calls(view, rows) if call.collective}
        lengths = (view.device.end_ns - view.device.start_ns).tolist()
        for task, length_ns in enumerate(lengths):
            found = reader.found(task)
            if task in sized or (found is not None and not found.is_estimated):
                counted_ns += length_ns
            elif found is not None:
                estimated_ns += length_ns
            else:
                unknown_ns += length_ns
    return KnownShare(counted_ns, estimated_ns, unknown_ns)
