"""Memory of Transformer ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.memory import layer_activation_bytes, memory_of_stages
from perfmodel.workloads.transformer.model import counted_blocks
from perfmodel.workloads.transformer.run import TransformerRun
from tests.workloads.reading import memory_of, parameter_count, tiny

FUSED = replace(load_stack("pytorch_fused"), fusions=frozenset(Fusion))
UNFUSED_CORE = ("training.attention=unfused", "training.recompute=none")


def run_of(name, *overrides, stack=FUSED, **layout):
    where = Layout(**{"tp": 1, "pp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1, **layout})
    return TransformerRun(load_workload(name, overrides), where, stack)


def parts_of(run, stage=0):
    return {part.name: part.size_bytes for part in memory_of_stages(run)[stage].parts}


def test_activations_of_a_gpt_layer_are_as_published_and_split_along_the_sequence():
    whole = layer_activation_bytes(run_of("gpt3_175b", *UNFUSED_CORE))
    split = run_of("gpt3_175b", *UNFUSED_CORE, tp=8, is_sequence_parallel=True)
    s, h, a = 2048, 12288, 96

    # Korthikanti et al., equation 1: s b h (34 + 5 a s / h).
    assert whole == 34 * s * h + 5 * a * s * s
    assert layer_activation_bytes(split) * 8 == whole


def test_mixed_precision_adam_takes_eighteen_bytes_a_parameter_with_fp32_gradients():
    run = run_of("gpt2_xl")
    parts = parts_of(run)

    # 2 weight + 4 gradient + 4 master weight + 8 moments.
    state = parts["weights"] + parts["gradients"] + parts["optimizer state"]
    assert state == 18 * parameter_count(run.spec.model)


def test_without_master_weights_the_state_has_the_format_of_the_weights():
    run = run_of("gpt2_xl", "training.master=none", "training.gradient_dtype=bf16")
    parts = parts_of(run)

    # 2 weight + 2 gradient + 2 for each of both moments.
    state = parts["weights"] + parts["gradients"] + parts["optimizer state"]
    assert state == 8 * parameter_count(run.spec.model)


@pytest.mark.parametrize(("dp", "a_weight"), [(1, 4), (2, 4 + 2)])
def test_buckets_in_the_format_of_weights_are_kept_besides_longer_gradients(dp, a_weight):
    run = run_of("gpt2_xl", stack=load_stack("nanotron"), dp=dp)

    assert parts_of(run)["gradients"] == a_weight * parameter_count(run.spec.model)


def test_queries_and_keys_that_are_rotated_in_place_are_kept_once():
    stack = load_stack("nanotron")
    habit = {FrameworkBehaviour.ROTATES_IN_PLACE}
    kept, once = (
        layer_activation_bytes(run_of("llama3_8b", stack=one))
        for one in (replace(stack, habits=stack.habits - habit), stack)
    )
    # 8,192 tokens, 32 query heads and 8 key heads of 128 numbers in bf16.
    assert kept - once == 8192 * (32 + 8) * 128 * 2


def test_muon_keeps_one_state_of_layers_and_two_of_both_ends():
    adam, muon = (
        parts_of(run_of("gpt2_xl", f"training.optimizer={one}")) for one in ("adam", "muon")
    )
    # 4 bytes less of each weight, bias and norm of 48 layers of width 1,600.
    layer = 12 * 1600**2 + 13 * 1600
    assert adam["optimizer state"] - muon["optimizer state"] == 4 * 48 * layer


def test_full_sharding_divides_weights_gradients_and_state():
    run = run_of("gpt2_xl", "parallel.sharding=full", dp=4)
    parts, elements = parts_of(run), parameter_count(run.spec.model)

    assert parts["weights"] == 2 * elements // 4
    assert parts["optimizer state"] == 12 * elements // 4
    assert parts["gathered layers"] > 0


def test_recompute_saves_memory():
    full, selective, none = (
        sum(parts_of(run_of("gpt2_xl", UNFUSED_CORE[0], f"training.recompute={word}")).values())
        for word in ("full", "selective", "none")
    )
    assert full < selective < none


def test_early_stages_hold_more_micro_batches():
    run = run_of("gpt3_175b", tp=8, pp=8, micro_batches=16, is_sequence_parallel=True)

    assert parts_of(run, 0)["activations"] == 8 * parts_of(run, 7)["activations"]


@pytest.mark.parametrize("name", ["llama3_8b", "llama3_70b"])
def test_every_rank_is_listed_and_names_its_largest_part(name):
    memory = memory_of(load_workload(name), rank_count=64, ranks_per_host=8)
    assert len(memory) == 64
    for of_rank in set(memory):
        assert of_rank.largest.size_bytes == max(part.size_bytes for part in of_rank.parts)
        assert of_rank.total_bytes < 80e9


# Logits in bf16 and a copy in fp32; or logarithms, their gradient and that of the logits in fp32.
@pytest.mark.parametrize(("stack", "a_logit"), [(FUSED, 2 + 4), (load_stack("nanotron"), 3 * 4)])
def test_a_loss_that_is_not_fused_keeps_three_copies_of_the_logits(stack, a_logit):
    run = run_of("gpt2_xl", stack=stack)

    logits = run.spec.sequence_length * run.spec.model.vocab
    assert parts_of(run)["logits"] == a_logit * logits


def test_what_a_sequence_parallel_layer_gathers_is_not_divided():
    run = run_of("gpt2_xl", tp=5, is_sequence_parallel=True)

    gathered = parts_of(run)["gathered activations"]
    assert gathered == 3 * run.spec.sequence_length * run.spec.model.hidden * 2


def test_frozen_weights_in_a_narrow_format_are_stored_once():
    words = {"adapters_only": True, "compute": "fp8"}
    memory = memory_of(tiny(training=words), rank_count=1, ranks_per_host=1)[0]
    parts = {part.name: part.size_bytes for part in memory.parts}
    # Four layers of 128 + 64 + 384 + 192 weights in fp8; norms, embedding and head in bf16.
    assert parts["weights cast for products"] == 4 * 768
    assert parts["weights"] == 2 * (4 * 16 + 2 * 80 + 8)


def test_activations_that_wait_in_host_memory_take_none_of_the_gpu():
    none, half, all_of_them = (
        parts_of(run_of("llama3_8b", f"training.offload_layers={layers}"))["activations"]
        for layers in (0, 16, 32)
    )
    assert (half, all_of_them) == (none // 2, 0)


def test_state_that_is_on_the_host_takes_none_of_the_gpu():
    none, half, whole = (
        parts_of(run_of("llama3_8b", f"training.offload_optimizer={share}"))["optimizer state"]
        for share in (0.0, 0.5, 1.0)
    )
    assert (half, whole) == (none // 2, 0)


def test_parts_that_are_recomputed_are_not_kept():
    block, _ = zip(*counted_blocks(load_workload("deepseek_v3").model), strict=True)
    layer = {
        part: layer_activation_bytes(run_of("deepseek_v3", *words), block[part != "mlp"])
        for part, words in {
            "none": (), **{one: (f"training.recompute_modules=[{one}]",) for one in
                           ("mla_up_proj", "moe_act", "moe", "layernorm", "mlp")},
        }.items()
    }  # fmt: skip
    tokens, dense = 4096, layer_activation_bytes(run_of("deepseek_v3"))
    # Queries of 128 heads of 192, keys and values of 128 heads of 128 each, in bf16.
    assert layer["none"] - layer["mla_up_proj"] == 2 * tokens * 128 * (192 + 2 * 128)
    # Eight experts per token, of width 2,048; of all of the experts also their input and gate.
    assert layer["none"] - layer["moe_act"] == 2 * 8 * tokens * 2048
    assert layer["none"] - layer["moe"] == 2 * 8 * tokens * (7168 + 2048 + 2 * 2048)
    assert layer["none"] - layer["layernorm"] == 2 * 2 * tokens * 7168
    # A dense layer of width 18,432.
    assert dense - layer["mlp"] == 2 * tokens * (2 * 18432 + 18432)
