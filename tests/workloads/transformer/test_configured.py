"""What a run configures, by hand: saved outputs, adapters, eight-bit attention, stated stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Attention, Gemm, MemoryBound
from perfmodel.stacks.capabilities import Dispatcher, FrameworkBehaviour
from perfmodel.stacks.profiles import list_stacks, load_stack
from perfmodel.workloads import load_workload
from perfmodel.workloads.jobs import apply_stack_defaults
from perfmodel.workloads.transformer.axes import AXES
from perfmodel.workloads.transformer.layers import LayerKind, build_layer_steps
from perfmodel.workloads.transformer.layout_choice import choose_layout
from perfmodel.workloads.transformer.memory import layer_activation_bytes, memory_of_stages
from perfmodel.workloads.transformer.model import commonest_block
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Recompute
from tests.workloads.transformer.test_memory import FUSED, run_of
from topologies import load_device

# Llama 3 8B: hidden 4096, 32 heads and 8 key heads of 128, FFN 14336, sequences of 8192 tokens.
TOKENS, HIDDEN, QKV, UP = 8192, 4096, (32 + 2 * 8) * 128, 2 * 14336
PLAIN = LayerKind(commonest_block(load_workload("llama3_8b").model), is_recomputed=True)


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


def test_a_weight_gradient_in_four_bits_multiplies_copies_made_with_those_of_the_other_passes():
    run = run_of("llama3_8b", "training.compute=nvfp4", "training.recompute=none")
    steps = build_layer_steps(run, PLAIN)
    [up] = [one for one in steps.backward if one.label == "ffn/up backward" and one.weight_kernels]
    casts = [op for op in up.kernels if isinstance(op, MemoryBound)]
    of_input, of_weight = (op for op in up.kernels if isinstance(op, Gemm))
    # The gradient of the output is read twice for its scales, and written in rows and in columns:
    # half a byte a number, and a byte for 16 of them.
    numbers = TOKENS * UP
    [cast] = casts
    assert (cast.read_bytes, cast.write_bytes) == (2 * 2 * numbers, 2 * numbers * 9 // 16)
    assert (of_input.m, of_input.n, of_input.k) == (TOKENS, HIDDEN, UP)
    assert (of_weight.m, of_weight.n, of_weight.k) == (UP, HIDDEN, TOKENS)
    assert of_input.dtype is of_weight.dtype is DType.NVFP4


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


def test_weights_multiplied_in_eight_bits_are_stored_in_them_alone_where_the_stack_says_so():
    narrow = replace(FUSED, habits=FUSED.habits | {FrameworkBehaviour.NARROW_STORAGE})
    run = run_of("llama3_8b", "training.compute=fp8", "training.recompute=none")
    weights = [
        next(part.size_bytes for part in memory.parts if part.name == "weights")
        for stack in (FUSED, narrow)
        for memory in memory_of_stages(replace(run, stack=stack))
    ]
    # A layer multiplies by qkv, projection, up and down; two bytes of each are not stored.
    of_layer = HIDDEN * (QKV + HIDDEN) + HIDDEN * (UP + UP // 2)
    assert weights[0] - weights[1] == 32 * of_layer * 2


def test_frozen_weights_in_eight_bits_keep_inputs_of_activations_in_them():
    narrow = replace(FUSED, habits=FUSED.habits | {FrameworkBehaviour.NARROW_STORAGE})
    lora = ("training.adapters_only=true", "training.compute=fp8", "training.recompute=none")
    run = run_of("llama3_8b", *lora)
    # One byte instead of two of every output of the up GEMM.
    kept = [layer_activation_bytes(replace(run, stack=stack)) for stack in (FUSED, narrow)]
    assert kept[0] - kept[1] == TOKENS * UP


def test_a_default_counts_where_nothing_is_stated_for_the_most_specific_kind_of_run():
    defaults = {
        "parallel.dispatcher": {"any": "alltoall", "experts on gb200": "hybridep"},
        "parallel.etp": {"experts": "tp"},
    }
    stack = replace(load_stack("nemo"), defaults=defaults)
    experts = load_workload("qwen3_30b_a3b", ("parallel.tp=2",))
    filled = apply_stack_defaults(experts, stack, load_device("gb200")).parallel
    assert (filled.dispatcher, filled.etp) == (Dispatcher.HYBRIDEP, 2)
    filled = apply_stack_defaults(experts, stack, load_device("h100_sxm")).parallel
    assert filled.dispatcher is Dispatcher.ALL_TO_ALL
    stated = load_workload("qwen3_30b_a3b", ("parallel.tp=2", "parallel.etp=1"))
    assert apply_stack_defaults(stated, stack).parallel.etp == 1


@pytest.mark.parametrize("name", list_stacks())
def test_every_default_of_a_stack_is_a_value_of_a_field(name):
    for setting, values in load_stack(name).defaults.items():
        section, _, field = setting.partition(".")
        kind = TransformerSpec.model_fields[section].annotation
        for value in values.values():
            kind.model_validate({field: 1 if value in AXES else value})


def test_later_releases_take_over_defaults():
    names = ("nemo_2024", "nemo_2025", "nemo_2026")
    of_release = [load_stack(name).defaults_of("experts", ("gb200", "blackwell")) for name in names]
    assert [one["parallel.etp"] for one in of_release] == ["tp", 1, 1]
    assert [one["training.cuda_graph"] for one in of_release] == ["none", "partial", "full"]
