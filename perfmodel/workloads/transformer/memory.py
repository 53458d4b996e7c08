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
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.mixers.mixer import LATENT, Mixing
from perfmodel.workloads.transformer.mixers.table import MIXERS
from perfmodel.workloads.transformer.model import Block, blocks_of, counted_blocks
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


_LayerSizes = dict[tuple[Block, Recompute], int]
"""Bytes that a layer keeps for its backward pass, by what it is made of and by recompute."""


def _layer_sizes(run: TransformerRun) -> _LayerSizes:
    return {
        (block, way): layer_activation_bytes(run, block, recompute=way)
        for block in dict.fromkeys(blocks_of(run.spec.model))
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
        shapes = LayerShapes(spec.model, layout)
        trained = shapes.total(stage, lambda shape: sum(shape.adapter_tensors(training)))
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
    is_planned = run.stack.has(FrameworkBehaviour.PLANNED_MEMORY)
    fragment_bytes = 0 if is_planned else round(activation_bytes * _FRAGMENTED_RATIO)
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
    is_longer = size > training.weight_dtype.size_bytes and run.layout.weight_copies > 1
    if is_longer and run.stack.has(FrameworkBehaviour.WEIGHT_BUCKETS):
        # Buckets in the format of the weights are summed up in longer gradients.
        size += training.weight_dtype.size_bytes
    gradients, state = elements * size, 0
    if training.optimizer != NO_OPTIMIZER:
        stored = training.state_dtype.size_bytes
        has_master = training.weight_dtype.size_bytes < stored
        kept = round(elements * (1 - training.offload_optimizer))
        state = kept * (has_master + load_optimizers()[training.optimizer].states) * stored
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
    shapes = LayerShapes(run.spec.model, run.layout)
    layer = max(shapes.shape(one).all_parameters for one, _ in counted_blocks(run.spec.model))
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
    blocks = blocks_of(model)
    of_run = [
        sum(sizes[blocks[n], ways[training.recomputes(n)]] for n in layers if n not in offloaded)
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
    # One layer at a time is computed again: the one that this costs most.
    return total + max(
        sizes[blocks[n], Recompute.NONE] - sizes[blocks[n], training.recompute] for n in every
    )


def layer_activation_bytes(
    run: TransformerRun, block: Block | None = None, *, recompute: Recompute = Recompute.NONE
) -> int:
    """Bytes that a layer keeps per micro-batch for its backward pass under *recompute*.

    Left out, *block* is that of the first layer.
    """
    block = block or blocks_of(run.spec.model)[0]
    model, size, tokens, share = block.model, run.dtype.size_bytes, run.tokens, run.split_ranks
    shape, mixer = LayerShapes(run.spec.model, run.layout).shape(block), MIXERS[block.mixer]
    mixing = Mixing(LinearSteps(run, tokens), model, shape.mixer)
    residual, numbers = run.residual_dtype.size_bytes, tokens * model.hidden
    if recompute is Recompute.FULL:
        return numbers * residual // share + _saved_bytes(run, shape)
    # The input of a GEMM is kept in its format, the output in that of activations.
    dtype = run.spec.training.gemm_dtype
    # Inputs of both norms, of the qkv and of the up GEMM. A frozen GEMM needs no input backward.
    is_trained, parts = not run.spec.training.adapters_only, len(shape.norms)
    is_kept = is_trained or run.spec.training.adapter_places is AdapterPlaces.ALL
    whole = parts * residual * numbers + (parts - 1 + is_kept) * dtype.bytes_of(numbers)
    if model.dropout:
        whole += parts * numbers  # masks, one byte per number
    # Outputs of qkv and up, inputs of the projection and of the down GEMM.
    up, down = (shape.up.outputs, shape.down.inputs) if shape.up and shape.down else (0, 0)
    split = size * tokens * (shape.mixer.outputs + mixer.copied_width(mixing))
    split += size * tokens * _gated_width(run, shape)
    split += (1 if not is_trained and _stores_narrow(run) else size) * tokens * up
    split += dtype.bytes_of(tokens * (shape.mixer.core_outputs + is_kept * down))
    if shape.experts is not None:
        split += _routed_bytes(run, shape.experts)
    if recompute is Recompute.OPS:
        # The outputs of the core and of every second GEMM; the rest is recomputed from them.
        again = shape.every_second(is_gated=model.gated_ffn)
        lost = sum(one.outputs for name, one in again.items() if name != "attention/projection")
        whole = residual * numbers * parts
        split = size * tokens * (shape.mixer.core_outputs + shape.mixer.outputs + up - lost)
    else:
        split -= _dropped_bytes(run, shape)
    return whole // share + split + mixer.score_bytes(mixing, recompute)


def _saved_bytes(run: TransformerRun, shape: LayerShape) -> int:
    """Outputs that a recomputed layer keeps."""
    widths = {
        SavedOutput.QKV: shape.mixer.outputs,
        SavedOutput.CORE: shape.mixer.core_outputs,
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
    if RecomputedPart.LATENT in parts and LATENT in shape.mixer.whole:
        inputs = shape.mixer.inputs.items()
        dropped += (
            size
            * tokens
            * sum(one.outputs for name, one in inputs if name not in shape.mixer.whole)
        )
    if RecomputedPart.NORMS in parts:
        dropped += (
            len(shape.norms) * dtype.bytes_of(tokens * run.spec.model.hidden) // run.split_ranks
        )
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


def _gated_width(run: TransformerRun, shape: LayerShape) -> int:
    """Numbers per token of a gate that is not fused: it is also kept after its activation."""
    is_copied = run.spec.model.gated_ffn and not (run.fuses_pointwise or run.fuses_activation)
    return shape.down.inputs if shape.down and is_copied else 0


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
