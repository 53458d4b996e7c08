"""What is pasted is what would have been written."""

from __future__ import annotations

import pytest

from perfmodel.graph.audit import check_job
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.repetition import Repetition


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
    monkeypatch.setattr(Repetition, "write", lambda _, key, write, prefix: write())
    written = build_job(spec, rank_count=ranks, ranks_per_host=8)
    check_job(pasted)
    assert (pasted.ops, pasted.labels) == (written.ops, written.labels)
    for one, other in zip(pasted.programs, written.programs, strict=True):
        for column, values in one.columns().items():
            assert (values == other.columns()[column]).all(), column
