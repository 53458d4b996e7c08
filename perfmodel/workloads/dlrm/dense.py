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
from perfmodel.workloads.kernels import FP32_BYTES, Linear, cast, elementwise, row_sum
from perfmodel.workloads.reduction import GradientReduction


@dataclass(frozen=True, slots=True)
class DenseLayer(Linear):
    """A fully connected layer; *activation* is empty where there is none."""

    label: str = ""
    activation: str = "relu"
    needs_input_gradient: bool = True


def bottom_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers over the dense features."""
    widths = (spec.dense.features, *spec.dense.bottom_mlp)
    return tuple(
        DenseLayer(before, after, after, f"bottom mlp/layer {place}", "relu", place > 0)
        for place, (before, after) in enumerate(pairwise(widths))
    )


def top_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers that end in the click probability, or in the output that sums are added to."""
    widths = (spec.top_inputs, *spec.dense.top_mlp)
    last = "" if spec.has_skipping_sums else "sigmoid"
    activations = ["relu"] * (len(spec.dense.top_mlp) - 1) + [last]
    return tuple(
        DenseLayer(before, after, after, f"top mlp/layer {place}", activations[place])
        for place, (before, after) in enumerate(pairwise(widths))
    )


def cross_layers(spec: DlrmSpec) -> tuple[tuple[DenseLayer, DenseLayer], ...]:
    """The down and up projection of every cross layer; none for other interactions."""
    if spec.dense.interaction is not Interaction.CROSS:
        return ()
    width, rank = spec.interaction_inputs, spec.dense.cross.rank
    return tuple(
        (
            DenseLayer(width, rank, 0, f"cross {place}/down", ""),
            DenseLayer(rank, width, width, f"cross {place}/up", ""),
        )
        for place in range(spec.dense.cross.layers)
    )


def dense_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """All layers, in the order of the forward pass."""
    crossed = tuple(layer for pair in cross_layers(spec) for layer in pair)
    return bottom_layers(spec) + crossed + top_layers(spec)


def dense_parameters(spec: DlrmSpec) -> int:
    """Parameters outside the tables."""
    return sum(layer.parameters for layer in dense_layers(spec))


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
            kernels: list[Op] = [layer.forward_gemm(self.samples, self.dtype)]
            if layer.bias and self.stack.has(FrameworkBehaviour.UNFUSED_BIAS):
                row_bytes = layer.outputs * self.dtype.size_bytes
                written_bytes = self.samples * row_bytes
                kernels.insert(0, MemoryBound("copy", row_bytes, written_bytes, self.dtype))
            self.writer.run("linear", kernels, label=label)
            if layer.activation and not self.stack.fuses(Fusion.ACTIVATION_FORWARD):
                self._pointwise(layer.activation, layer.activation, layer.outputs, label, reads=1)

    def run_backward(self, layers: Sequence[DenseLayer]) -> None:
        """Write the backward pass of *layers*, last layer first."""
        for layer in reversed(layers):
            label = f"{layer.label} backward"
            if layer.activation and not self.stack.fuses(Fusion.BIAS_ACTIVATION):
                operator = f"{layer.activation.capitalize()}Backward"
                self._pointwise(operator, layer.activation, layer.outputs, label)
            self._run_gradients(layer, label)
            if self._casts_weights:
                casts = [cast(size, self.dtype, DType.FP32) for size in layer.tensors]
                self.writer.run("ToCopyBackward", casts, label=label)
            for size in layer.tensors:
                self._accumulate(size, label)

    def run_cross_forward(self, layers: Sequence[tuple[DenseLayer, DenseLayer]]) -> None:
        """Write x0 * (V (U x) + b) + x for every pair (U, V)."""
        for pair in layers:
            self.run_forward(pair)
            width, label = pair[1].outputs, f"{pair[1].label} forward"
            if self.stack.fuses(Fusion.ELEMENTWISE):
                self._pointwise("mul_add", "residual_add", width, label, reads=3)
                continue
            for operator in ("mul", "add"):
                self._pointwise(operator, "residual_add", width, label)

    def run_cross_backward(self, layers: Sequence[tuple[DenseLayer, DenseLayer]]) -> None:
        """Write the backward pass of the cross layers.

        Each factor takes one multiplication before the layers; behind them the gradients of x0
        and of x, which arrive from two sides each, are added up.
        """
        for pair in reversed(layers):
            width, label = pair[1].outputs, f"{pair[1].label} backward"
            if self.stack.fuses(Fusion.ELEMENTWISE):
                # Reads the gradient, x0, the layer's output and the sum for x0; writes two of them.
                kernel = "residual_add"
                self._pointwise("MulAddBackward", kernel, width, label, reads=4, writes=2)
                self.run_backward(pair)
                continue
            for _ in range(2):
                self._pointwise("MulBackward", "residual_add", width, label)
            self.run_backward(pair)
            for _ in range(2):
                self._pointwise("add", "residual_add", width, label)

    @property
    def _casts_weights(self) -> bool:
        return self.dtype.size_bytes < FP32_BYTES and not self.stack.fuses(Fusion.WEIGHT_CAST)

    def _pointwise(
        self, operator: str, kernel: str, width: int, label: str, reads: int = 2, writes: int = 1
    ) -> None:
        elements = self.samples * width
        op = elementwise(kernel, elements, self.dtype, reads=reads, writes=writes)
        self.writer.run(operator, [op], label=label)

    def _run_gradients(self, layer: DenseLayer, label: str) -> None:
        kernels: list[Op] = [layer.weight_gemm(self.samples, self.dtype)]
        if layer.needs_input_gradient:
            kernels.insert(0, layer.input_gemm(self.samples, self.dtype))
        is_summed = layer.bias and self.stack.sums_bias_gradients
        is_separate = is_summed and self.stack.has(FrameworkBehaviour.UNFUSED_BIAS)
        summed = [row_sum(self.samples, layer.outputs, self.dtype)] if is_summed else []
        kernels += [] if is_separate else summed
        self.writer.run("AddmmBackward", kernels, label=label)
        if is_separate:
            self.writer.run("sum", summed, label=label)
            self.writer.note("view")
        self.writer.note("TBackward")

    def _accumulate(self, size: int, label: str) -> None:
        """Put the gradient of a tensor of *size* numbers where it is reduced."""
        if self.stack.has(FrameworkBehaviour.ZEROED_GRADIENTS):
            added = elementwise("add", size, DType.FP32, reads=2)
            self.writer.run("AccumulateGrad", [added], label=label)
        elif self.reduction is not None and not self.stack.fuses(Fusion.GRADIENT_COPY):
            # The gradient is divided by the number of ranks on its way into the bucket.
            copied = elementwise("copy", size, DType.FP32)
            self.writer.run("AccumulateGrad", [copied], label=label)
        else:
            self.writer.note("AccumulateGrad")
        if self.reduction is not None:
            self.reduction.add(size)
