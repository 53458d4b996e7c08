"""Pinning: every task of a job gets a stated duration and remembers what it does.

What-ifs change durations, so a job made of shapes is priced first. Ranks that
pay different prices for the same program get programs of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.graph.durations import DurationTable, build_shared_durations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Program
from perfmodel.whatif.job_draft import JobDraft
from perfmodel.whatif.machine import Machine
from perfmodel.whatif.selection import duration_of, names_of


def is_pinned(job: JobGraph) -> bool:
    """Whether every task of *job* states its duration."""
    used = {int(op) for program in job.programs for op in np.unique(program.op)}
    return all(isinstance(job.ops[op], Fixed) for op in used)


def pin_job(job: JobGraph, machine: Machine) -> JobGraph:
    """*job* with the durations that its tasks have on *machine*; stated ones stay."""
    priced = price_job(job, cluster=machine.cluster(job.rank_count), stack=machine.load_stack())
    return pin_prices(priced)


def pin_prices(priced: PricedJob) -> JobGraph:
    """The job of *priced* with its prices as stated durations."""
    job, draft = priced.job, JobDraft(priced.job)
    programs: list[Program] = []
    number: dict[tuple[int, int], int] = {}
    rank_program = np.empty_like(job.rank_program)
    for rank in range(job.rank_count):
        key = (int(job.rank_program[rank]), int(priced.durations.rank_offset[rank]))
        if key not in number:
            number[key] = len(programs)
            programs.append(_pin_rank(priced, rank, draft))
        rank_program[rank] = number[key]
    return replace(draft.build(), programs=tuple(programs), rank_program=rank_program)


def stated_durations(job: JobGraph) -> DurationTable:
    """The durations that the tasks of a pinned *job* state."""
    rows = []
    for program in job.programs:
        ops, place = np.unique(program.op, return_inverse=True)
        durations = [duration_of(job.ops[op]) for op in ops.tolist()]
        rows.append(np.array(durations, dtype=np.int64)[place])
    return build_shared_durations(job, rows)


def _pin_rank(priced: PricedJob, rank: int, draft: JobDraft) -> Program:
    job, rows = priced.job, priced.rows_of_rank(rank)
    program = job.program_of(rank)
    values = priced.durations.values_ns[rows, 0].tolist()
    provenance = priced.provenance[rows].tolist()
    # Ops are compared by value, which takes long for big ones: once for each price is enough.
    pinned: dict[tuple[int, int, int], int] = {}
    for key in zip(program.op.tolist(), values, provenance, strict=True):
        if key not in pinned:
            index, duration_ns, known = key
            op = job.ops[index]
            if not isinstance(op, Fixed):
                index = draft.op(Fixed(names_of(op)[0], duration_ns, Provenance(known), op))
            pinned[key] = index
    column = [pinned[key] for key in zip(program.op.tolist(), values, provenance, strict=True)]
    return replace(program, op=np.array(column, dtype=np.int32))
