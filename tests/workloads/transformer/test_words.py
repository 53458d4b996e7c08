"""What each word of a Transformer's training and parallelism does, counted on paper."""

from __future__ import annotations

from collections import Counter

import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Attention, Gemm, MemoryBound
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.shapes import layer_shape
from perfmodel.workloads.transformer.words import Recompute, StateSharding
from tests.workloads.reading import (
    bytes_of,
    collectives_of,
    iter_ops,
    job_of,
    memory_of,
    ops_of,
    parameter_count,
    tiny,
)

# A layer without bias: 8 x (8 + 2 x 4) + 8 x 8 + 8 x 48 + 24 x 8 weights and two norms of 8.
LAYER = 128 + 64 + 384 + 192 + 16


def parts_of(spec, *, ranks=1, rank=0):
    memory = memory_of(spec, rank_count=ranks, ranks_per_host=8)[rank]
    return {part.name: part.size_bytes for part in memory.parts}


def test_older_words_mean_the_same():
    assert StateSharding("optimizer") is StateSharding.ZERO1
    assert StateSharding("full") is StateSharding.ZERO3
    assert Recompute("selective") is Recompute.ATTENTION
    assert tiny(training={"recompute": "operators"}).training.recompute is Recompute.OPS


def test_zero2_scatters_gradients_of_every_micro_batch_and_gathers_weights_once():
    spec = tiny(parallel={"sharding": "zero2", "micro_batch": 1})
    job, elements = job_of(spec, ranks=2), parameter_count(spec.model)
    # 4 sequences over 2 ranks one by one: two micro-batches.
    assert bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients") == 2 * 4 * elements
    assert bytes_of(job, CollectiveKind.ALL_GATHER, "optimizer/weights") == 2 * elements
    parts = parts_of(spec, ranks=2)
    assert (parts["weights"], parts["gradients"]) == (2 * elements, 4 * elements // 2)
    assert parts["optimizer state"] == 12 * elements // 2


def test_hsdp_scatters_in_its_group_and_reduces_its_share_over_the_groups():
    spec = tiny(parallel={"sharding": "hsdp"}, batch=8)
    job, elements = job_of(spec, ranks=4, ranks_per_host=2), parameter_count(spec.model)
    assert [group.ranks for group in job.groups[:4]] == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients") == 4 * elements
    shares = collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket")
    # Four layers and the ends, each halved.
    assert len(shares) == 5
    assert sum(call.size_bytes for call in shares) == 2 * elements
    memory = memory_of(spec, rank_count=4, ranks_per_host=2)[0]
    assert memory.parts[0].size_bytes == 2 * elements // 2


def test_stages_of_sharded_weights_gather_once_and_reduce_once():
    spec = tiny(parallel={"sharding": "zero3", "pp": 2, "micro_batch": 1}, batch=8)
    job, elements = job_of(spec, ranks=4), parameter_count(spec.model)
    ends = elements - 4 * LAYER
    assert elements == 4 * LAYER + 2 * 80 + 8
    held = [2 * LAYER + 80, 2 * LAYER + 88]
    assert sum(held) == 4 * LAYER + ends
    for rank, own in ((0, held[0]), (2, held[1])):
        gathered = bytes_of(job, CollectiveKind.ALL_GATHER, "", rank)
        scattered = bytes_of(job, CollectiveKind.REDUCE_SCATTER, "gradients", rank)
        assert (gathered, scattered) == (2 * own, 4 * own)


def test_a_fraction_of_the_layers_is_recomputed():
    job = job_of(tiny(training={"recompute": "full", "recompute_fraction": 0.5}))
    again = {name.split("/")[0] for name, _ in ops_of(job, Gemm, "/recompute/")}
    assert again == {"layer 1", "layer 3"}


def test_recomputing_a_fraction_keeps_that_much_less():
    none, half, full = (
        parts_of(tiny(training={"recompute": "full", "recompute_fraction": share}))["activations"]
        for share in (0.0, 0.5, 1.0)
    )
    # 32 tokens of 8 numbers in 2 bytes, once for each of two layers or four, and one layer whole.
    whole, kept = none // 4, 32 * 8 * 2
    assert (half, full) == (2 * whole + 2 * kept + whole - kept, 4 * kept + whole - kept)


def test_adapters_have_no_weight_gradients_beside_their_own():
    spec = tiny(training={"adapters_only": True, "adapter_rank": 3})
    job = job_of(spec)
    gemms = [(op.m, op.n, op.k) for _, op in ops_of(job, Gemm, "layer 0/ffn/down")]
    # Two micro-batches of 32 tokens; forward, into and out of the adapter; backward the same
    # for inputs, and two small products for the adapter's weights.
    assert Counter(gemms) == {
        (32, 8, 24): 2, (32, 3, 24): 2, (32, 8, 3): 2,
        (32, 24, 8): 2, (32, 3, 8): 2, (3, 24, 32): 2, (8, 3, 32): 2, (32, 24, 3): 2,
    }  # fmt: skip
    assert not ops_of(job, MemoryBound, "embedding/look-up backward")


def test_adapters_are_all_that_is_reduced_and_updated():
    spec = tiny(training={"adapters_only": True, "adapter_rank": 3}, parallel={"micro_batch": 1})
    job = job_of(spec, ranks=2)
    # Rank 3 beside 8 -> 16, 8 -> 8, 8 -> 48 and 24 -> 8, in four layers.
    adapters = 4 * 3 * (24 + 16 + 56 + 32)
    assert bytes_of(job, CollectiveKind.ALL_REDUCE, "gradients") == 4 * adapters
    parts = parts_of(spec, ranks=2)
    assert (parts["gradients"], parts["optimizer state"]) == (4 * adapters, 12 * adapters)
    assert parts["weights"] == 2 * parameter_count(spec.model)


def test_products_in_fp8_cast_activations_and_gradients_and_leave_the_logits_alone():
    job = job_of(tiny(training={"compute": "fp8"}, batch=2))
    dtypes = {name: op.dtype for name, op in ops_of(job, Gemm)}
    assert dtypes["head/logits forward"] is DType.BF16
    assert {dtype for name, dtype in dtypes.items() if "layer" in name} == {DType.FP8}
    assert {op.dtype for _, op in ops_of(job, Attention)} == {DType.BF16}
    casts = [op for _, op in ops_of(job, MemoryBound, "layer 0/ffn/down") if op.operator == "cast"]
    # The weight 24 x 8, the input 32 x 24 and the gradient 32 x 8: two bytes in, two of one out.
    assert sorted(op.read_bytes for op in casts) == [2 * 192, 2 * 256, 2 * 768]
    assert all(op.read_bytes == op.write_bytes for op in casts)


def test_weights_are_cast_once_for_all_micro_batches():
    job = job_of(tiny(training={"compute": "fp8"}, batch=8))
    casts = [name for name, _ in ops_of(job, MemoryBound, "weight cast")]
    assert Counter(casts) == Counter(
        f"layer {layer}/{product} weight cast"
        for layer in range(4)
        for product in layer_shape(blocks_of(tiny().model)[0], tp=1).linears
    )


def test_sequence_parallel_inputs_travel_in_the_format_of_products():
    spec = tiny(parallel={"tp": 2}, training={"compute": "fp8"}, batch=2)
    job = job_of(spec, ranks=2)
    gathered = collectives_of(job, CollectiveKind.ALL_GATHER, "layer 0/")
    # 32 tokens x 8 numbers in one byte; six of them, as in bf16.
    assert [(call.size_bytes, call.dtype) for call in gathered] == [(256, DType.FP8)] * 6
    scattered = collectives_of(job, CollectiveKind.REDUCE_SCATTER, "layer 0/")
    assert {call.size_bytes for call in scattered} == {512}


def test_tensor_exchange_in_pieces_leaves_a_quarter_before_the_product():
    spec = tiny(parallel={"tp": 2, "tp_overlap": "full"}, batch=2)
    job = job_of(spec, ranks=2)
    gathered = collectives_of(job, CollectiveKind.ALL_GATHER, "layer 0/ffn/up input all")
    assert [call.size_bytes for call in gathered] == [128, 384]
    scattered = collectives_of(job, CollectiveKind.REDUCE_SCATTER, "layer 0/ffn/down output")
    assert [call.size_bytes for call in scattered] == [384, 128]


@pytest.mark.parametrize("word", ["none", "backward", "full"])
def test_what_is_exchanged_does_not_depend_on_what_it_overlaps(word):
    plain, stated = (
        job_of(tiny(parallel={"tp": 2, "tp_overlap": word}, batch=2), ranks=2)
        for word in ("backward", word)
    )
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        assert bytes_of(plain, kind, "layer") == bytes_of(stated, kind, "layer")


def test_without_an_optimizer_nothing_is_updated():
    job = job_of(tiny(training={"optimizer": "none"}))
    assert not [name for name, _ in iter_ops(job) if name == "optimizer/step"]
    assert parts_of(tiny(training={"optimizer": "none"}))["optimizer state"] == 0


def test_every_second_layer_sees_a_window():
    spec = tiny(window=2, window_every=2)
    spec = spec.model_copy(update={"sequence_length": 1024})
    seen = {name.split("/")[0]: op.key_length for name, op in ops_of(job_of(spec), Attention)}
    # A tile of 128 queries sees each other and two keys before.
    assert seen == {"layer 0": 130, "layer 1": 1024, "layer 2": 130, "layer 3": 1024}


def test_transfers_are_split_over_the_tensor_group_and_put_together_again():
    spec = tiny(parallel={"tp": 2, "pp": 2, "sequence_parallel": False}, batch=2)
    job = job_of(spec, ranks=4)
    sent = collectives_of(job, CollectiveKind.SEND_RECV, "pipeline/send forward")
    # 32 tokens x 8 numbers x 2 bytes over 2 ranks.
    assert [call.size_bytes for call in sent] == [256]
    gathered = collectives_of(job, CollectiveKind.ALL_GATHER, "pipeline/receive backward")
    assert [call.size_bytes for call in gathered] == [512]


def test_autocast_casts_weights_for_every_micro_batch_and_keeps_residuals_in_fp32():
    spec = tiny(training={"master": "autocast"}, batch=4)
    job = job_of(spec)
    casts = ops_of(job, MemoryBound, "layer 0/ffn/down weight cast")
    assert [(op.read_bytes, op.write_bytes) for _, op in casts] == [(4 * 192, 2 * 192)] * 2
    norms = [op for name, op in ops_of(job, MemoryBound, "layer 0/ffn/norm forward")]
    # fp32 in and out, then a cast for the product: 32 x 8 numbers.
    assert [(op.read_bytes, op.write_bytes) for op in norms[:2]] == [(1024, 1024), (1024, 512)]
    parts = parts_of(spec)
    elements = parameter_count(spec.model)
    assert (parts["weights"], parts["optimizer state"]) == (4 * elements, 8 * elements)
