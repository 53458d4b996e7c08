"""The interaction of dense features and embedding vectors, as steps.

A fused interaction is one kernel per direction. Otherwise vectors are
concatenated and multiplied, and a triangle of the result is picked. Sums that a
model adds to the output of its top layers (a wide sum, a factorization machine)
are part of the interaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Copy, CopyRoute, Gemm, MemoryBound, Op
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import Interaction
from perfmodel.workloads.eager import Step
from perfmodel.workloads.kernels import FP32_BYTES, elementwise

_INDEX_BACKWARD_BYTES = 355
"""Memory traffic per element whose gradient is added by index.

Fitted: the kernel takes 0.436 ns per element at two sizes of recorded V100 iterations (36 and 351
elements per sample, 2,048 samples; arXiv 2201.07821, figures quoted as facts, 2026-11-16), far
from any bandwidth: neighbouring elements are a whole sample apart in memory.
"""
_SORTING_KERNELS = 8
"""Small kernels that sort the indices before gradients are added by them."""


class InteractionSteps:
    """Makes the steps of the interaction of *run*, over the samples of a rank."""

    def __init__(self, run: DlrmRun) -> None:
        self._run, self._spec = run, run.spec
        kind = run.spec.dense.interaction
        self._has_machine = kind is Interaction.DEEP_FM
        self._is_dot = kind is Interaction.DOT
        self._vectors = run.spec.embedding.widths.total() + 1
        self._width = run.spec.dense_width
        # Numbers per sample in the triangle.
        self._picked = self._vectors * (self._vectors - 1) // 2
        # Sums that are added to the output: of the wide tables, of the factorization machine.
        self._skipping_sums = bool(run.spec.wide_tables) + self._has_machine

    def forward(self) -> Iterator[Step]:
        """What feeds the top layers, and what skips them."""
        is_fused = self._is_dot and self._run.fuses_interaction
        if not (is_fused and self._run.fuses_pointwise):
            yield from self._notes("view", "view")
            yield self._concat("cat", "concat forward", self._spec.interaction_inputs)
        if is_fused:
            yield self._step("interaction", "dot forward", self._fused(is_backward=False))
        elif self._is_dot:
            yield from self._notes("transpose")
            gemm = self._gemm(self._vectors, self._width)
            yield self._step("bmm", "products forward", gemm)
            if self._run.has_host_triangle:
                yield from self._notes("tril_indices", "slice")
                indices = Copy(CopyRoute.HOST_TO_DEVICE, self._picked * DType.INT64.size_bytes)
                copied = self._step("to", "triangle indices", indices)
                # Row and column.
                yield from [replace(copied, is_blocking=True)] * 2
            yield self._step("index", "triangle forward", self._triangle)
            yield self._concat("cat", "output forward", self._spec.top_inputs)
        yield from self._skipping(is_backward=False)

    def backward(self) -> Iterator[Step]:
        """The backward pass, up to the gradients of all vectors."""
        yield from self._skipping(is_backward=True)
        if self._is_dot and self._run.fuses_interaction:
            fused = self._fused(is_backward=True)
            yield self._step("InteractionBackward", "dot backward", fused)
            if self._run.fuses_pointwise:
                return
        elif self._is_dot and self._run.has_host_triangle:
            yield from self._indexed_backward()
            return
        elif self._is_dot:
            yield self._concat("CatBackward", "output backward", self._spec.top_inputs)
            yield self._step("IndexBackward", "triangle backward", self._triangle)
            yield from self._gemms_backward()
        yield self._concat("CatBackward", "concat backward", self._spec.interaction_inputs)

    def join_forward(self) -> Iterator[Step]:
        """What skipped the top layers is added to their output."""
        for _ in range(self._skipping_sums):
            yield self._step("add", "join forward", self._traffic("add", 2, 1))
        if self._skipping_sums:
            yield self._step("sigmoid", "join forward", self._traffic("sigmoid", 1, 1))

    def join_backward(self) -> Iterator[Step]:
        """The backward pass of the joined output; sums pass their gradient on."""
        if self._skipping_sums:
            yield self._step("SigmoidBackward", "join backward", self._traffic("sigmoid", 2, 1))

    def _fused(self, *, is_backward: bool) -> MemoryBound:
        """One kernel; GEMMs in fp32 run on plain cores and cost their arithmetic too."""
        run, inputs, outputs = self._run, self._spec.interaction_inputs, self._spec.top_inputs
        reads, writes = (inputs + outputs, inputs) if is_backward else (inputs, outputs)
        size = run.samples * run.dtype.size_bytes
        flops = 2 * run.samples * self._vectors**2 * self._width * (2 if is_backward else 1)
        is_short = run.dtype.size_bytes < FP32_BYTES
        return MemoryBound(
            "interaction", reads * size, writes * size, run.dtype, 0 if is_short else flops
        )

    def _indexed_backward(self) -> Iterator[Step]:
        """The backward pass of indexing with tensors, as PyTorch runs it.

        Gradients of slices and concatenations are views, which need no kernel.
        """
        square, picked, dtype = self._vectors**2, self._run.samples * self._picked, self._run.dtype
        zero = self._traffic("zero", 0, square)
        sorting = [self._traffic("fill", 1, 1)] * _SORTING_KERNELS
        added = MemoryBound("index", picked * _INDEX_BACKWARD_BYTES, 0, dtype)
        copied, label = elementwise("copy", picked, dtype), "triangle backward"
        yield from self._notes("slice", "slice")
        yield self._step("IndexBackward", label, zero, *sorting, copied, added)
        yield self._step("SliceBackward", label, zero, self._traffic("copy", square, square))
        yield from self._gemms_backward()
        yield from self._notes(
            "TransposeBackward", "slice", "slice", "ViewBackward", "ViewBackward"
        )
        summed = self._traffic("add", 2 * self._width, self._width)
        yield self._step("add", "output backward", summed)

    def _gemms_backward(self) -> Iterator[Step]:
        gemm, width = self._gemm(self._width, self._vectors), self._vectors * self._width
        yield self._step("BmmBackward", "products backward", gemm, gemm)
        summed = self._traffic("residual_add", 2 * width, width)
        yield self._step("add", "products backward", summed)

    def _skipping(self, *, is_backward: bool) -> Iterator[Step]:
        """What skips the top layers.

        A wide sum adds up the rows of the wide tables. A factorization machine is half of
        (sum of vectors)^2 - sum of squares, summed over the width; backward, each vector gets
        (sum of vectors - itself), added to its gradient from the top layers.
        """
        spec = self._spec
        wide, deep, width = spec.wide_tables, spec.deep_inputs, spec.deep_width
        # Operator, kernel, numbers per sample read and written.
        kernels: list[tuple[str, str, int, int]] = []
        if wide:
            kernels = [
                ("ExpandBackward", "copy", 1, wide) if is_backward else ("sum", "sum", wide, 1)
            ]
        if self._has_machine and self._run.fuses_interaction:
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
            yield self._step(operator, label, self._traffic(kernel, reads, writes))

    def _gemm(self, n: int, k: int) -> Gemm:
        return Gemm(self._vectors, n, k, self._run.dtype, batch=self._run.samples)

    @property
    def _triangle(self) -> MemoryBound:
        return self._traffic("interaction_tril", self._vectors**2, self._picked)

    def _concat(self, operator: str, label: str, width: int) -> Step:
        return self._step(operator, label, self._traffic("concat", width, width))

    def _traffic(self, kernel: str, reads: int, writes: int) -> MemoryBound:
        """A kernel that reads and writes so many numbers per sample."""
        run = self._run
        return elementwise(kernel, run.samples, run.dtype, reads=reads, writes=writes)

    def _notes(self, *operators: str) -> list[Step]:
        """Operators without kernels, in a stack that issues those of the script one by one."""
        return [Step(one, "") for one in operators if self._run.has_host_triangle]

    def _step(self, operator: str, label: str, *kernels: Op) -> Step:
        return Step(operator, f"interaction/{label}", kernels)
