"""The memory of a Transformer rank: weights, gradients, optimizer state, activations.

Activations are counted tensor by tensor as the backward pass needs them.
Leaves out: temporary buffers inside kernels.
Source of the counting: Korthikanti et al., arXiv 2205.05198, extended to gated
and grouped-query layers.
"""

from __future__ import annotations

from itertools import chain

from perfmodel.base.dtypes import BITS_PER_BYTE
from perfmodel.graph.job import RUNTIME_BYTES, MemoryPart, RankMemory
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.optimizers import NO_OPTIMIZER, load_optimizers
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE
from perfmodel.workloads.kernels import FP32_BYTES
from perfmodel.workloads.transformer.experts import routed_rows
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedules import most_kept, turns_ahead
from perfmodel.workloads.transformer.shapes import (
    ExpertShape,
    LayerShape,
    LayerShapes,
    end_parameters,
    stage_expert_parameters,
    stage_parameters,
)
from perfmodel.workloads.transformer.words import (
    AdapterPlaces,
    AttentionKernel,
    Positions,
    Recompute,
    RecomputedPart,
    SavedOutput,
)

_SPLIT = "Try --set parallel.sharding=zero3, more tp or pp, or more hosts: `perfmodel search`."
_SEARCH = "Use more hosts, or ask `perfmodel search` for layouts that fit."
_ADVICE = dict.fromkeys(
    ("activations", "logits"),
    "Try --set training.recompute=full, a smaller parallel.micro_batch or more tp.",
) | dict.fromkeys(("weights", "gradients", "optimizer state"), _SPLIT)
_GATHERED_LAYERS = 2
_FRAGMENTED_RATIO = 0.1
"""Fragmentation between activations, and short-lived tensors of a backward pass: from runs that
state their peak and from runs that ran out of memory (`validate fits`)."""
_GATHERED_ACTIVATIONS = 3
"""Tensors of all tokens that a layer split along the sequence holds at once in its backward pass:
the gathered input of a GEMM, the gathered gradient of its output, and that of the input."""
_LOSS_COPIES = 3
"""Copies of the logits in fp32 when their gradient is made: the logarithms of their shares, the
gradient of these, and that of the logits. The logits themselves are freed after the cast."""


def memory_of_stages(run: TransformerRun) -> tuple[RankMemory, ...]:
    """The peak of a rank of every stage."""
    sizes = _layer_sizes(run)
    return tuple(_stage_memory(run, stage, sizes) for stage in range(run.layout.pp))


_LayerSizes = dict[tuple[bool, Recompute], int]
"""Bytes that a layer keeps for its backward pass, by whether it has experts and by recompute."""


def _layer_sizes(run: TransformerRun) -> _LayerSizes:
    return {
        (is_expert, way): layer_activation_bytes(run, recompute=way, is_expert=is_expert)
        for is_expert in {False, run.spec.model.has_experts}
        for way in {Recompute.NONE, run.spec.training.recompute}
    }


