"""Layers of several kinds: patterns of blocks, and the laws of every kind of mixer."""

from __future__ import annotations

import pytest

from perfmodel.api import Scenario, predict
from perfmodel.base.errors import WorkloadError
from perfmodel.graph.ops import Attention, Pass, Unmeasured
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.layers import LayerKind, build_layer_steps
from perfmodel.workloads.transformer.memory import layer_activation_bytes
from perfmodel.workloads.transformer.mixers.mixer import INPUTS, QKV
from perfmodel.workloads.transformer.mixers.table import MIXERS
from perfmodel.workloads.transformer.model import blocks_of, commonest_block, counted_blocks
from perfmodel.workloads.transformer.shapes import count_flops, count_parameters, layer_shape
from perfmodel.workloads.transformer.words import FeedForward, Mixer, Recompute
from tests.workloads.reading import job_of, ops_of, tiny
from tests.workloads.transformer.test_memory import run_of

LINEAR = "linear(heads=32, kv_heads=16, head_dim=128)/dense"
MAMBA = "state_space(heads=128, head_dim=64, kv_heads=8, state_size=128)/dense"
SPARSE = "sparse(index_heads=4, index_top_k=1024)/dense"
LATENT = ("model.kv_lora_rank=512", "model.rope_dim=64", "model.pattern=latent/dense")
OF_KIND = {
    Mixer.FULL: ("model.pattern=full/dense",),
    Mixer.WINDOWED: ("model.pattern=windowed(window=512)/dense",),
    Mixer.LATENT: LATENT,
    Mixer.SPARSE: (f"model.pattern={SPARSE}",),
    Mixer.LINEAR: (f"model.pattern={LINEAR}",),
    Mixer.STATE_SPACE: (f"model.pattern={MAMBA}",),
    Mixer.NONE: ("model.pattern=none/dense",),
}
RECURRENT = (Mixer.LINEAR, Mixer.STATE_SPACE)


def llama(*overrides):
    return load_workload("llama3_8b", list(overrides))


def core_flops(kind, length):
    [block, *_] = blocks_of(llama(*OF_KIND[kind]).model)
    return MIXERS[block.mixer].core_flops(block.model, length=length, together=length)


def steps_of(*overrides):
    run = run_of("llama3_8b", "training.recompute=none", *overrides)
    return build_layer_steps(run, LayerKind(commonest_block(run.spec.model)))


def test_every_kind_of_mixer_has_a_case_here():
    assert set(OF_KIND) == set(MIXERS) == set(Mixer)


def test_a_pattern_is_repeated_until_all_layers_have_a_block():
    model = llama(
        "model.pattern=3 x windowed(window=512)/dense + full/dense", "model.layers=6"
    ).model
    kinds = [block.mixer.value for block in blocks_of(model)]
    assert kinds == ["windowed", "windowed", "windowed", "full", "windowed", "windowed"]
    assert sum(count for _, count in counted_blocks(model)) == 6


def test_a_word_has_fields_of_its_own_and_leaves_those_of_the_others():
    [first, second] = blocks_of(
        llama("model.pattern=full(kv_heads=4)/dense(ffn=1024) + full/dense", "model.layers=2").model
    )
    assert (first.model.key_heads, first.model.ffn) == (4, 1024)
    assert (second.model.key_heads, second.model.ffn) == (8, 14336)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("full", "must list blocks such as"),
        ("foo/dense", "must be made of full, windowed"),
        ("windowed/dense", "needs window"),
        ("full(kv_heads=5)/dense", "heads must be divisible by kv_heads"),
        ("full(kv_heads=many)/dense", "kv_heads Input should be a valid integer"),
        ("full(colour=5)/dense", "colour Extra inputs are not permitted"),
        ("full/experts", "must have layers of experts if there are several"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(pattern, message):
    with pytest.raises(WorkloadError, match=message.replace("(", r"\(")):
        llama(f"model.pattern={pattern}")


def test_a_pattern_beside_the_words_it_replaces_is_refused():
    with pytest.raises(WorkloadError, match="pattern says what dense_layers would"):
        llama("model.pattern=full/dense", "model.dense_layers=2")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("model.pattern=5 x full/dense", ()),
        (
            "model.pattern=windowed(window=1024)/dense + full/dense",
            ("model.window=1024", "model.window_every=2"),
        ),
    ],
)
def test_a_pattern_equals_the_words_that_say_the_same_to_the_nanosecond(pattern, words):
    short = ("model.layers=4", "batch=64", "parallel.pp=2")
    one, other = (
        predict(Scenario(topology="dgx_h100", workload="llama3_8b", overrides=(*short, *said)))
        for said in ((pattern,), words)
    )
    assert one.iteration_ns == other.iteration_ns
    assert repr(one.memory) == repr(other.memory)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_mixer_with_a_state_is_linear_in_the_length_and_its_state_is_not(kind):
    assert core_flops(kind, 8192) == 8 * core_flops(kind, 1024)

    def scan(length):
        steps = steps_of(*OF_KIND[kind], f"sequence_length={length}", "model.max_positions=9000")
        ops = [op for step in steps.forward for op in step.kernels]
        [found] = [op for op in ops if isinstance(op, Unmeasured)]
        return found

    short, long = scan(1024), scan(8192)
    for name in ("flops", "read_bytes", "write_bytes", "steps"):
        assert getattr(long, name) == 8 * getattr(short, name)
    [block, *_] = blocks_of(llama(*OF_KIND[kind]).model)
    # 32 heads of 128 by 128 numbers, or 128 heads of 64 by 128, in fp32.
    state = {Mixer.LINEAR: 32 * 128 * 128 * 4, Mixer.STATE_SPACE: 128 * 64 * 128 * 4}[kind]
    assert MIXERS[kind].state_bytes(block.model, tp=1) == state
    assert MIXERS[kind].state_bytes(block.model, tp=4) == state // 4


