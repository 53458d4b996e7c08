"""The dense part of a recommendation model: its layers and the interaction with the tables.

With a precision below fp32 weights are kept in fp32 and cast at each use, as
automatic mixed precision does; gradients are cast back before they are reduced.
A stack that fuses those casts keeps weights and gradients in the short format.

A fused interaction is one kernel per direction. Otherwise vectors are
concatenated and multiplied, and a triangle of the result is picked. Sums that a
model adds to the output of its top layers (a wide sum, a factorization machine)
are part of the interaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Gemm, MemoryBound, Op
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import FP32_BYTES, Linear, cast, elementwise, row_sum
from perfmodel.workloads.reduction import GradientReduction

_INDEX_BYTES = 8
_INDEX_BACKWARD_BYTES = 355
"""Memory traffic per element whose gradient is added by index.

Fitted: the kernel takes 0.436 ns per element at two sizes of recorded V100 iterations (36 and 351
elements per sample, 2,048 samples; arXiv 2201.07821, figures quoted as facts, 2026-11-16), far
from any bandwidth: neighbouring elements are a whole sample apart in memory.
"""
_SORTING_KERNELS = 8
"""Small kernels that sort the indices before gradients are added by them."""


@dataclass(frozen=True, slots=True)
class DenseLayer(Linear):
    """A fully connected layer; *activation* is empty where there is none."""

    label: str = ""
    activation: str = "relu"
    needs_input_gradient: bool = True


def _stacked(label: str, *widths: int, is_input: bool = False) -> list[DenseLayer]:
    return [
        DenseLayer(
            before, after, after, f"{label}/layer {place}", "relu", not is_input or place > 0
        )
        for place, (before, after) in enumerate(pairwise(widths))
    ]


def bottom_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers over the dense features, which need no gradient."""
    dense = spec.dense
    return tuple(_stacked("bottom mlp", dense.features, *dense.bottom_mlp, is_input=True))


def top_layers(spec: DlrmSpec) -> tuple[DenseLayer, ...]:
    """The layers that end in the click probability, or in the output that sums are added to."""
    *layers, last = _stacked("top mlp", spec.top_inputs, *spec.dense.top_mlp)
    return (*layers, replace(last, activation="" if spec.has_skipping_sums else "sigmoid"))


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


