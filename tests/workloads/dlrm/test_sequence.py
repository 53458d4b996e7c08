"""Sequence layers of a recommendation model, counted by hand."""

from __future__ import annotations

from collectives.collective import CollectiveKind
from perfmodel.graph.audit import check_job
from perfmodel.graph.ops import Attention, EmbeddingOp, Gemm, Pass
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.dlrm.dense import dense_parameters, token_layers
from tests.workloads.reading import bytes_of, iter_ops, memory_of

# 4 samples per rank with 100 tokens each, width 64, 2 heads of 32, two layers, 3 targets.
SMALL = [
    "batch=8", "dense.sequence.length=100", "dense.sequence.length_deviation=0",
    "dense.sequence.width=64", "dense.sequence.layers=2", "dense.sequence.heads=2",
    "dense.sequence.query_width=32", "dense.sequence.value_width=32",
    "dense.sequence.encoder_width=16", "dense.sequence.targets=3", "dense.top_mlp=[8, 1]",
    "embedding.rows=[1000, 10, 100]", "embedding.width=64",
    "embedding.pooling_factors=[99, 99, 1]", "embedding.pooling_deviations=0",
]  # fmt: skip


def small_job(*changes: str):
    spec = load_workload("dlrm_v4", [*SMALL, *changes])
    return spec, build_job(spec, rank_count=2, ranks_per_host=2)


def test_products_and_attention_are_those_of_a_count_by_hand():
    spec, job = small_job()
    check_job(job)
    rank = [op for _, op in iter_ops(job)]
    shapes = {(op.m, op.n, op.k) for op in rank if isinstance(op, Gemm)}
    # 400 tokens: 64 to 2 x (2 x 32 + 2 x 32) = 256 and back from 3 x 64; 12 targets at the top.
    wanted = {(400, 256, 64), (400, 64, 192), (400, 16, 64), (400, 64, 16), (12, 8, 64)}
    assert wanted <= shapes
    attention = [op for op in rank if isinstance(op, Attention)]
    assert [op.direction for op in attention] == [Pass.FORWARD] * 2 + [Pass.BACKWARD] * 2
    # 4 samples x 2 heads x 100 x 100 x 32 x 4 operations, half of them behind the mask.
    assert attention[0].flops == 4 * 2 * 100 * 100 * 32 * 4 // 2
    assert attention[0].kernel == "flash2"
    # Encoder 64 -> 16 -> 64, two layers of 64 x 256 + 256 and 192 x 64, top 64 -> 8 -> 1.
    tokens = 64 * 16 + 16 + 16 * 64 + 64 + 2 * (64 * 256 + 256 + 192 * 64)
    assert sum(layer.parameters for layer in token_layers(spec)) == tokens
    assert dense_parameters(spec) == tokens + 64 * 8 + 8 + 8 + 1


def test_every_vector_is_looked_up_and_exchanged():
    spec, job = small_job("sharding.sharder=naive")
    label = "embedding/pooled all_to_all forward"
    # Tables 0 and 2 on rank 0, table 1 on rank 1. Rank 0 sends 4 samples x (99 + 1) x 64 x 2 bytes.
    assert bytes_of(job, CollectiveKind.ALL_TO_ALL, label) == 4 * 100 * 64 * 2
    lookups = [op for _, op in iter_ops(job) if isinstance(op, EmbeddingOp)]
    assert sum(table.vectors(8) for table in lookups[0].lookup.tables) == 8 * 100
    assert spec.embedding.received_numbers == 64 * 199


def test_jagged_lengths_cost_their_mean_square():
    _, even = small_job()
    _, jagged = small_job("dense.sequence.length_deviation=75")
    lengths = [
        next(op.query_length for _, op in iter_ops(job) if isinstance(op, Attention))
        for job in (even, jagged)
    ]
    # 100^2 + 75^2 = 125^2.
    assert lengths == [100, 125]


def test_activations_grow_with_tokens():
    spec, _ = small_job()
    longer = load_workload("dlrm_v4", [*SMALL, "dense.sequence.length=200"])
    one, two = (
        next(
            part.size_bytes
            for part in memory_of(each, rank_count=2, ranks_per_host=2)[0].parts
            if part.name == "activations"
        )
        for each in (spec, longer)
    )
    # Per token: both layers 64 + 256 + 192 + 64 and 2 x 64 + 64 beside, the encoder 64 + 16 twice.
    of_token = 2 * (64 + 256 + 192 + 64 + 3 * 64) + 2 * (64 + 16)
    assert two - one == 4 * 100 * of_token * 2
