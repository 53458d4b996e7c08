"""One isolated iteration replayed, and what every stream of every rank did in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.costs.pricing import price_job
from perfmodel.engine.history import History
from perfmodel.execution import Executor
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Attention, Communication, Copy, EmbeddingOp, Gemm, MemoryBound
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster

_PARTS = {
    Gemm: "gemm", Attention: "gemm", EmbeddingOp: "lookup", MemoryBound: "memory", Copy: "memory",
    Communication: "communication",
}  # fmt: skip
STREAMS = {LaneKind.COMPUTE: "compute", LaneKind.COMMUNICATION: "comm."}


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """What one stream of one rank spent its time on, in milliseconds."""

    rank: int
    stream: str
    part_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Iteration:
    """An isolated iteration; *naive_ms* is its longest stream without gaps or waits."""

    time_ms: float
    naive_ms: float
    streams: tuple[StreamTimes, ...]


def replay_iteration(
    job: JobGraph, cluster: Cluster, stack: SoftwareStack, executor: Executor
) -> Iteration:
    """Price and replay *job*; waiting inside a collective counts as a trace would show it."""
    priced = price_job(job, cluster=cluster, stack=stack)
    answer = executor.replay(job, priced.durations, 1)
    history = History(job, priced.durations, answer)
    end_ns = int(answer.iteration_end_ns[0, 0])
    streams, naive_ns = [], 0
    for rank in range(job.rank_count):
        program = job.program_of(rank)
        lanes, rows = program.task_lanes(), priced.durations.of_rank(job, rank)[:, 0]
        spans = history.end_ns(0, rank) - history.ready_ns(0, rank)
        parts = np.array([_PARTS.get(type(job.ops[op]), "other") for op in program.op])
        for number, lane in enumerate(program.lanes):
            if lane.kind not in STREAMS:
                continue
            mine = lanes == number
            naive_ns = max(naive_ns, int(rows[mine].sum()))
            times = {
                str(part): float(spans[mine & (parts == part)].sum()) / 1e6
                for part in np.unique(parts[mine])
            }
            times["idle"] = max(0.0, end_ns / 1e6 - sum(times.values()))
            streams.append(StreamTimes(rank, STREAMS[lane.kind], times))
    return Iteration(end_ns / 1e6, naive_ns / 1e6, tuple(streams))
