"""FLOPs of an iteration, counted as in published figures.

GEMMs and attention, exactly: two operations per multiply-add. Attention counts
every pair of tokens, masked or not, as published figures do; a window counts the
pairs inside it. A weight is multiplied forward, for the gradient of its input
and, unless it is frozen, for its own gradient.
Source: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workloads.transformer.shapes import layer_shape
from perfmodel.workloads.transformer.spec import Head, Recompute, TransformerSpec


@dataclass(frozen=True, slots=True)
class IterationFlops:
    """Operations of one iteration over all ranks: of the model, and including recomputation."""

    model_flops: int
    hardware_flops: int
    tokens: int


def count_flops(spec: TransformerSpec) -> IterationFlops:
    """The operations of one iteration of *spec*, in any layout."""
    model, recomputed = _head_flops(spec), 0
    for layer in range(spec.model.layers):
        of_layer, again = _layer_flops(spec, layer)
        model += of_layer
        recomputed += again
    return IterationFlops(
        model_flops=spec.batch * model,
        hardware_flops=spec.batch * (model + recomputed),
        tokens=spec.batch * spec.sequence_length,
    )


def _layer_flops(spec: TransformerSpec, layer: int) -> tuple[int, int]:
    """Operations of one layer over one sequence, and those that the backward pass repeats."""
    model, training, length = spec.model, spec.training, spec.sequence_length
    shape = layer_shape(model, tp=1, is_expert=model.is_expert_layer(layer))
    weights = {label: linear.weight for label, linear in shape.linears.items()}
    if shape.experts is not None:
        weights["ffn/experts up"] = model.top_k * shape.experts.up.weight
        weights["ffn/experts down"] = model.top_k * shape.experts.down.weight
    gemms = 2 * length * sum(weights.values())
    adapters = 2 * length * sum(shape.adapter_tensors(training))
    seen = length
    if model.window is not None and model.has_window(layer):
        seen = min(length, model.window)
    # Scores, and the mixture of values: two operations each per pair and number.
    core = 2 * length * seen * model.heads * (model.query_width + model.head_width)
    forward = gemms + adapters + core
    backward = gemms * (1 if training.adapters_only else 2) + 2 * (adapters + core)
    again = 0
    if training.recomputes(layer):
        again = {Recompute.FULL: forward, Recompute.ATTENTION: core}.get(training.recompute, 0)
    if training.recomputes(layer) and training.recompute is Recompute.OPS:
        repeated = shape.every_second(is_gated=model.gated_ffn).values()
        of_experts = sum(weights.get(label, 0) for label in ("ffn/router", "ffn/experts up"))
        again = 2 * length * (of_experts + sum(linear.weight for linear in repeated))
    return forward + backward, again


def _head_flops(spec: TransformerSpec) -> int:
    model = spec.model
    weights = model.hidden * model.vocab
    if model.head is Head.MASKED_TOKENS:
        weights += model.hidden * model.hidden
    ways = 2 if spec.training.adapters_only else 3
    return ways * 2 * spec.predicted_tokens * weights
