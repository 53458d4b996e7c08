"""Numbers of parameters."""

from __future__ import annotations

import pytest

from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.shapes import layer_shape, stage_parameters
from tests.workloads.reading import parameter_count


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
    shape = layer_shape(load_workload("llama3_8b").model, tp=2)
    # 32 heads and 8 key heads of 128 over 2 ranks: (16 + 2 * 4) * 128 = 3072.
    assert (shape.qkv.inputs, shape.qkv.outputs) == (4096, 3072)
    assert (shape.projection.inputs, shape.projection.outputs) == (2048, 4096)
    # Gate and up, each 14336 / 2 wide.
    assert (shape.up.outputs, shape.down.inputs) == (14336, 7168)


def test_key_heads_are_copied_when_there_are_fewer_than_ranks():
    model = load_workload("llama3_8b", ["model.kv_heads=2"]).model
    assert layer_shape(model, tp=8).kv_heads == 1


@pytest.mark.parametrize("name", ["llama3_8b", "gpt3_175b", "bert_large"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_hold_the_model_once_and_a_tied_weight_twice(name, pp):
    model = load_workload(name).model
    layout = Layout(tp=1, pp=pp, dp=1, micro_batch=1, micro_batches=1)
    held = sum(stage_parameters(model, layout, stage=stage) for stage in range(pp))
    twice = model.vocab * model.hidden if model.tied_embeddings and pp > 1 else 0
    assert held == parameter_count(model) + twice
