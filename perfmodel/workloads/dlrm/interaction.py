"""The interaction of dense and sparse features, operator by operator.

A fused interaction is one kernel per direction. Otherwise vectors are
concatenated and multiplied, and a triangle of the result is picked. Sums that a
model adds to the output of its top layers (a wide sum, a factorization machine)
are written here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Gemm, MemoryBound, Op
from perfmodel.stacks.stack import FrameworkBehaviour, Fusion, SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import EagerWriter, copy_blocking
from perfmodel.workloads.kernels import FP32_BYTES, elementwise

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
        for operator, kernel, reads, writes in self._skipping_kernels(is_backward=False):
            self._run(operator, "skipping forward", self._traffic(kernel, reads, writes))

    def run_backward(self) -> None:
        """Write the backward pass, up to the gradients of all vectors."""
        for operator, kernel, reads, writes in self._skipping_kernels(is_backward=True):
            self._run(operator, "skipping backward", self._traffic(kernel, reads, writes))
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
                copy_blocking(self.writer, self._picked * _INDEX_BYTES, label=label)
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

    def _skipping_kernels(self, *, is_backward: bool) -> Sequence[tuple[str, str, int, int]]:
        """Kernels of what skips the top layers: operator, kernel, numbers read and written.

        A wide sum adds up the rows of the wide tables. A factorization machine is half of
        (sum of vectors)^2 - sum of squares, summed over the width; backward, each vector gets
        (sum of vectors - itself), added to its gradient from the top layers.
        """
        wide, deep, width = self.spec.wide_tables, self.spec.deep_inputs, self.spec.deep_width
        kernels: list[tuple[str, str, int, int]] = []
        if wide:
            kernels = [
                ("ExpandBackward", "copy", 1, wide) if is_backward else ("sum", "sum", wide, 1)
            ]
        if not self._has_machine:
            return kernels
        is_fused = self.stack.fuses(Fusion.INTERACTION)
        if is_fused and is_backward:
            return [*kernels, ("InteractionBackward", "interaction", 2 * deep + 1, deep)]
        if is_fused:
            return [*kernels, ("interaction", "interaction", deep, 1)]
        if is_backward:
            return [
                *kernels,
                ("MulBackward", "mul", width + 1, width),
                ("PowBackward", "mul", deep + width, deep),
                ("add", "add", deep + width, deep),
                ("add", "add", 2 * deep, deep),
            ]
        return [
            *kernels,
            ("sum", "sum", deep, width),
            ("pow", "pow", width, width),
            ("pow", "pow", deep, deep),
            ("sum", "sum", deep, width),
            ("sub", "sub", 2 * width, width),
            ("sum", "sum", width, 1),
        ]

    def _traffic(self, kernel: str, reads: int, writes: int) -> MemoryBound:
        """A kernel that reads and writes so many numbers per sample."""
        return elementwise(kernel, self.samples, self._dtype, reads=reads, writes=writes)

    def _note(self, *operators: str) -> None:
        """Operators without kernels, in a stack that issues those of the script one by one."""
        if self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self.writer.note(*operators)

    def _run(self, operator: str, label: str, *kernels: Op) -> None:
        self.writer.run(operator, kernels, label=f"interaction/{label}")