@dataclass(frozen=True, slots=True)
class InteractionWriter:
    """Writes the interaction of *samples* samples."""

    writer: EagerWriter
    spec: DlrmSpec
    stack: SoftwareStack
    samples: int

    def run_forward(self) -> None:
        """Write what feeds the top layers, and what skips them."""
        is_dot = self.spec.dense.interaction is Interaction.DOT
        is_fused = is_dot and self.stack.fuses(Fusion.INTERACTION)
        if not (is_fused and self.stack.fuses(Fusion.ELEMENTWISE)):
            self._note("view", "view")
            self._run("cat", "concat forward", self._concat(self.spec.interaction_inputs))
        if is_fused:
            self._run("interaction", "dot forward", self._fused(is_backward=False))
        elif is_dot:
            self._dot_forward()
        self._run_skipping(is_backward=False)

    def run_backward(self) -> None:
        """Write the backward pass, up to the gradients of all vectors."""
        self._run_skipping(is_backward=True)
        is_dot = self.spec.dense.interaction is Interaction.DOT
        if is_dot and self.stack.fuses(Fusion.INTERACTION):
            self._run("InteractionBackward", "dot backward", self._fused(is_backward=True))
            if self.stack.fuses(Fusion.ELEMENTWISE):
                return
        elif is_dot and self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self._indexed_backward()
            return
        elif is_dot:
            output = self._concat(self.spec.top_inputs)
            self._run("CatBackward", "output backward", output)
            self._run("IndexBackward", "triangle backward", self._triangle())
            self._gemms_backward()
        self._run("CatBackward", "concat backward", self._concat(self.spec.interaction_inputs))

    def join_forward(self) -> None:
        """Add what skipped the top layers to their output."""
        for _ in range(self._skipping_sums):
            self._run("add", "join forward", self._traffic("add", 2, 1))
        if self._skipping_sums:
            self._run("sigmoid", "join forward", self._traffic("sigmoid", 1, 1))

    def join_backward(self) -> None:
        """Write the backward pass of the joined output; sums pass their gradient on."""
        if self._skipping_sums:
            self._run("SigmoidBackward", "join backward", self._traffic("sigmoid", 2, 1))

    @property
    def _dtype(self) -> DType:
        return self.spec.training.precision

    @property
    def _vectors(self) -> int:
        return len(self.spec.embedding.rows) + 1

    @property
    def _width(self) -> int:
        return self.spec.dense_width

    @property
    def _picked(self) -> int:
        """Numbers per sample in the triangle."""
        return self._vectors * (self._vectors - 1) // 2

    @property
    def _skipping_sums(self) -> int:
        """Sums that are added to the output: of the wide tables, of the factorization machine."""
        return bool(self.spec.wide_tables) + self._has_machine

    @property
    def _has_machine(self) -> bool:
        return self.spec.dense.interaction is Interaction.DEEP_FM

    def _concat(self, width: int) -> MemoryBound:
        return self._traffic("concat", width, width)

    def _fused(self, *, is_backward: bool) -> MemoryBound:
        """One kernel; GEMMs in fp32 run on plain cores and cost their arithmetic too."""
        inputs, outputs = self.spec.interaction_inputs, self.spec.top_inputs
        reads, writes = (inputs + outputs, inputs) if is_backward else (inputs, outputs)
        size = self.samples * self._dtype.size_bytes
        flops = 2 * self.samples * self._vectors**2 * self._width * (2 if is_backward else 1)
        is_short = self._dtype.size_bytes < FP32_BYTES
        return MemoryBound(
            "interaction", reads * size, writes * size, self._dtype, 0 if is_short else flops
        )

    def _dot_forward(self) -> None:
        self._note("transpose")
        gemm = Gemm(self._vectors, self._vectors, self._width, self._dtype, batch=self.samples)
        self._run("bmm", "products forward", gemm)
        if self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self._note("tril_indices", "slice")
            for _ in range(2):  # row and column
                label = "interaction/triangle indices"
                self.writer.copy_blocking(self._picked * _INDEX_BYTES, label=label)
        self._run("index", "triangle forward", self._triangle())
        self._run("cat", "output forward", self._concat(self.spec.top_inputs))

    def _indexed_backward(self) -> None:
        """The backward pass of indexing with tensors, as PyTorch runs it.

        Gradients of slices and concatenations are views, which need no kernel.
        """
        square, picked = self._vectors**2, self.samples * self._picked
        zero = self._traffic("zero", 0, square)
        sorting = [self._traffic("fill", 1, 1) for _ in range(_SORTING_KERNELS)]
        added = MemoryBound("index", picked * _INDEX_BACKWARD_BYTES, 0, self._dtype)
        copied = elementwise("copy", picked, self._dtype)
        self._note("slice", "slice")
        self._run("IndexBackward", "triangle backward", zero, *sorting, copied, added)
        self._run("SliceBackward", "triangle backward", zero, self._traffic("copy", square, square))
        self._gemms_backward()
        self._note("TransposeBackward", "slice", "slice", "ViewBackward", "ViewBackward")
        self._run("add", "output backward", self._traffic("add", 2 * self._width, self._width))

    def _gemms_backward(self) -> None:
        gemm = Gemm(self._vectors, self._width, self._vectors, self._dtype, batch=self.samples)
        self._run("BmmBackward", "products backward", gemm, gemm)
        width = self._vectors * self._width
        self._run("add", "products backward", self._traffic("residual_add", 2 * width, width))

    def _triangle(self) -> MemoryBound:
        return self._traffic("interaction_tril", self._vectors**2, self._picked)

    def _run_skipping(self, *, is_backward: bool) -> None:
        """Write what skips the top layers.

        A wide sum adds up the rows of the wide tables. A factorization machine is half of
        (sum of vectors)^2 - sum of squares, summed over the width; backward, each vector gets
        (sum of vectors - itself), added to its gradient from the top layers.
        """
        wide, deep, width = self.spec.wide_tables, self.spec.deep_inputs, self.spec.deep_width
        # Operator, kernel, numbers per sample read and written.
        kernels: list[tuple[str, str, int, int]] = []
        if wide:
            kernels = [
                ("ExpandBackward", "copy", 1, wide) if is_backward else ("sum", "sum", wide, 1)
            ]
        if self._has_machine and self.stack.fuses(Fusion.INTERACTION):
            kernels.append(
                ("InteractionBackward", "interaction", 2 * deep + 1, deep)
                if is_backward
                else ("interaction", "interaction", deep, 1)
            )
        elif self._has_machine and is_backward:
            kernels += [
                ("MulBackward", "mul", width + 1, width),
                ("PowBackward", "mul", deep + width, deep),
                ("add", "add", deep + width, deep),
                ("add", "add", 2 * deep, deep),
            ]
        elif self._has_machine:
            kernels += [
                ("sum", "sum", deep, width),
                ("pow", "pow", width, width),
                ("pow", "pow", deep, deep),
                ("sum", "sum", deep, width),
                ("sub", "sub", 2 * width, width),
                ("sum", "sum", width, 1),
            ]
        label = f"skipping {'backward' if is_backward else 'forward'}"
        for operator, kernel, reads, writes in kernels:
            self._run(operator, label, self._traffic(kernel, reads, writes))

    def _traffic(self, kernel: str, reads: int, writes: int) -> MemoryBound:
        """A kernel that reads and writes so many numbers per sample."""
        return elementwise(kernel, self.samples, self._dtype, reads=reads, writes=writes)

    def _note(self, *operators: str) -> None:
        """Operators without kernels, in a stack that issues those of the script one by one."""
        if self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self.writer.note(*operators)

    def _run(self, operator: str, label: str, *kernels: Op) -> None:
        self.writer.run(operator, kernels, label=f"interaction/{label}")
