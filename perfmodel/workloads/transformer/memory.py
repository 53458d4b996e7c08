"""The memory of a Transformer rank: weights, gradients, optimizer state, activations.

Activations are counted tensor by tensor as the backward pass needs them.
Leaves out: temporary buffers inside kernels.
Source of the counting: Korthikanti et al., arXiv 2205.05198, extended to gated
and grouped-query layers.
"""

from __future__ import annotations

from itertools import chain

from perfmodel.graph.job import RUNTIME_BYTES, MemoryPart, RankMemory
from perfmodel.stacks.capabilities import Fusion
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.kernels import FP32_BYTES, STATES
from perfmodel.workloads.transformer.experts import routed_rows
from perfmodel.workloads.transformer.layout import Layout, has_separate_experts, turns_ahead
from perfmodel.workloads.transformer.shapes import (
    ExpertShape,
    LayerShape,
    LayerShapes,
    layer_shape,
    stage_expert_parameters,
    stage_parameters,
)
from perfmodel.workloads.transformer.spec import (
    AttentionKernel,
    Positions,
    Recompute,
    TransformerSpec,
)

_GATHERED_LAYERS = 2
_FRAGMENTED_RATIO = 0.2
"""Fragmentation between activations, and short-lived tensors of a backward pass: from runs that
state their peak and from runs that ran out of memory (`validate fits`)."""
_GATHERED_ACTIVATIONS = 3
"""Tensors of all tokens that a layer split along the sequence holds at once in its backward pass:
the gathered input of a GEMM, the gathered gradient of its output, and that of the input."""
_FUSED_LOSS_COPIES, _LOSS_COPIES = 2, 4
"""Copies of the logits in fp32: as cast, shifted and exponentiated, and their gradient; a fused
loss works in place."""


def memory_of_stages(
    spec: TransformerSpec, layout: Layout, *, stack: SoftwareStack | None = None
) -> tuple[RankMemory, ...]:
    """The peak of a rank of every stage under *stack*; without one, everything is fused."""
    sizes = {
        (is_expert, way): layer_activation_bytes(
            spec, layout, recompute=way, stack=stack, is_expert=is_expert
        )
        for is_expert in {False, spec.model.has_experts}
        for way in {Recompute.NONE, spec.training.recompute}
    }
    return tuple(_stage_memory(spec, layout, stage, stack, sizes) for stage in range(layout.pp))


_LayerSizes = dict[tuple[bool, Recompute], int]
"""Bytes that a layer keeps for its backward pass, by whether it has experts and by recompute."""


def _stage_memory(
    spec: TransformerSpec,
    layout: Layout,
    stage: int,
    stack: SoftwareStack | None,
    sizes: _LayerSizes,
) -> RankMemory:
    held = stage_parameters(spec.model, layout, stage=stage)
    experts = stage_expert_parameters(spec.model, layout, stage=stage)
    if not has_separate_experts(spec, layout):
        held, experts = held + experts, 0
    trained = _trained_parameters(spec, layout, stage, held)
    weight_bytes = held * spec.training.weight_dtype.size_bytes
    if spec.parallel.sharding.divides_weights:
        weight_bytes //= layout.shard_ranks
    gradient_bytes, state_bytes = _trained_bytes(spec, layout, trained, layout.shard_ranks)
    # Experts that are spread separately from the rest.
    of_experts = experts * spec.training.weight_dtype.size_bytes
    of_experts += sum(_trained_bytes(spec, layout, experts, layout.expert_copies))
    activation_bytes = _activation_bytes(spec, layout, stage, sizes)
    return RankMemory(
        (
            MemoryPart("weights", weight_bytes),
            MemoryPart("weights cast for products", _cast_bytes(spec, layout, stage)),
            MemoryPart("gradients", gradient_bytes),
            MemoryPart("optimizer state", state_bytes),
            MemoryPart("activations", activation_bytes),
            *([MemoryPart("experts", of_experts)] if of_experts else ()),
            MemoryPart("logits", _logit_bytes(spec, layout, stage, stack)),
            MemoryPart("gathered layers", _gathered_bytes(spec, layout, held)),
            MemoryPart("gathered activations", _split_bytes(spec, layout)),
            MemoryPart(
                "fragments between activations", round(activation_bytes * _FRAGMENTED_RATIO)
            ),
            MemoryPart("runtime and buffers", RUNTIME_BYTES),
        )
    )


