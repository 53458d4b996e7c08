"""Jobs and memory of a grid of small models, as recorded: every switch at least once.

A job is recorded as its counts, for people, and as a digest of all its columns. Stacks are given
all fusions or none, so that no fitted constant takes part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication
from perfmodel.stacks.capabilities import Fusion
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_workload, load_workload
from tests import recorded
from tests.workloads.reading import tiny

STACKS = {
    "fused": replace(load_stack("pytorch_fused"), fusions=frozenset(Fusion)),
    "plain": replace(load_stack("pytorch_eager"), fusions=frozenset()),
}
EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn": 12, "dense_layers": 1, "shared_experts": 1}
FLASH = {"training": {"attention": "flash"}}
TRANSFORMERS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "learned": (1, {"positions": "learned", "bias": True, "norm": "layer_norm", "max_positions": 16,
                    "tied_embeddings": True, "gated_ffn": False, "dropout": True}),
    "tensor": (4, {"parallel": {"tp": 2, "sequence_parallel": True}}),
    "pipeline": (4, {"parallel": {"tp": 1, "pp": 2}, "batch": 16}),
    "interleaved": (4, {"parallel": {"pp": 2, "interleaving": 2}, "batch": 16}),
    "zero1": (4, {"parallel": {"sharding": "zero1"}, "batch": 16}),
    "zero3": (4, {"parallel": {"sharding": "zero3"}, "batch": 16}),
    "context": (4, {"parallel": {"cp": 2}, "batch": 8, **FLASH}),
    "ulysses": (4, {"parallel": {"cp": 2, "cp_kind": "all_to_all"}, "batch": 8, **FLASH}),
    "experts": (4, {**EXPERTS, "parallel": {"ep": 4}, "batch": 16}),
    "experts in fours": (8, {**EXPERTS, "parallel": {"ep": 2, "tp": 2, "pp": 2}, "batch": 16}),
    "every op again": (2, {"training": {"recompute": "ops"}}),
    "layers again": (2, {"training": {"recompute": "full"}}),
    "scores again": (2, {"training": {"recompute": "selective", "attention": "unfused"}}),
    "nothing again": (2, {"training": {"recompute": "none", "attention": "unfused"}}),
    "packed": (2, {"training": {"packed_tokens": 8}}),
    "fp8": (2, {"training": {"compute": "fp8", "gradient_dtype": "bf16"}, "batch": 8}),
    "adapters": (2, {"training": {"adapters_only": True, "adapter_rank": 2}}),
    "autocast": (2, {"training": {"master": "autocast", "optimizer": "sgd"}}),
    "some experts": (
        4,
        {**EXPERTS, "parallel": {"ep": 4}, "batch": 16,
         "training": {"routing": "power_law", "capacity_factor": 1.25, "clip_gradients": True}},
    ),
}  # fmt: skip
SMALL = ("batch=64", "embedding.rows=[1000, 200000, 3000, 40]", "embedding.pooling_factors=3")
RECOMMENDERS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "dot": ("dlrm_mlperf", 4, ()),
    "cross": ("dlrm_dcnv2", 4, ()),
    "alone": ("dlrm_mlperf", 1, ()),
    "by rows": ("dlrm_mlperf", 4, ("sharding.sharder=row_wise",)),
    "in turns": ("dlrm_mlperf", 4, ("sharding.sharder=naive",)),
    "copied": ("dlrm_mlperf", 4, ("sharding.data_parallel_below=10 MB",)),
    "sequences": ("dlrm_v4", 4, ("batch=64",)),
    "half precision": (
        "dlrm_mlperf",
        4,
        ("training.precision=fp16", "training.optimizer=adam", "embedding.optimizer=adagrad"),
    ),
    "unpooled": ("dlrm_mlperf", 4, ("embedding.pooled=[true, false, true, true]",)),
    "wide exchange": ("dlrm_mlperf", 4, ("embedding.exchange_dtype=fp32",)),
}


def describe(job: JobGraph, memory: Any) -> dict[str, Any]:
    """Counts, bytes and operations of *job*, its memory by rank, and a digest of its columns."""
    ops = [job.op_of(0, task) for task in range(job.program_of(0).task_count)]
    sent = Counter[str]()
    for op in ops:
        if isinstance(op, Communication):
            sent[op.collective.kind.value] += op.collective.size_bytes
    return {
        "tasks": job.task_count,
        "ops": Counter(type(op).__name__ for op in ops),
        "flops": sum(op.flops for op in ops),
        "sent_bytes": sent,
        "memory": [{part.name: part.size_bytes for part in one.parts} for one in memory],
        "digest": recorded.digest_job(job),
    }


def transformers() -> dict[str, Any]:
    """Models of four layers under each stack."""
    found = {}
    for name, (ranks, settings) in TRANSFORMERS.items():
        spec = tiny(**settings)
        for kind, stack in STACKS.items():
            made = build_workload(spec, rank_count=ranks, ranks_per_host=4, stack=stack)
            found[f"{name}, {kind}"] = describe(made.job, made.memory_of_rank)
    return found


def recommenders() -> dict[str, Any]:
    """Four tables, by sharder and model."""
    found = {}
    for name, (model, ranks, changes) in RECOMMENDERS.items():
        small = () if model == "dlrm_v4" else SMALL
        spec = load_workload(model, [*small, *changes])
        for kind, stack in STACKS.items():
            made = build_workload(spec, rank_count=ranks, ranks_per_host=2, stack=stack)
            found[f"{name}, {kind}"] = describe(made.job, made.memory_of_rank)
    return found


GRIDS = (transformers, recommenders)


def values() -> dict[str, Any]:
    """All grids."""
    return {f"{grid.__name__}: {name}": one for grid in GRIDS for name, one in grid().items()}


def test_jobs_and_memory_are_as_recorded():
    recorded.check(__file__, values())