def _stage_memory(run: TransformerRun, stage: int, sizes: _LayerSizes) -> RankMemory:
    spec, layout, training = run.spec, run.layout, run.spec.training
    weight_size = training.weight_dtype.size_bytes
    held = stage_parameters(spec.model, layout, stage=stage)
    experts = stage_expert_parameters(spec.model, layout, stage=stage)
    if not run.has_separate_experts:
        held, experts = held + experts, 0
    trained = held
    if training.adapters_only:
        layers = layout.layer_count(spec.model.layers, stage=stage)
        trained = sum(run.shape.adapter_tensors(training)) * layers
    is_sharded = spec.parallel.sharding.divides_weights
    gradient_bytes, state_bytes = _trained_bytes(run, trained, layout.shard_ranks)
    optimizer = load_optimizers().get(training.optimizer)
    if optimizer is not None and optimizer.ends:
        states = load_optimizers()[optimizer.ends].states - optimizer.states
        more = end_parameters(spec.model, layout, stage=stage) * states * FP32_BYTES
        state_bytes += more // (layout.shard_ranks if spec.parallel.sharding.divides_state else 1)
    # Experts that are spread separately from the rest.
    expert_bytes = experts * weight_size // (layout.expert_copies if is_sharded else 1)
    expert_bytes += sum(_trained_bytes(run, experts, layout.expert_copies))
    activation_bytes = _activation_bytes(run, stage, sizes)
    fragment_bytes = round(activation_bytes * _FRAGMENTED_RATIO)
    # Weights that are only multiplied in a narrow format may be stored only in that format.
    cast_bytes = _cast_bytes(run, stage)
    weight_bytes = held * weight_size
    if _stores_narrow(run) or (training.adapters_only and training.gemm_dtype.is_quantised):
        weight_bytes = max(weight_bytes - _multiplied(run, stage) * weight_size, 0)
    parts = {
        "weights": weight_bytes // (layout.shard_ranks if is_sharded else 1),
        "weights cast for products": cast_bytes,
        "gradients": gradient_bytes,
        "optimizer state": state_bytes,
        "activations": activation_bytes,
        **({"experts": expert_bytes} if expert_bytes else {}),
        "logits": _logit_bytes(run) if stage == layout.last_stage else 0,
        "gathered layers": _gathered_bytes(run, held) if is_sharded else 0,
        "gathered activations": _split_bytes(run),
        "fragments between activations": fragment_bytes,
        "runtime and buffers": RUNTIME_BYTES,
    }
    return RankMemory(
        tuple(MemoryPart(name, size, _ADVICE.get(name, _SEARCH)) for name, size in parts.items())
    )


def _stores_narrow(run: TransformerRun) -> bool:
    """Whether the stack stores what is multiplied in eight bits in them alone."""
    is_narrow = run.spec.training.gemm_dtype.size_bits == BITS_PER_BYTE
    return is_narrow and run.stack.has(FrameworkBehaviour.NARROW_STORAGE)


def _trained_bytes(run: TransformerRun, elements: int, shares: int) -> tuple[int, int]:
    """Gradients and optimizer state of trained *elements* that *shares* ranks may divide.

    Stages of a pipeline keep what they gathered, and its gradients, until the iteration ends.
    """
    training, sharding = run.spec.training, run.spec.parallel.sharding
    size = training.gradient_dtype.size_bytes
    if run.stack.has(FrameworkBehaviour.WEIGHT_BUCKETS) and run.layout.weight_copies > 1:
        # Buckets in the format of the weights are summed up in longer gradients.
        size += training.weight_dtype.size_bytes
    gradients, state = elements * size, 0
    if training.optimizer != NO_OPTIMIZER:
        has_master = training.weight_dtype.size_bytes < FP32_BYTES
        kept = round(elements * (1 - training.offload_optimizer))
        state = kept * (has_master + load_optimizers()[training.optimizer].states) * FP32_BYTES
    return (
        gradients // (shares if sharding.divides_gradients and run.layout.pp == 1 else 1),
        state // (shares if sharding.divides_state else 1),
    )


def _cast_bytes(run: TransformerRun, stage: int) -> int:
    """Copies of weights that live from the forward to the backward pass."""
    training = run.spec.training
    if not (training.gemm_dtype.is_quantised or training.is_autocast):
        return 0
    elements = _multiplied(run, stage)
    if training.gemm_dtype.is_quantised:
        return training.gemm_dtype.bytes_of(elements) * (1 if training.adapters_only else 2)
    return elements * run.dtype.size_bytes


def _multiplied(run: TransformerRun, stage: int) -> int:
    """Weights of a stage's layers that are multiplied, of those that a rank holds at a time."""
    shapes = LayerShapes(run.spec.model, run.layout).of_stage(stage)
    if run.spec.parallel.sharding.divides_weights and run.layout.pp == 1:
        shapes = shapes[-_GATHERED_LAYERS:]
    return sum(
        sum(linear.weight for linear in shape.linears.values()) + sum(shape.expert_tensors)
        for shape in shapes
    )


def _gathered_bytes(run: TransformerRun, held: int) -> int:
    training, size = run.spec.training, run.dtype.size_bytes
    if run.layout.pp > 1:
        return held * size
    layer = LayerShapes(run.spec.model, run.layout).of_experts.all_parameters
    gradient = 0 if training.adapters_only else training.gradient_dtype.size_bytes
    return layer * (_GATHERED_LAYERS * size + gradient)