@pytest.mark.parametrize("length", [512, 1024, 1500, 2048, 8192])
def test_sparse_attention_is_bounded_by_what_it_may_choose_and_by_all_tokens(length):
    spec = (f"sequence_length={length}", "model.max_positions=9000")

    def core(kind):
        steps = steps_of(*OF_KIND[kind], *spec).forward
        [found] = [op for step in steps for op in step.kernels if isinstance(op, Attention)]
        return found

    sparse, full = core(Mixer.SPARSE), core(Mixer.FULL)
    assert sparse.flops <= full.flops
    assert sparse.flops <= 4 * 32 * length * 1024 * 128


def test_a_delta_rule_by_hand():
    # One head of 2 by 4 numbers, chunks of 3: K K', Q K' and both products of the inverse with
    # keys are 6 x 2 x 3, those with values 4 x 4 x 3; the inverse 2 x 9 / 3; the state 6 x 2 x 4.
    model = tiny(
        pattern="linear(heads=1, kv_heads=1, head_dim=2, value_dim=4, chunk=3)/dense"
    ).model
    [block, *_] = blocks_of(model)
    flops = 6 * 2 * 3 + 4 * 4 * 3 + 2 * 9 // 3 + 6 * 2 * 4
    assert MIXERS[Mixer.LINEAR].core_flops(block.model, length=5, together=5) == 5 * flops
    shape = layer_shape(block, tp=1).mixer
    # Query and key of 2, value and gate of 4, decay and correction of the head.
    assert shape.inputs[INPUTS].outputs == 2 + 2 + 4 + 4 + 2
    # Eight channels are convolved over 4 tokens; two numbers of the head, and a norm of 4.
    assert shape.extra == 8 * 4 + 2 + 4
    assert (shape.projection.inputs, shape.projection.outputs) == (4, 8)


def test_a_state_space_mixer_by_hand():
    # Two heads of 4, a state of 3 for each number, one group, chunks of 5.
    model = tiny(
        pattern="state_space(heads=2, kv_heads=1, head_dim=4, state_size=3, chunk=5)/none"
    ).model
    [block, *_] = blocks_of(model)
    # Into the state and out of it 4 x 3, a product inside chunks 2 x 5, and C B' of the group.
    flops = 2 * 4 * (4 * 3 + 2 * 5) + 2 * 5 * 3
    assert MIXERS[Mixer.STATE_SPACE].core_flops(block.model, length=7, together=7) == 7 * flops
    shape = layer_shape(block, tp=1)
    # Values and gates of 8 each, both matrices of 3, a step for each head.
    assert shape.mixer.inputs[INPUTS].outputs == 8 + 8 + 3 + 3 + 2
    # Fourteen channels over 4 tokens with a bias, three numbers per head, a norm of 8.
    assert shape.mixer.extra == 14 * 5 + 3 * 2 + 8
    # One norm, because there is no feed-forward network.
    assert shape.norms == (8,)
    assert shape.up is None


