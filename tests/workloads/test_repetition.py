"""What is pasted is what would have been written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.graph.audit import check_job
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.repetition import Repetition
from perfmodel.workloads.transformer.job import build_shorter_jobs, build_transformer_job
from perfmodel.workloads.transformer.layout_choice import choose_layout


@pytest.mark.parametrize(
    ("name", "ranks", "overrides"),
    [
        ("llama3_8b", 8, ["parallel.tp=2", "parallel.pp=2", "parallel.interleaving=2", "batch=16"]),
        ("llama3_8b", 4, ["parallel.tp=1", "parallel.pp=4", "batch=16", "training.recompute=full"]),
        ("llama3_8b", 4, ["parallel.sharding=zero3", "parallel.pp=1", "parallel.tp=1", "batch=16"]),
        ("llama3_8b", 4, ["parallel.sharding=zero3", "parallel.pp=2", "parallel.tp=1", "batch=16"]),
        ("llama3_8b", 4, ["parallel.sharding=hsdp", "parallel.shard_group=2", "parallel.tp=1"]),
        ("llama3_8b", 2, ["training.compute=fp8", "parallel.tp=2", "training.recompute=ops"]),
        ("llama3_8b", 2, ["parallel.sharding=zero2", "training.recompute_fraction=0.5"]),
        ("gpt2_124m", 2, ["batch=96", "stack=cuda_graphs"]),
        ("bert_large", 2, ["batch=64"]),
    ],
)
def test_a_program_is_the_same_whether_layers_are_pasted_or_written(
    monkeypatch, name, ranks, overrides
):
    spec = load_workload(
        name, ["model.layers=8", "sequence_length=512", "parallel.micro_batch=2", *overrides]
    )
    pasted = build_job(spec, rank_count=ranks, ranks_per_host=8)
    monkeypatch.setattr(Repetition, "write", lambda _, key, write, naming: write())
    written = build_job(spec, rank_count=ranks, ranks_per_host=8)
    check_job(pasted)
    assert (pasted.ops, pasted.labels) == (written.ops, written.labels)
    assert pasted.digest() == written.digest()


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallel.tp=2", "parallel.pp=4", "parallel.sharding=zero1"],
        ["parallel.tp=1", "parallel.pp=2", "parallel.interleaving=2"],
        ["parallel.tp=1", "parallel.pp=1", "parallel.sharding=zero2", "training.compute=fp8"],
        ["parallel.tp=1", "parallel.pp=2", "parallel.sharding=zero3"],
    ],
)
def test_jobs_of_two_numbers_of_micro_batches_are_those_that_each_would_be_alone(overrides):
    small = ["model.layers=8", "sequence_length=512", "parallel.micro_batch=1", "batch=128"]
    spec = load_workload("llama3_8b", [*small, *overrides])
    stack = load_stack(spec.stack)
    chosen = choose_layout(spec, rank_count=16, ranks_per_host=8, stack=stack)
    together = build_shorter_jobs(spec, chosen, stack=stack, micro_batches=(4, 8))
    for job, count in zip(together, (4, 8), strict=True):
        layout = replace(chosen.layout, micro_batches=count)
        alone = build_transformer_job(spec, replace(chosen, layout=layout), stack=stack)
        check_job(job)
        for one, other in zip(job.programs, alone.programs, strict=True):
            assert [job.ops[op] for op in one.op] == [alone.ops[op] for op in other.op]
            assert [job.labels[label] for label in one.label] == [
                alone.labels[label] for label in other.label
            ]
            for column in ("slot", "sequence", "dep_start", "dep_task", "dep_lag_ns"):
                assert (getattr(one, column) == getattr(other, column)).all(), column
