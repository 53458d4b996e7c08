"""Pinning: every task of a job gets a stated duration and remembers its work.

What-ifs change durations, so a job made of shapes is priced first. Ranks with different prices
for the same program get programs of their own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import CodeColumn
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.extensions.whatif.drafts import JobDraft
from perfmodel.extensions.whatif.patterns import names_of
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph, with_own_origins
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Program
from perfmodel.prediction.saved_jobs import PricingMachine


def pin_job(job: JobGraph, machine: PricingMachine) -> JobGraph:
    """*job* with the durations that its tasks have on *machine*; stated ones stay."""
    priced = price_job(job, cluster=machine.cluster(job.rank_count), stack=machine.load_stack())
    return pin_durations(job, priced.durations, provenance=priced.provenance)


def pin_durations(
    job: JobGraph, durations: DurationTable, *, provenance: CodeColumn | None = None
) -> JobGraph:
    """*job* with *durations* as stated ones, of the given *provenance* or recorded."""
    draft = JobDraft(job)
    if provenance is None:
        provenance = np.full(len(durations.values_ns), Provenance.RECORDED, dtype=np.int8)
    programs: list[Program] = []
    number: dict[tuple[int, int], int] = {}
    rank_program = np.empty_like(job.rank_program)
    for rank in range(job.rank_count):
        program, offset = job.program_of(rank), int(durations.rank_offset[rank])
        key = (int(job.rank_program[rank]), offset)
        if key not in number:
            number[key] = len(programs)
            rows = slice(offset, offset + program.task_count)
            values = durations.values_ns[rows, 0].tolist()
            programs.append(_pin_program(draft, program, values, provenance[rows].tolist()))
        rank_program[rank] = number[key]
    return replace(draft.build(), programs=tuple(programs), rank_program=rank_program)


def pin_prices(priced: PricedJob) -> PricedJob:
    """*priced* with its durations stated in its job, and its prices by the origin of the tasks."""
    pinned = pin_durations(priced.job, priced.durations, provenance=priced.provenance)
    _, first_rank = np.unique(pinned.rank_program, return_index=True)
    rows = [priced.rows_of_rank(int(rank)) for rank in first_rank]
    starts = np.concatenate([[0], np.cumsum([row.stop - row.start for row in rows])])
    chosen = np.concatenate([np.arange(row.start, row.stop) for row in rows])
    job = with_own_origins(pinned)
    return priced.take(chosen, starts[pinned.rank_program], job=job)


def _pin_program(
    draft: JobDraft, program: Program, values_ns: list[int], known: list[int]
) -> Program:
    # Ops are compared by value, which takes long for big ones: once for each price is enough.
    pinned: dict[tuple[int, int, int], int] = {}
    keys = list(zip(program.op.tolist(), values_ns, known, strict=True))
    for key in keys:
        if key not in pinned:
            op, (_, duration_ns, provenance) = draft.ops[key[0]], key
            if not isinstance(op, Fixed):
                op = Fixed(names_of(op)[0], duration_ns, work=op)
            new = replace(op, duration_ns=duration_ns, provenance=Provenance(provenance))
            pinned[key] = draft.op(new)
    return replace(program, op=np.array([pinned[key] for key in keys], dtype=np.int32))