def _trained_bytes(
    spec: TransformerSpec, layout: Layout, elements: int, shares: int
) -> tuple[int, int]:
    """Gradients and optimizer state of trained *elements* that *shares* ranks may divide.

    Stages of a pipeline keep what they gathered, and its gradients, until the iteration ends.
    """
    training, sharding = spec.training, spec.parallel.sharding
    gradients = elements * training.gradient_dtype.size_bytes
    state = 0
    if training.optimizer != "none":
        has_master = training.weight_dtype.size_bytes < FP32_BYTES
        state = elements * (has_master + STATES[training.optimizer]) * FP32_BYTES
    return (
        gradients // (shares if sharding.divides_gradients and layout.pp == 1 else 1),
        state // (shares if sharding.divides_state else 1),
    )


def _trained_parameters(spec: TransformerSpec, layout: Layout, stage: int, held: int) -> int:
    training = spec.training
    if not training.adapters_only:
        return held
    adapters = layer_shape(spec.model, tp=layout.tp).adapter_tensors(training)
    return sum(adapters) * layout.layer_count(spec.model.layers, stage=stage)


def _cast_bytes(spec: TransformerSpec, layout: Layout, stage: int) -> int:
    """Copies of weights that live from the forward to the backward pass."""
    training = spec.training
    if not (training.gemm_dtype.is_quantised or training.is_autocast):
        return 0
    shapes = LayerShapes(spec.model, layout).of_stage(stage)
    if spec.parallel.sharding.divides_weights and layout.pp == 1:
        shapes = shapes[-_GATHERED_LAYERS:]
    elements = sum(
        sum(linear.weight for linear in shape.linears.values()) + sum(shape.expert_tensors)
        for shape in shapes
    )
    if training.gemm_dtype.is_quantised:
        return training.gemm_dtype.bytes_of(elements) * (1 if training.adapters_only else 2)
    return elements * training.precision.size_bytes


def _gathered_bytes(spec: TransformerSpec, layout: Layout, held: int) -> int:
    training = spec.training
    if not spec.parallel.sharding.divides_weights:
        return 0
    if layout.pp > 1:
        return held * training.precision.size_bytes
    layer = LayerShapes(spec.model, layout).of_experts.all_parameters
    size = _GATHERED_LAYERS * training.precision.size_bytes
    if not training.adapters_only:
        size += training.gradient_dtype.size_bytes
    return layer * size


