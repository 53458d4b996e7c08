"""Questions that several tests put to a job."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.graph.ops import Communication, Op
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import Workload, build_workload
from perfmodel.workloads.jobs import apply_stack_defaults
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.shapes import (
    layer_shape,
    stage_expert_parameters,
    stage_parameters,
)
from perfmodel.workloads.transformer.spec import ModelSection


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


def parameter_count(model: ModelSection) -> int:
    """Parameters of the whole model."""
    whole = Layout(tp=1, pp=1, dp=1, micro_batch=1, micro_batches=1)
    return stage_parameters(model, whole, stage=0) + stage_expert_parameters(model, whole, stage=0)


def active_parameter_count(model: ModelSection) -> int:
    """Parameters that one token uses; a table that is only looked up is left out."""
    count = parameter_count(model)
    if not model.tied_embeddings:
        count -= model.vocab * model.hidden
    if not model.has_experts:
        return count
    shape = layer_shape(model, tp=1, is_expert=True)
    idle = sum(shape.expert_tensors) * (model.experts - model.top_k) // model.experts
    return count - (model.layers - model.dense_layers) * idle
