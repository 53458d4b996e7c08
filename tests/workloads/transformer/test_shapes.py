"""Shapes, parameters and FLOPs."""

from __future__ import annotations

import pytest

from perfmodel.graph.ops import Gemm
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.shapes import count_flops, layer_shape, stage_parameters
from tests.workloads.reading import iter_ops, parameter_count


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3_8b", 8.03e9),
        ("llama3_70b", 70.6e9),
        ("gpt3_175b", 175e9),
        ("bert_large", 335e6),
        ("gpt2_xl", 1.56e9),
    ],
)
def test_parameters_are_as_published(name, published):
    assert parameter_count(load_workload(name).model) == pytest.approx(published, rel=0.005)


def test_a_layer_of_llama_by_hand():
    shape = layer_shape(blocks_of(load_workload("llama3_8b").model)[0], tp=2)
    [qkv] = shape.mixer.inputs.values()
    # 32 heads and 8 key heads of 128 over 2 ranks: (16 + 2 * 4) * 128 = 3072.
    assert (qkv.inputs, qkv.outputs) == (4096, 3072)
    assert (shape.mixer.projection.inputs, shape.mixer.projection.outputs) == (2048, 4096)
    # Gate and up, each 14336 / 2 wide.
    assert (shape.up.outputs, shape.down.inputs) == (14336, 7168)


def test_key_heads_are_copied_when_there_are_fewer_than_ranks():
    model = load_workload("llama3_8b", ["model.kv_heads=2"]).model
    assert layer_shape(blocks_of(model)[0], tp=8).mixer.kv_heads == 1


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_175b", "bert_large"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_hold_the_model_once_and_a_tied_weight_twice(name, pp):
    model = load_workload(name).model
    layout = Layout(tp=1, pp=pp, dp=1, micro_batch=1, micro_batches=1)
    held = sum(stage_parameters(model, layout, stage=stage) for stage in range(pp))
    twice = model.vocab * model.hidden if model.tied_embeddings and pp > 1 else 0
    assert held == parameter_count(model) + twice


def test_a_gpt_takes_six_operations_a_parameter_and_token_and_those_of_attention():
    spec = load_workload("gpt2_xl")
    flops = count_flops(spec)
    norms, positions, tokens = (2 * 48 + 1) * 2 * 1600, 1024 * 1600, 512 * 1024
    biases = 48 * (3 * 1600 + 1600 + 6400 + 1600)
    multiplied = parameter_count(spec.model) - norms - positions - biases
    # Attention: 12 x layers x hidden x length for a token.
    assert flops.model_flops == tokens * (6 * multiplied + 12 * 48 * 1600 * 1024)
    assert (flops.hardware_flops, flops.tokens) == (flops.model_flops, tokens)


@pytest.mark.parametrize(
    ("recompute", "share"), [("full", 1.0), ("full", 0.5), ("attention", 1.0), ("ops", 1.0)]
)
@pytest.mark.parametrize("adapters", ["false", "true"])
def test_products_are_as_many_as_the_graph_has(recompute, share, adapters):
    spec = load_workload(
        "llama3_8b",
        [
            "model.layers=4", "sequence_length=256", "batch=4", "parallel.tp=2", "parallel.pp=2",
            "training.attention=unfused", f"training.recompute={recompute}",
            f"training.recompute_fraction={share}", f"training.adapters_only={adapters}",
        ],
    )  # fmt: skip
    job = build_job(spec, rank_count=4, ranks_per_host=8)
    gemms = [op for rank in range(4) for _, op in iter_ops(job, rank) if isinstance(op, Gemm)]
    done = sum(2 * op.batch * op.m * op.n * op.k for op in gemms)
    if adapters == "true":
        # A whole adapter matrix of a split product is on both ranks.
        assert count_flops(spec).hardware_flops < done < 1.05 * count_flops(spec).hardware_flops
    else:
        assert done == count_flops(spec).hardware_flops


def test_recomputing_everything_adds_a_third_of_the_layers():
    plain, again = (
        count_flops(load_workload("llama3_8b", [f"training.recompute={word}"]))
        for word in ("none", "full")
    )
    head = 3 * 2 * plain.tokens * 4096 * 128256
    assert plain.model_flops == again.model_flops
    assert again.hardware_flops - again.model_flops == (plain.model_flops - head) // 3


def test_a_window_counts_the_pairs_inside():
    whole, half = (
        count_flops(
            load_workload("llama3_8b", ["model.window=1024", f"model.window_every={every}"])
        )
        for every in (1, 2)
    )
    # 16 of the 32 layers see 8,192 tokens instead of 1,024.
    pairs = 16 * 8192 * (8192 - 1024)
    assert half.model_flops - whole.model_flops == 128 * 3 * 4 * pairs * 4096