def test_an_indexer_by_hand():
    model = tiny(
        pattern="sparse(index_heads=3, index_dim=2, index_top_k=4)/dense", kv_lora_rank=4,
        q_lora_rank=6, rope_dim=2, kv_heads=4,
    ).model  # fmt: skip
    [block, *_] = blocks_of(model)
    inputs = layer_shape(block, tp=2).mixer.inputs
    # Whole on both ranks: 3 x 2 from the latent query, and from the token a key and 3 weights.
    assert (
        inputs["attention/index queries"].inputs,
        inputs["attention/index queries"].outputs,
    ) == (6, 6)
    assert (inputs["attention/index keys"].inputs, inputs["attention/index keys"].outputs) == (8, 5)
    # 16 tokens that see 4 of 4 heads (4 numbers to compare, 2 to mix), and 16 x 16 scores.
    assert MIXERS[Mixer.SPARSE].core_flops(block.model, length=16, together=16) == (
        2 * 16 * 4 * 4 * (4 + 2) + 2 * 256 * 3 * 2
    )


def test_experts_that_see_shorter_tokens_have_two_more_gemms_and_send_less():
    experts = {"experts": 4, "top_k": 2, "moe_ffn": 6}
    short = tiny(**experts, expert_hidden=4)
    shape = layer_shape(blocks_of(short.model)[0], tp=1).experts
    assert (shape.shorten.weight, shape.lengthen.weight) == (8 * 4, 4 * 8)
    assert (shape.up.inputs, shape.down.outputs) == (4, 4)
    whole = count_parameters(tiny(**experts).model) - count_parameters(short.model)
    # In 4 layers, 4 experts of a gated 6 lose half of their 3 x 8 x 6, and 64 weights come.
    assert whole == 4 * (4 * 3 * 4 * 6 - 64)


def test_what_a_gate_of_the_output_adds():
    gated, plain = (
        layer_shape(blocks_of(tiny(output_gate=one).model)[0], tp=1) for one in (True, False)
    )
    # 4 heads of 2.
    assert gated.mixer.inputs[QKV].outputs - plain.mixer.inputs[QKV].outputs == 8


@pytest.mark.parametrize("kind", OF_KIND)
@pytest.mark.parametrize("recompute", ["none", "attention", "ops", "full"])
def test_every_kind_can_be_built_kept_and_recomputed(kind, recompute):
    run = run_of("llama3_8b", *OF_KIND[kind], f"training.recompute={recompute}", tp=2,
                 is_sequence_parallel=True)  # fmt: skip
    block = commonest_block(run.spec.model)
    steps = build_layer_steps(run, LayerKind(block, is_recomputed=True))
    labels = [step.label for step in (*steps.forward, *steps.backward, *steps.recompute)]
    assert any("attention/" in label for label in labels) is (kind is not Mixer.NONE)
    assert layer_activation_bytes(run, block) > layer_activation_bytes(
        run, block, recompute=Recompute.FULL
    )
    flops = [
        sum(op.flops for step in part for op in step.kernels)
        for part in (steps.forward, steps.backward)
    ]
    assert flops[1] > 1.9 * flops[0]


def test_layers_of_all_kinds_make_one_sound_job():
    pattern = (
        "linear(heads=4, kv_heads=2, head_dim=2, chunk=4)/experts + none/dense + full/none"
        " + sparse(index_heads=2, index_top_k=4)/experts"
    )
    spec = tiny(pattern=pattern, experts=4, top_k=2, moe_ffn=6,
                parallel={"pp": 2, "ep": 2, "micro_batch": 1}, batch=8)  # fmt: skip
    job = job_of(spec, ranks=4)
    scans = [name for name, _ in ops_of(job, Unmeasured, "core")]
    # Four micro-batches of two data-parallel ranks, forward and backward.
    assert len(scans) == 4 * 2
    assert not ops_of(job, Attention, "layer 1/")


def test_operations_of_a_hybrid_are_the_sum_of_its_layers():
    def flops(pattern, layers):
        return count_flops(llama(f"model.pattern={pattern}", f"model.layers={layers}")).model_flops

    ends = 2 * flops("full/dense", 1) - flops("full/dense", 2)
    both = flops(f"{LINEAR} + full/dense", 2)
    assert both - ends == flops("full/dense", 1) - ends + flops(LINEAR, 1) - ends


def test_the_feed_forward_network_of_a_layer_may_be_missing():
    [block, *_] = blocks_of(llama("model.pattern=full/none").model)
    assert block.ffn is FeedForward.NONE
    steps = steps_of("model.pattern=full/none")
    assert not [step for step in steps.forward if step.label.startswith("ffn")]
    assert Pass.BACKWARD.value in steps.backward[0].label
