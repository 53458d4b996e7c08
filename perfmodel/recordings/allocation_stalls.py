"""Allocation stalls: what a step spent allocating that other steps did not.

The allocator of a framework asks the driver for memory in its first steps and
hands it out again later. A step that asks more often than the others do is
not a steady one; without the surplus it should be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Program
from perfmodel.recordings.calls import CallKind, kind_of_call
from perfmodel.recordings.host_chain import StepKind
from perfmodel.recordings.recorded_job import Int64s, RecordedJob
from perfmodel.recordings.self_replay import step_moments_ns


@dataclass(frozen=True, slots=True)
class WithoutStalls:
    """The job without its allocation stalls, and how many calls were taken out."""

    job: RecordedJob
    removed_calls: int


def remove_allocation_stalls(job: RecordedJob) -> WithoutStalls:
    """Take out of every step the allocation calls beyond what a typical step makes.

    Assumes that the first calls of a step are those that every step makes, and
    that nothing else waits for the calls taken out.
    """
    ops = (*job.graph.ops, Fixed(StepKind.ALLOCATION.value, 0))
    programs, removed_calls = [], 0
    for rank in range(job.graph.rank_count):
        surplus = _surplus(job, rank)
        removed_calls += int(surplus.sum())
        programs.append(_without(job.graph.program_of(rank), surplus, len(ops) - 1))
    graph = replace(
        job.graph,
        ops=ops,
        programs=tuple(programs),
        rank_program=np.arange(job.graph.rank_count, dtype=np.int32),
    )
    return WithoutStalls(replace(job, graph=graph), removed_calls)


def _surplus(job: RecordedJob, rank: int) -> NDArray[np.bool_]:
    """Which tasks of *rank* are allocation calls that a typical step does not make."""
    program, rows = job.graph.program_of(rank), job.rank_rows()
    start_ns = job.recorded_start_ns[rows[rank] : rows[rank + 1]]
    moments = step_moments_ns(job, job.recorded_end_ns)
    step = np.searchsorted(np.array(moments[:-1] or [0]), start_ns)
    surplus = np.zeros(program.task_count, dtype=bool)
    for kind in (CallKind.ALLOCATE, CallKind.FREE):
        tasks = _calls_of_kind(job, program, kind)
        tasks = tasks[np.argsort(start_ns[tasks], kind="stable")]
        counts = np.bincount(step[tasks], minlength=max(len(moments), 1))
        typical = int(np.median(counts))
        for number in range(len(counts)):
            surplus[tasks[step[tasks] == number][typical:]] = True
    return surplus


def _calls_of_kind(job: RecordedJob, program: Program, kind: CallKind) -> Int64s:
    names = [kind_of_call(label) is kind for label in job.graph.labels]
    is_allocation = [
        isinstance(op, Fixed) and op.name == StepKind.ALLOCATION.value for op in job.graph.ops
    ]
    chosen = np.array(names, dtype=bool)[program.label] & np.array(is_allocation)[program.op]
    return np.flatnonzero(chosen)


def _without(program: Program, surplus: NDArray[np.bool_], empty_op: int) -> Program:
    """The *surplus* tasks take no time and wait for no device work."""
    lanes = program.task_lanes()
    is_device = np.array([lane.kind.is_device for lane in program.lanes], dtype=bool)[lanes]
    counts = np.diff(program.dep_start)
    tasks = np.repeat(np.arange(program.task_count), counts)
    keep = ~(surplus[tasks] & is_device[program.dep_task])
    kept_counts = np.bincount(tasks[keep], minlength=program.task_count)
    return replace(
        program,
        op=np.where(surplus, np.int32(empty_op), program.op).astype(np.int32),
        dep_start=np.concatenate([[0], np.cumsum(kept_counts)]).astype(np.int32),
        dep_task=program.dep_task[keep],
        dep_anchor=program.dep_anchor[keep],
        dep_distance=program.dep_distance[keep],
        dep_lag_ns=program.dep_lag_ns[keep],
    )
