"""What a run configures, by hand: saved outputs, adapters, eight-bit attention, stated stages."""

from __future__ import annotations

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Attention, Gemm, MemoryBound
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layers import LayerKind, build_layer_steps
from perfmodel.workloads.transformer.layout_choice import choose_layout
from perfmodel.workloads.transformer.memory import layer_activation_bytes
from perfmodel.workloads.transformer.words import Recompute
from tests.workloads.transformer.test_memory import FUSED, run_of

# Llama 3 8B: hidden 4096, 32 heads and 8 key heads of 128, FFN 14336, sequences of 8192 tokens.
TOKENS, HIDDEN, QKV, UP = 8192, 4096, (32 + 2 * 8) * 128, 2 * 14336
PLAIN = LayerKind(has_window=False, is_recomputed=True, is_expert=False)


def again(*overrides):
    run = run_of("llama3_8b", "training.recompute=full", *overrides)
    steps = build_layer_steps(run, PLAIN).recompute
    return [op for step in steps for op in step.kernels]


def gemms(ops):
    return [(op.n, op.k) for op in ops if isinstance(op, Gemm)]


def test_what_a_jax_policy_saves_is_not_computed_again():
    everything = gemms(again())
    saved = gemms(again("training.saved_outputs=[qkv, down]"))

    assert len(everything) == 4
    # Left are the projection, 4096 x 4096, and the up GEMM.
    assert sorted(saved) == sorted([(HIDDEN, HIDDEN), (UP, HIDDEN)])
    core = [op for op in again("training.saved_outputs=[qkv, down]") if isinstance(op, Attention)]
    assert len(core) == 1
    assert not any(isinstance(op, Attention) for op in again("training.saved_outputs=[core]"))


def test_saved_outputs_are_kept_besides_the_input_of_a_recomputed_layer():
    def kept(*overrides):
        run = run_of("llama3_8b", "training.recompute=full", *overrides)
        return layer_activation_bytes(run, recompute=Recompute.FULL)

    assert kept() == TOKENS * HIDDEN * 2
    # Nothing reads the output of the last GEMM again.
    assert kept("training.saved_outputs=[qkv, down]") - kept() == TOKENS * QKV * 2


def test_frozen_gemms_without_adapters_keep_no_inputs():
    lora = ("training.adapters_only=true", "training.recompute=none")
    everywhere = layer_activation_bytes(run_of("llama3_8b", *lora))
    beside_qkv = layer_activation_bytes(run_of("llama3_8b", *lora, "training.adapter_places=qkv"))

    # The inputs of the up and of the down GEMM, in bf16.
    assert everywhere - beside_qkv == TOKENS * (HIDDEN + UP // 2) * 2


def test_eight_bit_attention_casts_what_it_reads_and_the_gradient_it_gets():
    run = run_of("llama3_8b", "training.attention_precision=fp8", "training.recompute=none")
    steps = build_layer_steps(run, PLAIN)
    for part, width in ((steps.forward, QKV), (steps.backward, HIDDEN)):
        [core] = [op for step in part for op in step.kernels if isinstance(op, Attention)]
        casts = [step for step in part if "core cast" in step.label]
        assert core.dtype is DType.FP8
        [cast] = [op for step in casts for op in step.kernels]
        assert isinstance(cast, MemoryBound)
        # bf16 in, one byte out.
        assert (cast.read_bytes, cast.write_bytes) == (2 * TOKENS * width, TOKENS * width)


def test_stages_may_be_stated():
    words = ("model.layers=6", "parallel.pp=4", "parallel.tp=1", "parallel.micro_batch=1")

    def chosen(text):
        spec = load_workload("llama3_8b", [*words, f"parallel.stage_layers={text}"])
        return choose_layout(spec, rank_count=4, ranks_per_host=4, stack=FUSED).layout

    layout = chosen("[1, 2, 2, 1]")
    assert [layout.layer_count(6, stage=stage) for stage in range(4)] == [1, 2, 2, 1]
    for wrong, said in (("[3, 3]", "2 virtual stages, not"), ("[1, 2, 2, 2]", "7 layers, not 6")):
        with pytest.raises(WorkloadError, match=said):
            chosen(wrong)
