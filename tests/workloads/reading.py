"""Questions that several tests put to a job."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.job import JobGraph
from perfmodel.graph.memory import RankMemory
from perfmodel.graph.ops import Communication, Op
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import Workload, build_workload
from perfmodel.workloads.unstated import apply_stack_defaults


def memory_of(workload: Workload, **where: int) -> tuple[RankMemory, ...]:
    """The peak memory of the ranks of *workload* under the stack that it names."""
    stack = load_stack(workload.stack)
    filled = apply_stack_defaults(workload, stack)
    return build_workload(filled, stack=stack, **where).memory_of_rank


def iter_ops(job: JobGraph, rank: int = 0) -> Iterator[tuple[str, Op]]:
    """Label and op of every task of *rank*, lane after lane."""
    for task in range(job.program_of(rank).task_count):
        yield job.label_of(rank, task), job.op_of(rank, task)


def collectives_of(
    job: JobGraph, kind: CollectiveKind, prefix: str, rank: int = 0
) -> list[Collective]:
    """Collectives of *kind* whose label starts with *prefix*."""
    return [
        op.collective
        for label, op in iter_ops(job, rank)
        if isinstance(op, Communication) and op.collective.kind is kind and label.startswith(prefix)
    ]
