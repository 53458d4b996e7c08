"""Frame: the part of a DLRM iteration that is the same for all sharding plans.

A plan changes the duration of lookups, exchanges and a few small kernels, and which ranks hold
no piece. Both kinds of rank are condensed to the tasks that matter. They use the same slots;
some slots of an empty rank stay empty.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.errors import GraphError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.condensed import FIXED, CondensedJob, RankKind, condense_job
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import PLAIN, Int32s, Int64s, Program, Role

HOLDER, EMPTY = 0, 1
"""The two kinds of rank: with pieces and without."""

CHANGING = (
    "embedding/lookup forward",
    "embedding/update backward",
    "embedding/pooled all_to_all forward",
    "embedding/gradients all_to_all backward",
    "embedding/indices all_to_all",
    "embedding/cast forward",
    "embedding/cast backward",
    "embedding/partial sums forward",
)
"""Operators whose durations depend on the plan: the columns of a plan's durations."""


def build_frame(priced: PricedJob, durations_ns: Int64s) -> CondensedJob:
    """Condense the two programs of a variant job; *durations_ns* are rows x vectors."""
    job = priced.job
    _check_groups(job)
    kinds = []
    for rank in (0, job.rank_count - 1):
        program, rows = job.program_of(rank), durations_ns[priced.rows_of_rank(rank)]
        kinds.append(RankKind(program, rows, _changing(job, program)))
    return condense_job(kinds)


def _check_groups(job: JobGraph) -> None:
    for group in job.groups:
        if len(group.ranks) != job.rank_count:
            raise GraphError(f"group {group.name!r}: plans are compared on groups of all ranks.")
    for program in job.programs:
        if (program.role[program.slot != PLAIN] != Role.BOTH).any():
            raise GraphError("plans are compared on collectives in which all ranks wait.")


def _changing(job: JobGraph, program: Program) -> Int32s:
    """The column of a plan's durations for every task on a device lane, or FIXED."""
    column = {operator: place for place, operator in enumerate(CHANGING)}
    of_origin = np.array(
        [column.get(origin.operator, FIXED) for origin in job.origins], dtype=np.int32
    )
    marks = np.where(program.is_on_device(), of_origin[program.origin], FIXED)
    return marks.astype(np.int32)
