"""Layers of experts and latent attention, counted on paper."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.collective import CollectiveKind
from perfmodel.base.errors import PerfModelError, WorkloadError
from perfmodel.graph.ops import GroupedGemm, MemoryBound
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.shapes import count_flops, layer_shape
from tests.workloads.reading import (
    STACK,
    active_parameter_count,
    bytes_of,
    iter_ops,
    job_of,
    memory_of,
    ops_of,
    parameter_count,
    tiny,
)
from tests.workloads.transformer.test_context import iteration_ns

EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn": 12}
ALL_TO_ALL = CollectiveKind.ALL_TO_ALL


def test_one_expert_takes_the_nanoseconds_of_the_dense_job():
    one = tiny(experts=1, top_k=1, moe_ffn=24, parallel={"ep": 1})

    assert iteration_ns(one, 2) == iteration_ns(tiny(), 2)


def test_dispatch_carries_as_many_bytes_as_combine():
    job = job_of(tiny(**EXPERTS, parallel={"ep": 2}, layers=1), ranks=2)
    # 2 x 16 tokens, two choices each, 8 numbers of 2 bytes.
    whole = 2 * 16 * 2 * 8 * 2

    assert bytes_of(job, ALL_TO_ALL, "layer 0/ffn/dispatch all_to_all") == whole
    assert bytes_of(job, ALL_TO_ALL, "layer 0/ffn/combine all_to_all") == whole
    assert bytes_of(job, ALL_TO_ALL, "layer 0/ffn/dispatch gradient") == whole
    assert bytes_of(job, ALL_TO_ALL, "layer 0/ffn/combine gradient") == whole


def test_products_of_held_experts_run_in_one_launch():
    job = job_of(tiny(**EXPERTS, parallel={"ep": 2}, layers=1), ranks=2)
    forward = [op for _, op in ops_of(job, GroupedGemm, "forward")]
    backward = [op for _, op in ops_of(job, GroupedGemm, "backward")]

    # 64 rows on a rank, 32 for each of its two experts; gate and up are one product.
    assert [(op.groups, op.m, op.n, op.k) for op in forward] == [(2, 32, 24, 8), (2, 32, 8, 12)]
    assert [(op.m, op.n, op.k) for op in backward] == [
        (32, 12, 8), (8, 12, 32), (32, 8, 24), (24, 8, 32),
    ]  # fmt: skip


def test_gradients_of_experts_are_reduced_over_ranks_that_hold_the_same_ones():
    job = job_of(tiny(**EXPERTS, parallel={"ep": 2}, layers=1, batch=8), ranks=4)
    copies = [group.ranks for group in job.groups if group.name.startswith("expert copies")]

    assert copies == [(0, 2), (1, 3)]
    # fp32 gradients of two experts: 3 x 8 x 12 weights each.
    reduced = sum(
        call.size_bytes
        for _, op in ops_of(job, object, "gradients/bucket")
        if (call := getattr(op, "collective", None)) is not None
    )
    assert reduced == 4 * (parameter_count(tiny(**EXPERTS, layers=1).model) - 2 * 3 * 8 * 12)


@pytest.mark.parametrize(
    "parallel",
    [
        {"ep": 2}, {"ep": 4, "tp": 2}, {"ep": 2, "pp": 2}, {"ep": 2, "etp": 2, "tp": 2},
        {"ep": 2, "cp": 2}, {"ep": 4, "sharding": "zero1"}, {"ep": 2, "sharding": "zero2"},
        {"ep": 1, "sharding": "zero3"}, {"ep": 2, "pp": 2, "interleaving": 2, "micro_batch": 1},
    ],
)  # fmt: skip
def test_experts_replay_with_every_other_split(parallel):
    spec = tiny(**EXPERTS, dense_layers=1, shared_experts=1, parallel=parallel, batch=32)

    assert iteration_ns(spec, 8) > 0
    assert memory_of(spec, rank_count=8, ranks_per_host=8)


def test_uneven_routing_takes_longer_and_a_capacity_bounds_it():
    def rows(**training):
        spec = tiny(**EXPERTS, parallel={"ep": 2}, training=training, layers=1)
        return ops_of(job_of(spec, ranks=2), GroupedGemm, "up forward")[0][1].m

    even, uneven = rows(), rows(routing="power_law", routing_exponent=1.2)
    assert uneven > even
    assert rows(routing="power_law", capacity_factor=1.0) == even


def test_experts_that_do_not_divide_are_refused_with_the_numbers():
    with pytest.raises(WorkloadError, match=r"experts \(4\) are not divisible by ep=3"):
        build_job(tiny(**EXPERTS, parallel={"ep": 3}, batch=6), rank_count=3, ranks_per_host=8,
                  stack=STACK)  # fmt: skip


def test_the_operations_of_a_token_are_those_of_the_experts_it_chose():
    dense = count_flops(tiny(layers=1)).model_flops
    chosen = count_flops(tiny(**EXPERTS, layers=1)).model_flops

    # Two experts of width 12 are as wide as the dense layer of 24; the router is 8 x 4 more.
    assert chosen - dense == 3 * 2 * 4 * 16 * 8 * 4


@pytest.mark.parametrize(
    ("name", "published", "active", "has_look_up"),
    [
        # The card counts the table of embeddings as active, those of the other two do not: the
        # report of DeepSeek-V3 rounds to 37, the page about its weights says 36.6.
        ("qwen3_30b_a3b", 30.5e9, 3.3e9, True),
        ("gpt_oss_120b", 116.83e9, 5.13e9, False),
        ("deepseek_v3", 671e9, 36.6e9, False),
    ],
)
def test_shipped_models_have_the_parameters_they_are_known_for(
    name, published, active, has_look_up
):
    model = load_workload(name).model
    counted = active_parameter_count(model) + has_look_up * model.vocab * model.hidden

    assert parameter_count(model) == pytest.approx(published, rel=0.002)
    # Cards give two or three digits.
    assert counted == pytest.approx(active, rel=0.017 if has_look_up else 0.001)


def test_latent_attention_of_deepseek_v3_has_the_weights_of_its_report():
    shape = layer_shape(blocks_of(load_workload("deepseek_v3").model)[0], tp=1)

    # Down to 1536 + 512 + 64, up to 128 heads of 192, keys and values of 128 each, and back.
    weights = 7168 * 2112 + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    assert (
        sum(linear.parameters for label, linear in shape.linears.items() if "attention" in label)
        == weights
    )
    assert shape.mixer.extra == 2048


def test_latent_attention_counts_scores_over_the_rotary_part_too():
    latent = {"kv_lora_rank": 4, "q_lora_rank": 6, "rope_dim": 2, "kv_heads": 4}
    spec = tiny(**latent, layers=1)

    # 8 x (6 + 4 + 2) + 6 x 4 x 4 + 4 x 4 x 4 + 8 x 8 weights, and 16 pairs of 4 heads x (4 + 2).
    products = 8 * 12 + 6 * 16 + 4 * 16 + 64 + 3 * 8 * 24 + 8 * 10
    core = 2 * 16 * 4 * (4 + 2)
    assert count_flops(spec).model_flops == 3 * 4 * 16 * (2 * products + core)
    assert iteration_ns(spec, 1) > 0
    assert iteration_ns(tiny(**latent, parallel={"tp": 2, "cp": 2}, batch=8), 4) > 0


POWERS = st.sampled_from([1, 1, 2, 4])
LAYOUTS = st.fixed_dictionaries(
    {
        "tp": POWERS, "pp": st.sampled_from([1, 1, 2, 3]), "cp": POWERS, "ep": POWERS,
        "etp": st.sampled_from([1, 1, 2]), "cp_kind": st.sampled_from(["ring", "all_gather"]),
        "sharding": st.sampled_from(["none", "zero1", "zero2", "zero3"]),
        "sequence_parallel": st.sampled_from([None, True, False]),
        "interleaving": st.sampled_from([1, 1, 2]),
    }
)  # fmt: skip
MODELS = st.sampled_from([{}, EXPERTS, {**EXPERTS, "dense_layers": 1, "shared_experts": 1}])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(LAYOUTS, MODELS, st.sampled_from(["none", "attention", "ops", "full"]), st.booleans())
def test_any_layout_passes_the_audit_and_replays_or_is_refused_with_the_numbers(
    parallel, model, recompute, is_latent
):
    latent = {"kv_lora_rank": 4, "rope_dim": 2, "kv_heads": 4} if is_latent else {}
    training = {"recompute": recompute, "routing": "power_law"}
    parallel = {**parallel, "micro_batch": 1}
    ranks = math.prod(parallel[word] for word in ("tp", "pp", "cp")) * 2
    try:
        spec = tiny(**model, **latent, parallel=parallel, training=training, batch=8, layers=2)
        outcome = f"replayed in {iteration_ns(spec, ranks)} ns"
    except PerfModelError as refusal:
        outcome = str(refusal)
    assert re.search(r"[1-9]", outcome), outcome


BIASED = {**EXPERTS, "layers": 1, "bias": True}


def moved_bytes(job, word):
    return sum(op.read_bytes + op.write_bytes for _, op in ops_of(job, MemoryBound, word))


def test_a_bias_of_experts_is_weighted_in_fp32_and_joined():
    job = job_of(tiny(**BIASED))

    # 2 x 16 tokens, two choices each, 8 numbers: 512. Forward: the product is written, added and
    # joined in fp32 (4 + 2 + 8 + 8 bytes), and cast back (6). Backward: the gradient is cast (6),
    # joined (4) and cast back (6); two products and their sums in fp32 take 24.
    assert moved_bytes(job, "experts bias forward") == 2 * 512 * (4 + 10 + 8 + 6)
    assert moved_bytes(job, "experts bias backward") == 2 * 512 * (6 + 4 + 6 + 24)
    # Each of four experts adds its own: two launches each, and two for all, in both micro-batches.
    assert len(ops_of(job, MemoryBound, "experts bias forward")) == 2 * (4 * 2 + 2)


def test_a_whole_graph_and_experts_without_bias_add_none():
    graph = tiny(**BIASED, training={"cuda_graph": "full"})
    for spec in (graph, tiny(**EXPERTS)):
        assert moved_bytes(job_of(spec), "experts bias") == 0


def test_clamping_both_halves_of_a_gate_takes_three_passes():
    plain, clamped = (
        moved_bytes(job_of(tiny(**EXPERTS, layers=1, clamped_ffn=is_clamped)), "activation forward")
        for is_clamped in (False, True)
    )
    # 64 rows of 12 numbers: two clamps read and write one half each, and both halves are joined.
    assert clamped - plain == 2 * 64 * 12 * 2 * (2 + 2 + 4)


@pytest.mark.parametrize(
    ("part", "again"),
    [("moe_act", ["experts activation"]), ("layernorm", ["attention/norm", "ffn/norm"]),
     ("core_attn", ["attention/core"]), ("mlp", []), ("mla_up_proj", [])],
)  # fmt: skip
def test_named_parts_of_a_layer_run_again_before_its_backward_pass(part, again):
    job = job_of(tiny(**EXPERTS, layers=1, training={"recompute_modules": [part]}))
    labels = {label for label, _ in iter_ops(job) if "recompute/" in label}

    assert {word for word in again for label in labels if word in label} == set(again)
    assert bool(labels) is bool(again)


def test_dense_layers_run_their_feed_forward_network_again_and_layers_of_experts_do_not():
    spec = tiny(**EXPERTS, layers=2, dense_layers=1, training={"recompute_modules": ["mlp"]})
    labels = {label for label, _ in iter_ops(job_of(spec)) if "recompute/" in label}

    assert labels == {
        "layer 0/recompute/ffn/up forward",
        "layer 0/recompute/ffn/activation forward",
        "layer 0/recompute/ffn/down forward",
    }


@pytest.mark.parametrize(("compute", "more"), [("fp8", 0), ("mxfp8", 2)])
def test_experts_one_by_one_order_the_scales_of_both_operands(compute, more):
    training = {"compute": compute, "grouped_experts": False}
    job = job_of(tiny(**EXPERTS, layers=1, training=training))
    ordered = [op for _, op in ops_of(job, MemoryBound, "experts") if op.operator == "transpose"]

    # Four experts, two GEMMs forward and four backward, in two micro-batches.
    assert sum(op.launches for op in ordered) == more * 4 * 6 * 2
