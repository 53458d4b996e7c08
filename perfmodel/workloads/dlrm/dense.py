"""The dense part of a recommendation model: layers forward and backward, operator by operator.

With a precision below fp32 weights are kept in fp32 and cast at each use, as
automatic mixed precision does; gradients are cast back before they are reduced.
A stack that fuses those casts keeps weights and gradients in the short format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.stacks.stack import FrameworkBehaviour, Fusion, SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import (
    cast,
    elementwise,
    forward_gemm,
    input_gemm,
    row_sum,
    weight_gemm,
)
from perfmodel.workloads.reduction import GradientReduction


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A fully connected layer; *activation* is empty where there is none."""

    label: str
    inputs: int
    outputs: int
    activation: str = "relu"
    has_bias: bool = True
    needs_input_gradient: bool = True

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of the weight and, where there is one, of the bias."""
        weight = self.inputs * self.outputs
        return (weight, self.outputs) if self.has_bias else (weight,)


def bottom_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers over the dense features."""
    widths = (spec.dense.features, *spec.dense.bottom_mlp)
    return tuple(
        DenseLayer(f"bottom mlp/layer {place}", before, after, needs_input_gradient=place > 0)
        for place, (before, after) in enumerate(pairwise(widths))
    )


def top_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers that end in the click probability, or in what is still added to first."""
    widths = (spec.top_inputs, *spec.dense.top_mlp)
    hidden = len(spec.dense.top_mlp) - 1
    activations = ["relu"] * hidden + ["" if spec.has_skipping_sums else "sigmoid"]
    return tuple(
        DenseLayer(f"top mlp/layer {place}", before, after, activations[place])
        for place, (before, after) in enumerate(pairwise(widths))
    )


def cross_layers(spec: DlrmSpec) -> tuple[tuple[DenseLayer, DenseLayer], ...]:
    """The down and up projection of every cross layer; none for other interactions."""
    if spec.dense.interaction is not Interaction.CROSS:
        return ()
    width, rank = spec.interaction_inputs, spec.dense.cross.rank
    return tuple(
        (
            DenseLayer(f"cross {place}/down", width, rank, activation="", has_bias=False),
            DenseLayer(f"cross {place}/up", rank, width, activation=""),
        )
        for place in range(spec.dense.cross.layers)
    )


def dense_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """All layers, in the order of the forward pass."""
    crossed = tuple(layer for pair in cross_layers(spec) for layer in pair)
    return bottom_layers(spec) + crossed + top_layers(spec)


def dense_parameters(spec: DlrmSpec) -> int:
    """Parameters outside the tables."""
    return sum(sum(layer.tensors) for layer in dense_layers(spec))


@dataclass(frozen=True, slots=True)
class DenseWriter:
    """Writes dense layers of *samples* samples; *reduction* is None on a single rank."""

    writer: EagerWriter
    samples: int
    dtype: DType
    reduction: GradientReduction | None
    stack: SoftwareStack

    def run_forward(self, layers: Sequence[DenseLayer]) -> None:
        """Write the forward pass of *layers*."""
        for layer in layers:
            label = f"{layer.label} forward"
            if self._casts_weights:
                casts = [cast(size, DType.FP32, self.dtype) for size in layer.tensors]
                self.writer.run("to", casts, label=label)
            self.writer.run("linear", self._product_kernels(layer), label=label)
            if layer.activation and not self.stack.fuses(Fusion.ACTIVATION_FORWARD):
                self._pointwise(layer.activation, layer.outputs, label)

    def run_backward(self, layers: Sequence[DenseLayer]) -> None:
        """Write the backward pass of *layers*, last layer first."""
        for layer in reversed(layers):
            label = f"{layer.label} backward"
            if layer.activation and not self.stack.fuses(Fusion.BIAS_ACTIVATION):
                operator = f"{layer.activation.capitalize()}Backward"
                self._pointwise(layer.activation, layer.outputs, label, operator, reads=2)
            self._run_gradients(layer, label)
            if self._casts_weights:
                casts = [cast(size, self.dtype, DType.FP32) for size in layer.tensors]
                self.writer.run("ToCopyBackward", casts, label=label)
            self._accumulate(layer, label)

    def run_cross_forward(self, layers: Sequence[tuple[DenseLayer, DenseLayer]]) -> None:
        """Write x0 * (V (U x) + b) + x for every pair (U, V)."""
        for pair in layers:
            self.run_forward(pair)
            width, label = pair[1].outputs, f"{pair[1].label} forward"
            if self.stack.fuses(Fusion.ELEMENTWISE):
                self._pointwise("residual_add", width, label, "mul_add", reads=3)
                continue
            self._pointwise("residual_add", width, label, "mul", reads=2)
            self._pointwise("residual_add", width, label, "add", reads=2)

    def run_cross_backward(self, layers: Sequence[tuple[DenseLayer, DenseLayer]]) -> None:
        """Write the backward pass of the cross layers.

        One product for each factor before the layers; behind them gradients of x0 and of x
        arrive from two sides each and are added up.
        """
        for pair in reversed(layers):
            width, label = pair[1].outputs, f"{pair[1].label} backward"
            if self.stack.fuses(Fusion.ELEMENTWISE):
                # Reads the gradient, x0, the layer's output and the sum for x0; writes two of them.
                size = self.samples * width
                kernel = elementwise("residual_add", size, self.dtype, reads=4, writes=2)
                self.writer.run("MulAddBackward", [kernel], label=label)
                self.run_backward(pair)
                continue
            for _ in range(2):
                self._pointwise("residual_add", width, label, "MulBackward", reads=2)
            self.run_backward(pair)
            for _ in range(2):
                self._pointwise("residual_add", width, label, "add", reads=2)

    @property
    def _casts_weights(self) -> bool:
        return self.dtype.size_bytes < 4 and not self.stack.fuses(Fusion.WEIGHT_CAST)

    def _pointwise(
        self, kernel: str, width: int, label: str, operator: str = "", reads: int = 1
    ) -> None:
        op = elementwise(kernel, self.samples * width, self.dtype, reads=reads)
        self.writer.run(operator or kernel, [op], label=label)

    def _product_kernels(self, layer: DenseLayer) -> list[Op]:
        gemm = forward_gemm(self.samples, layer.inputs, layer.outputs, self.dtype)
        if not (layer.has_bias and self.stack.has(FrameworkBehaviour.UNFUSED_BIAS)):
            return [gemm]
        size = self.dtype.size_bytes
        output_bytes = self.samples * layer.outputs * size
        return [MemoryBound("copy", layer.outputs * size, output_bytes, self.dtype), gemm]

    def _run_gradients(self, layer: DenseLayer, label: str) -> None:
        shape = (self.samples, layer.inputs, layer.outputs, self.dtype)
        kernels: list[Op] = [input_gemm(*shape)] if layer.needs_input_gradient else []
        kernels.append(weight_gemm(*shape))
        is_summed = layer.has_bias and self.stack.sums_bias_gradients
        is_apart = is_summed and self.stack.has(FrameworkBehaviour.UNFUSED_BIAS)
        summed: list[Op] = [row_sum(self.samples, layer.outputs, self.dtype)] if is_summed else []
        self.writer.run("AddmmBackward", kernels + ([] if is_apart else summed), label=label)
        if is_apart:
            self.writer.run("sum", summed, label=label)
            self.writer.note("view")
        self.writer.note("TBackward")

    def _accumulate(self, layer: DenseLayer, label: str) -> None:
        is_copied = self.reduction is not None and not self.stack.fuses(Fusion.GRADIENT_COPY)
        for size in layer.tensors:
            if self.stack.has(FrameworkBehaviour.ZEROED_GRADIENTS):
                added = elementwise("add", size, DType.FP32, reads=2)
                self.writer.run("AccumulateGrad", [added], label=label)
            elif is_copied:
                # The gradient is divided by the number of ranks on its way into the bucket.
                copied = elementwise("copy", size, DType.FP32)
                self.writer.run("AccumulateGrad", [copied], label=label)
            else:
                self.writer.note("AccumulateGrad")
            if self.reduction is not None:
                self.reduction.add(size)
