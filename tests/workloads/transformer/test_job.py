"""Jobs of Transformers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.engine.replay import replay
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.ops import Attention, Gemm, Pass
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job, load_workload
from tests.workloads.reading import (
    bytes_of,
    collectives_of,
    iter_ops,
    job_of,
    ops_of,
    parameter_count,
    tiny,
)


def build(ranks, *, training=None, model=None, **parallel):
    """The spec and a sound job of two layers of a tiny model under its own stack."""
    words = {"layers": 2, "norm": "layer_norm", "batch": 8, **(model or {})}
    spec = tiny(parallel=parallel, training=training, **words)
    job = build_job(spec, rank_count=ranks, ranks_per_host=8)
    check_job(job)
    return spec, job


def _gemms(job, place: str, way: str) -> list[tuple[str, int, int, int]]:
    found = [(label, op.m, op.n, op.k) for label, op in iter_ops(job) if isinstance(op, Gemm)]
    return [gemm for gemm in found if gemm[0].startswith(place) and gemm[0].endswith(way)]


def test_products_of_a_layer_by_hand():
    _, job = build(2, tp=2)
    forward = _gemms(job, "layer 1/", "forward")
    # 2 sequences of 16 tokens; heads of 2; 4 heads and 2 key heads over 2 ranks: 2 + 2 * 1 heads.
    assert forward[:4] == [
        ("layer 1/attention/qkv forward", 32, 8, 8),
        ("layer 1/attention/projection forward", 32, 8, 4),
        ("layer 1/ffn/up forward", 32, 24, 8),
        ("layer 1/ffn/down forward", 32, 8, 12),
    ]


def test_backward_products_are_the_permuted_forward_ones():
    _, job = build(1)
    backward = _gemms(job, "layer 0/ffn/down", "backward")
    # Forward 32 x 24 by 24 x 8; gradient of the input 32 x 8 by 8 x 24,
    # of the weight 8 x 32 by 32 x 24.
    assert backward[:2] == [
        ("layer 0/ffn/down backward", 32, 24, 8),
        ("layer 0/ffn/down backward", 8, 24, 32),
    ]


def test_attention_has_the_heads_of_one_rank():
    _, job = build(2, tp=2)
    ops = {op for _, op in iter_ops(job) if isinstance(op, Attention)}
    assert {(op.heads, op.kv_heads, op.head_dim, op.batch) for op in ops} == {(2, 1, 2, 2)}
    assert {op.direction for op in ops} == set(Pass)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_every_gradient_is_reduced_once(ranks, tied):
    spec, job = build(ranks, model={"tied_embeddings": tied})
    reduced = bytes_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket")
    assert reduced == 4 * parameter_count(spec.model)


def test_a_sharded_optimizer_scatters_gradients_and_gathers_weights():
    spec, job = build(4, sharding="optimizer")
    elements = parameter_count(spec.model)
    assert bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients/bucket") == 4 * elements
    assert bytes_of(job, CollectiveKind.ALL_GATHER, "optimizer/weights") == 2 * elements


def test_full_sharding_gathers_layers_twice_and_the_ends_once_a_micro_batch():
    spec, job = build(2, sharding="full")
    # 8 sequences over 2 ranks in micro-batches of 2: two of them.
    gathered = collectives_of(job, CollectiveKind.ALL_GATHER, "layer 0/weights")
    ends = collectives_of(job, CollectiveKind.ALL_GATHER, "embedding and head")
    scattered = bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients")
    assert (len(gathered), len(ends)) == (4, 2)
    assert scattered == 2 * 4 * parameter_count(spec.model)


def test_tensor_parallel_layers_reduce_twice_each_way():
    _, job = build(2, tp=2, sequence_parallel=False)
    reduced = collectives_of(job, CollectiveKind.ALL_REDUCE, "layer 0/")
    # Four micro-batches of 2 sequences; 32 tokens x 8 numbers x 2 bytes.
    assert [call.size_bytes for call in reduced] == [512] * 4 * 4


def test_sequence_parallel_layers_gather_and_scatter_instead():
    _, job = build(2, tp=2)
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
    # Forward 2 + 2; backward 2 scatters, 2 gathers of gradients and 2 of inputs again.
    counts = [len(collectives_of(job, kind, "layer 0/")) for kind in kinds]
    assert counts == [4 * 6, 4 * 4, 0]


# 2 layers x 4 micro-batches: the attention core, or it and four products.
@pytest.mark.parametrize(("recompute", "count"), [("none", 0), ("selective", 8), ("full", 40)])
def test_recompute_repeats_forward_products(recompute, count):
    _, job = build(1, training={"recompute": recompute})
    labels = [label for label, op in iter_ops(job) if isinstance(op, Gemm | Attention)]
    assert sum("/recompute/" in label for label in labels) == count


def test_ranks_of_a_stage_share_one_program():
    _, job = build(8, tp=2, pp=2)
    assert len(job.programs) == 2
    assert job.rank_program.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("way", "sender"), [("forward", 0), ("backward", 1)])
def test_stages_send_what_the_next_receives(way, sender):
    _, job = build(2, pp=2)
    sent, received = (
        collectives_of(job, CollectiveKind.SEND_RECV, f"pipeline/{what} {way}", rank)
        for what, rank in (("send", sender), ("receive", 1 - sender))
    )
    assert sent == received
    assert [call.size_bytes for call in sent] == [32 * 8 * 2] * 4


@pytest.mark.parametrize(("runs", "iteration_ns"), [(1, 8 * 60 + 3 * 60), (2, 8 * 60 + 3 * 30)])
def test_interleaved_stages_have_a_shorter_bubble(runs, iteration_ns):
    overrides = [
        "model.layers=8", "batch=8", "parallel.micro_batch=1", "parallel.pp=4", "parallel.tp=1",
        f"parallel.interleaving={runs}", "training.recompute=none",
    ]  # fmt: skip
    # On a CPU no kernel starts later than it is launched.
    job = build_job(
        load_workload("llama3_8b", overrides),
        rank_count=4,
        ranks_per_host=8,
        stack=load_stack("pytorch_cpu"),
    )
    check_job(job)
    # Only attention takes time: 10 ns forward and 20 ns backward a layer, two layers a stage.
    # The bubble is one pass of both ways through a run of layers for every further stage.
    of_op = np.zeros(len(job.ops), dtype=np.int64)
    for place, op in enumerate(job.ops):
        if isinstance(op, Attention):
            of_op[place] = 10 if op.direction is Pass.FORWARD else 20
    durations = build_shared_durations(job, [of_op[program.op] for program in job.programs])
    assert replay(job, durations).iteration_end_ns[-1, 0] == iteration_ns


def test_tied_ends_of_a_pipeline_add_up_their_gradients():
    spec = load_workload("gpt2_xl", ["model.layers=2", "parallel.pp=2", "parallel.tp=1", "batch=4"])
    job = build_job(spec, rank_count=2, ranks_per_host=8)
    check_job(job)
    calls = collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients/tied weight")
    assert [call.size_bytes for call in calls] == [50257 * 1600 * DType.FP32.size_bytes]


def test_a_huge_data_parallel_job_is_one_program_built_in_a_moment():
    spec = load_workload("gpt2_xl", ["batch=16384"])
    start = time.process_time()
    job = build_job(spec, rank_count=16_384, ranks_per_host=8)
    assert time.process_time() - start < 2
    assert (len(job.programs), len(job.groups)) == (1, 1)
    assert job.groups[0].ranks == tuple(range(16_384))


def test_the_same_workload_gives_the_same_job():
    first, second = (build(8, tp=2, pp=2)[1] for _ in range(2))
    assert (first.ops, first.labels, first.groups) == (second.ops, second.labels, second.groups)
    assert first.digest() == second.digest()


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_175b", "bert_large"])
def test_shipped_models_pass_the_audit(name):
    overrides = ["model.layers=8", "batch=64"]
    check_job(build_job(load_workload(name, overrides), rank_count=16, ranks_per_host=8))


def test_the_job_says_what_it_assumed():
    job = build_job(load_workload("llama3_8b", ["batch=8"]), rank_count=8, ranks_per_host=8)
    assert any(sentence.startswith("Layout: tp=") for sentence in job.facts.assumptions)
    assert any("1,024 entries" in sentence for sentence in job.facts.assumptions)
    assert any("reduced in buckets of" in sentence for sentence in job.facts.assumptions)


def test_a_bucket_that_no_model_fills_is_one_piece():
    spec = load_workload("llama3_8b", ["batch=8", "training.bucket_size=1 TiB"])
    job = build_job(spec, rank_count=8, ranks_per_host=8)
    assert "Gradients are reduced in one piece." in job.facts.assumptions


@pytest.mark.parametrize(("sharding", "matrices"), [("none", 16), ("zero1", 8)])
def test_muon_orthogonalises_whole_matrices_in_turns(sharding, matrices):
    spec = tiny(parallel={"sharding": sharding}, training={"optimizer": "muon"})
    job = job_of(spec, ranks=2)
    products = [(op.m, op.n, op.k) for _, op in ops_of(job, Gemm, "orthogonalise")]
    # Four layers of four matrices, 8 numbers wide; five steps of three products each.
    assert len(products) == matrices * 5 * 3
    # X X^T, its square, and the sum times X, of 8 x 48.
    assert {(8, 8, 48), (8, 8, 8), (8, 48, 8)} <= set(products)


@pytest.mark.parametrize(
    "settings", [{"parallel": {"sharding": "zero3"}}, {"training": {"adapters_only": True}}]
)
def test_muon_of_parts_of_matrices_is_refused(settings):
    words = {"parallel": {}, **settings}
    words["training"] = {"optimizer": "muon", **settings.get("training", {})}
    with pytest.raises(WorkloadError, match="optimizer=muon needs whole matrices"):
        job_of(tiny(**words), ranks=2)
