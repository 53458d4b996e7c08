"""Questions that several tests put to a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collectives.collective import Collective, CollectiveKind
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobGraph, RankMemory
from perfmodel.graph.ops import Communication, Op
from perfmodel.stacks.capabilities import Fusion
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import Workload, build_job, build_workload, parse_workload
from perfmodel.workloads.jobs import apply_stack_defaults
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.model import ModelSection, counted_blocks
from perfmodel.workloads.transformer.shapes import (
    layer_shape,
    stage_expert_parameters,
    stage_parameters,
)

STACK = replace(
    load_stack("pytorch_fused"),
    fusions=frozenset({Fusion.NORM, Fusion.SWIGLU, Fusion.ROTARY, Fusion.CROSS_ENTROPY}),
)
"""Only these chains are fused."""


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
    for block, layers in counted_blocks(model):
        held = sum(layer_shape(block, tp=1).expert_tensors)
        count -= layers * held * (model.experts - model.top_k) // model.experts
    return count


def tiny(*, parallel=None, training=None, batch=4, **model):
    """A Transformer of four layers that can be counted on paper."""
    return parse_workload(
        {
            "name": "tiny", "family": "transformer", "description": "tiny", "source": "made up",
            "batch": batch, "sequence_length": 16,
            "model": {
                "layers": 4, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": 10,
                "gated_ffn": True, "positions": "rotary", "bias": False, "norm": "rms_norm",
                "tied_embeddings": False, **model,
            },
            "parallel": {"micro_batch": 2, "tp": 1, "pp": 1, **(parallel or {})},
            "training": training or {},
        },
        document="tiny",
    )  # fmt: skip


def job_of(spec, *, ranks=1, ranks_per_host=8):
    """A sound job of *spec* under STACK."""
    job = build_job(spec, rank_count=ranks, ranks_per_host=ranks_per_host, stack=STACK)
    check_job(job)
    return job


def ops_of(job, kind, prefix="", rank=0):
    """Labels and ops of *kind* whose label has *prefix* in it."""
    return [
        (name, op) for name, op in iter_ops(job, rank) if isinstance(op, kind) and prefix in name
    ]


def bytes_of(job, kind, prefix="", rank=0):
    """Bytes of all collectives of *kind* whose label starts with *prefix*."""
    return sum(call.size_bytes for call in collectives_of(job, kind, prefix, rank))
