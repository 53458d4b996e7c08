"""Memory of Transformer ranks."""

from __future__ import annotations

import pytest

from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.memory import layer_activation_bytes, memory_of_stages
from tests.workloads.reading import memory_of, parameter_count

ONE_RANK = Layout(tp=1, pp=1, dp=1, micro_batch=1, micro_batches=1)


def _part(memory, name: str) -> int:
    return next(part.size_bytes for part in memory.parts if part.name == name)


def test_activations_of_a_gpt_layer_are_as_published():
    spec = load_workload("gpt3_175b", ["training.attention=unfused", "training.recompute=none"])
    s, h, a = 2048, 12288, 96
    # Korthikanti et al., equation 1: s b h (34 + 5 a s / h).
    assert layer_activation_bytes(spec, ONE_RANK) == 34 * s * h + 5 * a * s * s


def test_sequence_parallelism_divides_all_of_them():
    spec = load_workload("gpt3_175b", ["training.attention=unfused", "training.recompute=none"])
    layout = Layout(tp=8, pp=1, dp=1, micro_batch=1, micro_batches=1, is_sequence_parallel=True)
    whole = layer_activation_bytes(spec, ONE_RANK)
    assert layer_activation_bytes(spec, layout) * 8 == whole


def test_mixed_precision_adam_takes_eighteen_bytes_a_parameter_with_fp32_gradients():
    spec = load_workload("gpt2_xl")
    memory = memory_of_stages(spec, ONE_RANK)[0]
    elements = parameter_count(spec.model)
    state = sum(_part(memory, name) for name in ("weights", "gradients", "optimizer state"))
    # 2 weight + 4 gradient + 4 master weight + 8 moments.
    assert state == 18 * elements


def test_full_sharding_divides_weights_gradients_and_state():
    layout = Layout(tp=1, pp=1, dp=4, micro_batch=1, micro_batches=1)
    spec = load_workload("gpt2_xl", ["parallel.sharding=full"])
    memory = memory_of_stages(spec, layout)[0]
    elements = parameter_count(spec.model)
    assert _part(memory, "weights") == 2 * elements // 4
    assert _part(memory, "optimizer state") == 12 * elements // 4
    assert _part(memory, "gathered layers") > 0


def test_recompute_saves_memory():
    needs = {
        recompute: memory_of_stages(
            load_workload(
                "gpt2_xl", [f"training.recompute={recompute}", "training.attention=unfused"]
            ),
            ONE_RANK,
        )[0].total_bytes
        for recompute in ("none", "selective", "full")
    }
    assert needs["full"] < needs["selective"] < needs["none"]


def test_early_stages_hold_more_micro_batches():
    spec = load_workload("gpt3_175b")
    layout = Layout(tp=8, pp=8, dp=1, micro_batch=1, micro_batches=16, is_sequence_parallel=True)
    first, *_, last = memory_of_stages(spec, layout)
    assert _part(first, "activations") == 8 * _part(last, "activations")


@pytest.mark.parametrize("name", ["llama3_8b", "llama3_70b"])
def test_every_rank_is_listed_and_names_its_largest_part(name):
    memory = memory_of(load_workload(name), rank_count=64, ranks_per_host=8)
    assert len(memory) == 64
    for of_rank in set(memory):
        assert of_rank.largest.size_bytes == max(part.size_bytes for part in of_rank.parts)
        assert of_rank.total_bytes < 80e9


def test_a_loss_that_is_not_fused_keeps_four_copies_of_the_logits():
    spec, stack = load_workload("gpt2_xl"), load_stack("nanotron")
    fused, apart = (memory_of_stages(spec, ONE_RANK, stack=one)[0] for one in (None, stack))
    logits = spec.sequence_length * spec.model.vocab
    # Logits in bf16 beside two copies in fp32, or beside four.
    assert _part(fused, "logits") == (2 + 8) * logits
    assert _part(apart, "logits") == (2 + 16) * logits


def test_what_a_sequence_parallel_layer_gathers_is_not_divided():
    spec = load_workload("gpt2_xl")
    layout = Layout(tp=5, pp=1, dp=1, micro_batch=1, micro_batches=1, is_sequence_parallel=True)
    gathered = _part(memory_of_stages(spec, layout)[0], "gathered activations")
    assert gathered == 3 * spec.sequence_length * spec.model.hidden * 2