def _activation_bytes(spec: TransformerSpec, layout: Layout, stage: int, sizes: _LayerSizes) -> int:
    training, runs = spec.training, layout.interleaving
    in_flight = min(turns_ahead(layout, stage) + 1, layout.micro_batches * runs)
    of_runs = layout.layer_runs(spec.model.layers, stage=stage)
    is_expert_layer = spec.model.is_expert_layer
    ways = {True: training.recompute, False: Recompute.NONE}
    of_run = [
        sum(sizes[is_expert_layer(n), ways[training.recomputes(n)]] for n in run) for run in of_runs
    ]
    # Turns rotate over the runs: each is in flight equally often, the first ones once more.
    counts = [in_flight // runs + (run < in_flight % runs) for run in range(runs)]
    total = sum(count * size for count, size in zip(counts, of_run, strict=True))
    layers = [*chain.from_iterable(of_runs)]
    if not any(map(training.recomputes, layers)):
        return total
    is_expert = any(map(is_expert_layer, layers))
    return total + sizes[is_expert, Recompute.NONE] - sizes[is_expert, training.recompute]


def layer_activation_bytes(
    spec: TransformerSpec,
    layout: Layout,
    *,
    recompute: Recompute = Recompute.NONE,
    stack: SoftwareStack | None = None,
    is_expert: bool = False,
) -> int:
    """Bytes that one layer keeps per micro-batch for its backward pass under *recompute*."""
    model, size = spec.model, spec.training.precision.size_bytes
    shapes = LayerShapes(model, layout)
    shape = shapes.of_experts if is_expert else shapes.dense
    tokens = layout.micro_batch * spec.sequence_length // layout.cp
    residual = FP32_BYTES if spec.training.is_autocast else size
    numbers = tokens * model.hidden
    share = layout.tp if layout.is_sequence_parallel else 1
    if recompute is Recompute.FULL:
        return numbers * residual // share
    # The input of a GEMM is kept in its format, the output in that of activations.
    dtype = spec.training.gemm_dtype
    # Inputs of both norms, of the qkv and of the up GEMM.
    whole = 2 * residual * numbers + 2 * dtype.bytes_of(numbers)
    if model.dropout:
        whole += 2 * numbers  # masks, one byte per number
    # Outputs of qkv and up, inputs of the projection and of the down GEMM.
    up, down = (shape.up.outputs, shape.down.inputs) if shape.up and shape.down else (0, 0)
    outputs = shape.attention_outputs + up + _copied_widths(spec, shape, stack)
    split = size * tokens * outputs
    split += dtype.bytes_of(tokens * (shape.projection.inputs + down))
    if shape.experts is not None:
        split += _routed_bytes(spec, layout, shape.experts)
    if recompute is Recompute.OPS:
        # The outputs of the core and of every second GEMM; the rest is recomputed from them.
        again = shape.every_second(is_gated=model.gated_ffn)
        lost = sum(one.outputs for name, one in again.items() if name != "attention/projection")
        whole = residual * numbers * 2
        split = size * tokens * (shape.projection.inputs + shape.attention_outputs + up - lost)
    return whole // share + split + _score_bytes(spec, layout, recompute)


def _routed_bytes(spec: TransformerSpec, layout: Layout, shape: ExpertShape) -> int:
    """Bytes that experts keep of the tokens routed to them, on the most loaded rank."""
    tokens = layout.micro_batch * spec.sequence_length // layout.cp
    tokens //= layout.tp if layout.is_sequence_parallel else 1
    rows = routed_rows(spec, tokens=tokens, ep=layout.ep) * layout.etp
    # Inputs of both GEMMs in their format, the output of the first in that of activations.
    kept = spec.training.gemm_dtype.bytes_of(rows * (shape.up.inputs + shape.down.inputs))
    return kept + rows * shape.up.outputs * spec.training.precision.size_bytes


def _copied_widths(spec: TransformerSpec, shape: LayerShape, stack: SoftwareStack | None) -> int:
    """Numbers per token that are kept twice.

    Rotated queries and keys are kept beside the output of the qkv GEMM, which the values still
    need; a gate that is not fused is also kept after its activation.
    """
    if stack is None or stack.fuses(Fusion.ELEMENTWISE):
        return 0
    turned = (shape.heads + shape.kv_heads) * spec.model.head_width
    width = turned if spec.model.positions is Positions.ROTARY else 0
    if spec.model.gated_ffn and not stack.fuses(Fusion.SWIGLU):
        width += shape.down.inputs if shape.down else 0
    return width


def _score_bytes(spec: TransformerSpec, layout: Layout, recompute: Recompute) -> int:
    """Bytes of attention scores: none per pair in a flash kernel or if recomputed."""
    heads = spec.model.heads // layout.tp
    is_unfused = spec.training.attention is AttentionKernel.UNFUSED
    if not is_unfused or recompute is not Recompute.NONE:
        return FP32_BYTES * layout.micro_batch * heads * spec.sequence_length // layout.cp
    size = spec.training.precision.size_bytes
    a_pair = size + (size + 1 if spec.model.dropout else 0)
    return a_pair * layout.micro_batch * heads * spec.sequence_length**2


def _split_bytes(spec: TransformerSpec, layout: Layout) -> int:
    """Short-lived gathered tensors of a layer that is split along the sequence."""
    if not layout.is_sequence_parallel:
        return 0
    tokens = layout.micro_batch * spec.sequence_length // layout.cp
    size = spec.training.precision.size_bytes
    return _GATHERED_ACTIVATIONS * tokens * spec.model.hidden * size


def _logit_bytes(
    spec: TransformerSpec, layout: Layout, stage: int, stack: SoftwareStack | None
) -> int:
    if stage != layout.pp - 1:
        return 0
    tokens = layout.micro_batch * spec.predicted_tokens // layout.cp
    is_fused = stack is None or stack.fuses(Fusion.CROSS_ENTROPY)
    copies = _FUSED_LOSS_COPIES if is_fused else _LOSS_COPIES
    a_logit = spec.training.precision.size_bytes + copies * FP32_BYTES
    return tokens * -(-spec.model.vocab // layout.tp) * a_logit
