"""Arithmetic of an iteration, as the figures that people compare count it.

Products and attention, exactly: two operations for a multiplication and an
addition. Attention counts every pair of tokens, masked or not, as published
figures do; a window counts the pairs inside. A weight is multiplied forward, for
the gradient of its input and, unless it is frozen, for its own.
Source: Chowdhery et al., arXiv 2204.02311, appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workloads.transformer.shapes import Linear, layer_shape
from perfmodel.workloads.transformer.spec import Head, Recompute, TransformerSpec


@dataclass(frozen=True, slots=True)
class IterationFlops:
    """Operations of one iteration over all ranks: of the model, and with what is recomputed."""

    model_flops: int
    hardware_flops: int
    tokens: int


def count_flops(spec: TransformerSpec) -> IterationFlops:
    """The operations of one iteration of *spec*, however it is spread over ranks."""
    layers = [_LayerFlops(spec, layer) for layer in range(spec.model.layers)]
    model = sum(layer.forward + layer.backward for layer in layers) + _head_flops(spec)
    again = sum(layer.again for layer in layers)
    batch = spec.batch
    return IterationFlops(
        model_flops=batch * model,
        hardware_flops=batch * (model + again),
        tokens=batch * spec.sequence_length,
    )


@dataclass(frozen=True, slots=True)
class _LayerFlops:
    """The operations of one layer over one sequence."""

    spec: TransformerSpec
    layer: int

    @property
    def forward(self) -> int:
        return sum(self._products.values()) + self._adapters + self._core

    @property
    def backward(self) -> int:
        frozen = self.spec.training.adapters_only
        products = sum(self._products.values()) * (1 if frozen else 2)
        return products + 2 * (self._adapters + self._core)

    @property
    def again(self) -> int:
        """What the backward pass computes anew."""
        way = self.spec.training.recompute
        if not self.spec.training.recomputes(self.layer):
            return 0
        if way is Recompute.FULL:
            return self.forward
        if way is Recompute.ATTENTION:
            return self._core
        model, products = self.spec.model, self._products
        shape = layer_shape(model, tp=1, is_expert=model.is_expert_layer(self.layer))
        again = shape.every_second(is_gated=model.gated_ffn).values()
        of_experts = sum(products.get(label, 0) for label in ("ffn/router", "ffn/experts up"))
        return of_experts + sum(_flops(self.spec, linear) for linear in again)

    @property
    def _products(self) -> dict[str, int]:
        model = self.spec.model
        shape = layer_shape(model, tp=1, is_expert=model.is_expert_layer(self.layer))
        products = dict(shape.products)
        flops = {label: _flops(self.spec, linear) for label, linear in products.items()}
        if shape.experts is not None:
            flops["ffn/experts up"] = model.top_k * _flops(self.spec, shape.experts.up)
            flops["ffn/experts down"] = model.top_k * _flops(self.spec, shape.experts.down)
        return flops

    @property
    def _adapters(self) -> int:
        training = self.spec.training
        if not training.adapters_only:
            return 0
        tensors = layer_shape(self.spec.model, tp=1).adapter_tensors(training)
        return 2 * self.spec.sequence_length * sum(tensors)

    @property
    def _core(self) -> int:
        model, length = self.spec.model, self.spec.sequence_length
        seen = length
        if model.window is not None and model.has_window(self.layer):
            seen = min(length, model.window)
        # Scores, and the mixture of values: two operations each for a pair and a number.
        return 2 * length * seen * model.heads * (model.query_width + model.head_width)


def _flops(spec: TransformerSpec, linear: Linear) -> int:
    return 2 * spec.sequence_length * linear.inputs * linear.outputs


def _head_flops(spec: TransformerSpec) -> int:
    model = spec.model
    products = model.hidden * model.vocab
    if model.head is Head.MASKED_TOKENS:
        products += model.hidden * model.hidden
    ways = 2 if spec.training.adapters_only else 3
    return ways * 2 * spec.predicted_tokens * products
