"""The memory of a Transformer rank: weights, gradients, optimizer state, activations.

Activations are counted tensor by tensor as the backward pass needs them.
Leaves out: fragmentation beyond what `RUNTIME_BYTES` allows, and temporary
buffers inside kernels.
Source of the counting: Korthikanti et al., arXiv 2205.05198, extended to gated
and grouped-query layers.
"""

from __future__ import annotations

from perfmodel.graph.memory import RUNTIME_BYTES, MemoryPart, RankMemory
from perfmodel.workloads.optimizers import STATES
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.schedule import turns_ahead
from perfmodel.workloads.transformer.shapes import layer_shape, stage_parameters
from perfmodel.workloads.transformer.spec import (
    AttentionKernel,
    Recompute,
    StateSharding,
    TransformerSpec,
)

_FP32_BYTES = 4
_GATHERED_LAYERS = 2


def stage_memory(spec: TransformerSpec, layout: Layout, *, stage: int) -> RankMemory:
    """The peak of a rank of pipeline *stage*."""
    training, sharding = spec.training, spec.parallel.sharding
    elements = stage_parameters(spec.model, tp=layout.tp, pp=layout.pp, stage=stage)
    weight_bytes = elements * training.precision.size_bytes
    gradient_bytes = elements * training.gradient_dtype.size_bytes
    state_bytes = elements * _state_bytes_per_element(spec)
    gathered_bytes = 0
    if sharding is not StateSharding.NONE:
        state_bytes //= layout.dp
    if sharding is StateSharding.FULL:
        layer = layer_shape(spec.model, tp=layout.tp).parameters
        gathered_bytes = _GATHERED_LAYERS * layer * training.precision.size_bytes
        gathered_bytes += layer * training.gradient_dtype.size_bytes
        weight_bytes //= layout.dp
        gradient_bytes //= layout.dp
    return RankMemory(
        (
            MemoryPart("weights", weight_bytes),
            MemoryPart("gradients", gradient_bytes),
            MemoryPart("optimizer state", state_bytes),
            MemoryPart("activations", _activation_bytes(spec, layout, stage)),
            MemoryPart("logits", _logit_bytes(spec, layout, stage)),
            MemoryPart("gathered layers", gathered_bytes),
            MemoryPart("runtime and buffers", RUNTIME_BYTES),
        )
    )


def _state_bytes_per_element(spec: TransformerSpec) -> int:
    master_bytes = _FP32_BYTES if spec.training.precision.size_bytes < _FP32_BYTES else 0
    return master_bytes + STATES[spec.training.optimizer] * _FP32_BYTES


def _activation_bytes(spec: TransformerSpec, layout: Layout, stage: int) -> int:
    runs = layout.interleaving
    ahead = turns_ahead(
        stage=stage, stages=layout.pp, micro_batches=layout.micro_batches, runs=runs
    )
    in_flight = min(ahead + 1, layout.micro_batches * runs)
    layers = spec.model.layers // (layout.pp * runs)
    whole = layer_activation_bytes(spec, layout)
    if spec.training.recompute is not Recompute.FULL:
        return in_flight * layers * whole
    tokens = layout.micro_batch * spec.sequence_length
    kept = tokens * spec.model.hidden * spec.training.precision.size_bytes
    if layout.is_sequence_parallel:
        kept //= layout.tp
    return in_flight * layers * kept + whole


def layer_activation_bytes(spec: TransformerSpec, layout: Layout) -> int:
    """What one layer keeps of one micro-batch for its backward pass."""
    model, size = spec.model, spec.training.precision.size_bytes
    shape = layer_shape(model, tp=layout.tp)
    tokens = layout.micro_batch * spec.sequence_length
    # Inputs of both norms, of the qkv and of the up product.
    whole = 4 * size * tokens * model.hidden
    if model.dropout:
        whole += 2 * tokens * model.hidden  # one byte a number: the masks
    if layout.is_sequence_parallel:
        whole //= layout.tp
    # Outputs of qkv and up, inputs of the projection and of the down product.
    split_numbers = shape.qkv.outputs + shape.projection.inputs + shape.up.outputs
    split = size * tokens * (split_numbers + shape.down.inputs)
    return whole + split + _score_bytes(spec, layout, shape.heads)


def _score_bytes(spec: TransformerSpec, layout: Layout, heads: int) -> int:
    """What attention keeps a pair of tokens: nothing in a flash kernel or if recomputed."""
    is_unfused = spec.training.attention is AttentionKernel.UNFUSED
    if not is_unfused or spec.training.recompute is not Recompute.NONE:
        return _FP32_BYTES * layout.micro_batch * heads * spec.sequence_length
    size = spec.training.precision.size_bytes
    a_pair = size + (size + 1 if spec.model.dropout else 0)
    return a_pair * layout.micro_batch * heads * spec.sequence_length**2


def _logit_bytes(spec: TransformerSpec, layout: Layout, stage: int) -> int:
    if stage != layout.pp - 1:
        return 0
    tokens = layout.micro_batch * spec.predicted_tokens
    a_logit = spec.training.precision.size_bytes + 2 * _FP32_BYTES
    return tokens * -(-spec.model.vocab // layout.tp) * a_logit
