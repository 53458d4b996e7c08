"""Kinds: what sort of work a task is, in words for people."""

from __future__ import annotations

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Copy,
    EmbeddingOp,
    Fixed,
    Gemm,
    MemoryBound,
    Op,
)

_WORDS: dict[type[object], str] = {
    Gemm: "matrix products",
    Convolution: "convolutions",
    Attention: "attention",
    MemoryBound: "memory-bound kernels",
    EmbeddingOp: "embedding lookups and updates",
    Copy: "copies",
}


def name_kind(job: JobGraph, rank: int, task: int) -> str:
    """The kind of *task* of *rank*: by its op, or by its lane where the op does not tell."""
    op: Op | None = job.op_of(rank, task)
    if isinstance(op, Fixed):
        op = op.work
    if isinstance(op, Communication):
        return op.collective.kind.name.lower().replace("_", "-")
    if type(op) in _WORDS:
        return _WORDS[type(op)]
    program = job.program_of(rank)
    lane = program.lanes[int(program.lane_start.searchsorted(task, side="right")) - 1]
    return f"{lane.kind.value} work"