def _activation_bytes(run: TransformerRun, stage: int, sizes: _LayerSizes) -> int:
    training, model, layout = run.spec.training, run.spec.model, run.layout
    runs = layout.interleaving
    # Of two turns that a stage works on together, one frees what the other keeps.
    turns = turns_ahead(layout, stage) + (not layout.runs_beside)
    in_flight = min(max(turns, 1), layout.micro_batches * runs)
    of_runs = layout.layer_runs(model.layers, stage=stage)
    ways = {True: training.recompute, False: Recompute.NONE}
    offloaded = set([*chain.from_iterable(of_runs)][: training.offload_layers])
    of_run = [
        sum(
            sizes[model.is_expert_layer(n), ways[training.recomputes(n)]]
            for n in layers
            if n not in offloaded
        )
        for layers in of_runs
    ]
    if layout.schedule != DEFAULT_SCHEDULE:
        total = most_kept(layout, stage, of_run)
    else:
        # Turns rotate over the runs: each is in flight equally often, the first ones once more.
        total = sum(
            size * (in_flight // runs + (number < in_flight % runs))
            for number, size in enumerate(of_run)
        )
    every = [*chain.from_iterable(of_runs)]
    if not any(map(training.recomputes, every)):
        return total
    is_expert = any(map(model.is_expert_layer, every))
    return total + sizes[is_expert, Recompute.NONE] - sizes[is_expert, training.recompute]


def layer_activation_bytes(
    run: TransformerRun, *, recompute: Recompute = Recompute.NONE, is_expert: bool = False
) -> int:
    """Bytes that one layer keeps per micro-batch for its backward pass under *recompute*."""
    model, size, tokens, share = run.spec.model, run.dtype.size_bytes, run.tokens, run.split_ranks
    shapes = LayerShapes(model, run.layout)
    shape = shapes.of_experts if is_expert else shapes.dense
    residual, numbers = run.residual_dtype.size_bytes, tokens * model.hidden
    if recompute is Recompute.FULL:
        return numbers * residual // share + _saved_bytes(run, shape)
    # The input of a GEMM is kept in its format, the output in that of activations.
    dtype = run.spec.training.gemm_dtype
    # Inputs of both norms, of the qkv and of the up GEMM. A frozen GEMM needs no input backward.
    is_trained = not run.spec.training.adapters_only
    is_kept = is_trained or run.spec.training.adapter_places is AdapterPlaces.ALL
    whole = 2 * residual * numbers + (1 + is_kept) * dtype.bytes_of(numbers)
    if model.dropout:
        whole += 2 * numbers  # masks, one byte per number
    # Outputs of qkv and up, inputs of the projection and of the down GEMM.
    up, down = (shape.up.outputs, shape.down.inputs) if shape.up and shape.down else (0, 0)
    split = size * tokens * (shape.attention_outputs + _copied_widths(run, shape))
    split += (1 if not is_trained and _stores_narrow(run) else size) * tokens * up
    split += dtype.bytes_of(tokens * (shape.projection.inputs + is_kept * down))
    if shape.experts is not None:
        split += _routed_bytes(run, shape.experts)
    if recompute is Recompute.OPS:
        # The outputs of the core and of every second GEMM; the rest is recomputed from them.
        again = shape.every_second(is_gated=model.gated_ffn)
        lost = sum(one.outputs for name, one in again.items() if name != "attention/projection")
        whole = residual * numbers * 2
        split = size * tokens * (shape.projection.inputs + shape.attention_outputs + up - lost)
    else:
        split -= _dropped_bytes(run, shape)
    return whole // share + split + _score_bytes(run, recompute)


def _saved_bytes(run: TransformerRun, shape: LayerShape) -> int:
    """Outputs that a recomputed layer keeps."""
    widths = {
        SavedOutput.QKV: shape.attention_outputs,
        SavedOutput.CORE: shape.projection.inputs,
        SavedOutput.PROJECTION: run.spec.model.hidden,
        SavedOutput.UP: shape.up.outputs if shape.up else 0,
    }
    saved = sum(widths.get(one, 0) for one in run.spec.training.saved_outputs)
    return saved * run.tokens * run.dtype.size_bytes


def _dropped_bytes(run: TransformerRun, shape: LayerShape) -> int:
    """Bytes that a layer does not keep because the parts that make them are recomputed."""
    training, size, tokens = run.spec.training, run.dtype.size_bytes, run.tokens
    parts, dtype, dropped = training.recompute_modules, training.gemm_dtype, 0
    is_again = RecomputedPart.SHARED_EXPERTS if shape.experts else RecomputedPart.DENSE_FFN
    if is_again in parts and shape.up and shape.down:
        dropped += size * tokens * shape.up.outputs + dtype.bytes_of(tokens * shape.down.inputs)
    if RecomputedPart.LATENT in parts and shape.keys is not None:
        dropped += size * tokens * (shape.qkv.outputs + shape.keys.outputs)
    if RecomputedPart.NORMS in parts:
        dropped += 2 * dtype.bytes_of(tokens * run.spec.model.hidden) // run.split_ranks
    if shape.experts is not None and RecomputedPart.EXPERTS in parts:
        dropped += _routed_bytes(run, shape.experts)
    elif shape.experts is not None and RecomputedPart.EXPERT_ACTIVATION in parts:
        dropped += dtype.bytes_of(_routed_rows(run) * shape.experts.down.inputs)
    return dropped


def _routed_rows(run: TransformerRun) -> int:
    """Rows that the experts of the most loaded rank work on."""
    tokens, layout = run.tokens // run.split_ranks, run.layout
    return routed_rows(run.spec, tokens=tokens, ep=layout.ep) * layout.etp


def _routed_bytes(run: TransformerRun, shape: ExpertShape) -> int:
    """Bytes that experts keep of the tokens routed to them, on the most loaded rank."""
    rows = _routed_rows(run)
    # Inputs of both GEMMs in their format, the output of the first in that of activations.
    kept = run.spec.training.gemm_dtype.bytes_of(rows * (shape.up.inputs + shape.down.inputs))
    return kept + rows * shape.up.outputs * run.dtype.size_bytes


def _copied_widths(run: TransformerRun, shape: LayerShape) -> int:
    """Numbers per token that are kept twice.

    Rotated queries and keys are kept besides the output of the qkv GEMM, which the values still
    need; a gate that is not fused is also kept after its activation.
    """
    model, width = run.spec.model, 0
    if run.fuses_pointwise:
        return 0
    is_kept = not run.stack.has(FrameworkBehaviour.ROTATES_IN_PLACE)
    if model.positions is not Positions.LEARNED and is_kept:
        width = (shape.heads + shape.kv_heads) * model.head_width
    if model.gated_ffn and not run.fuses_activation and shape.down:
        width += shape.down.inputs
    return width


def _score_bytes(run: TransformerRun, recompute: Recompute) -> int:
    """Bytes of attention scores: none per pair in a flash kernel or if recomputed."""
    length, size = run.spec.sequence_length, run.dtype.size_bytes
    sequences = run.layout.micro_batch * (run.spec.model.heads // run.layout.tp)
    is_unfused = run.spec.training.attention is AttentionKernel.UNFUSED
    if not is_unfused or recompute is not Recompute.NONE:
        return FP32_BYTES * sequences * length // run.layout.cp
    return (size + (size + 1 if run.spec.model.dropout else 0)) * sequences * length**2


def _split_bytes(run: TransformerRun) -> int:
    """Short-lived gathered tensors of a layer that is split along the sequence."""
    if not run.layout.is_sequence_parallel:
        return 0
    return _GATHERED_ACTIVATIONS * run.tokens * run.spec.model.hidden * run.dtype.size_bytes


def _logit_bytes(run: TransformerRun) -> int:
    # A fused loss works in place, in a cast of the logits.
    size = run.dtype.size_bytes + FP32_BYTES if run.fuses_loss else _LOSS_COPIES * FP32_BYTES
    heads = 1 + run.spec.model.mtp_layers
    return heads * run.predicted_tokens * -(-run.spec.model.vocab // run.layout.tp) * size
