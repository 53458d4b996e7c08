"""Where dense and sparse features meet, operator by operator.

A fused interaction is one kernel each way. Otherwise vectors are concatenated,
multiplied, and a triangle of the products is picked. What a model adds to the
output of its top layers (a wide sum, a factorization machine) is written here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Gemm, MemoryBound, Op
from perfmodel.stacks.stack import FrameworkBehaviour, Fusion, SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.feeding import copy_blocking
from perfmodel.workloads.kernels import elementwise

_INDEX_BYTES = 8
_INDEX_BACKWARD_BYTES = 355
"""Traffic an element stands for whose gradient is added by index.

Fitted: the kernel takes 0.436 ns an element at two sizes of recorded V100 iterations (36 and 351
elements a sample, 2,048 samples; arXiv 2201.07821, figures quoted as facts, 2026-11-16), far from
any bandwidth: neighbours lie a sample apart.
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
            self._run("cat", [self._concat()], "interaction/concat forward")
        if is_fused:
            self._run("interaction", [self._fused(is_backward=False)], "interaction/dot forward")
        elif is_dot:
            self._dot_forward()
        for operator, kernel in self._skipping_forward():
            self._run(operator, [kernel], "interaction/skipping forward")

    def run_backward(self) -> None:
        """Write the backward pass, up to the gradients of all vectors."""
        for operator, kernel in self._skipping_backward():
            self._run(operator, [kernel], "interaction/skipping backward")
        is_dot = self.spec.dense.interaction is Interaction.DOT
        if is_dot and self.stack.fuses(Fusion.INTERACTION):
            kernel = self._fused(is_backward=True)
            self._run("InteractionBackward", [kernel], "interaction/dot backward")
            if self.stack.fuses(Fusion.ELEMENTWISE):
                return
        elif is_dot and self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self._indexed_backward()
            return
        elif is_dot:
            self._dot_backward()
        self._run("CatBackward", [self._concat()], "interaction/concat backward")

    def join_forward(self) -> None:
        """Add what skipped the top layers to their output."""
        for _ in range(self._skipping_sums):
            add = self._sized("add", self.samples, reads=2)
            self._run("add", [add], "interaction/join forward")
        if self._skipping_sums:
            self._run("sigmoid", [self._sized("sigmoid", self.samples)], "interaction/join forward")

    def join_backward(self) -> None:
        """Write the backward pass of the joined output; sums pass their gradient on."""
        if self._skipping_sums:
            kernel = self._sized("sigmoid", self.samples, reads=2)
            self._run("SigmoidBackward", [kernel], "interaction/join backward")

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
        return self.samples * (self._vectors * (self._vectors - 1) // 2)

    @property
    def _skipping_sums(self) -> int:
        """Sums that are added to the output: of the wide tables, of the factorization machine."""
        is_machine = self.spec.dense.interaction is Interaction.DEEP_FM
        return (1 if self.spec.wide_tables else 0) + (1 if is_machine else 0)

    def _concat(self) -> MemoryBound:
        return self._sized("concat", self.samples * self.spec.interaction_inputs)

    def _fused(self, *, is_backward: bool) -> MemoryBound:
        """One kernel; products in fp32 run on plain cores and cost their arithmetic too."""
        size = self.samples * self._dtype.size_bytes
        inputs, outputs = self.spec.interaction_inputs, self.spec.top_inputs
        flops = 2 * self.samples * self._vectors**2 * self._width
        return MemoryBound(
            "interaction",
            read_bytes=size * (inputs + outputs if is_backward else inputs),
            write_bytes=size * (inputs if is_backward else outputs),
            dtype=self._dtype,
            flops=0 if self._dtype.size_bytes < 4 else flops * (2 if is_backward else 1),
        )

    def _dot_forward(self) -> None:
        self._note("transpose")
        gemm = Gemm(self._vectors, self._vectors, self._width, self._dtype, batch=self.samples)
        self._run("bmm", [gemm], "interaction/products forward")
        if self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            self._note("tril_indices", "slice")
            indices_bytes = self._picked // self.samples * _INDEX_BYTES
            for _ in range(2):  # row and column
                copy_blocking(self.writer, indices_bytes, label="interaction/triangle indices")
        self._run("index", [self._triangle()], "interaction/triangle forward")
        output = self._sized("concat", self.samples * self.spec.top_inputs)
        self._run("cat", [output], "interaction/output forward")

    def _dot_backward(self) -> None:
        output = self._sized("concat", self.samples * self.spec.top_inputs)
        self._run("CatBackward", [output], "interaction/output backward")
        self._run("IndexBackward", [self._triangle()], "interaction/triangle backward")
        self._products_backward()

    def _indexed_backward(self) -> None:
        """The backward pass of indexing with tensors, as PyTorch runs it.

        Gradients of slices and concatenations are views, which no kernel makes.
        """
        square = self.samples * self._vectors**2
        zero = MemoryBound("zero", 0, square * self._dtype.size_bytes, self._dtype)
        sorting = [self._sized("fill", self.samples) for _ in range(_SORTING_KERNELS)]
        added = MemoryBound("index", self._picked * _INDEX_BACKWARD_BYTES, 0, self._dtype)
        kernels = [zero, *sorting, self._sized("copy", self._picked), added]
        self._note("slice", "slice")
        self._run("IndexBackward", kernels, "interaction/triangle backward")
        sliced = [zero, self._sized("copy", square)]
        self._run("SliceBackward", sliced, "interaction/triangle backward")
        self._products_backward()
        self._note("TransposeBackward", "slice", "slice", "ViewBackward", "ViewBackward")
        add = self._sized("add", self.samples * self._width, reads=2)
        self._run("add", [add], "interaction/output backward")

    def _products_backward(self) -> None:
        gemm = Gemm(self._vectors, self._width, self._vectors, self._dtype, batch=self.samples)
        self._run("BmmBackward", [gemm, gemm], "interaction/products backward")
        add = self._sized("residual_add", self.samples * self._vectors * self._width, reads=2)
        self._run("add", [add], "interaction/products backward")

    def _triangle(self) -> MemoryBound:
        size = self._dtype.size_bytes
        square_bytes = size * self.samples * self._vectors**2
        return MemoryBound("interaction_tril", square_bytes, size * self._picked, self._dtype)

    def _skipping_forward(self) -> list[tuple[str, MemoryBound]]:
        kernels = []
        if self.spec.wide_tables:
            kernels.append(("sum", self._traffic("sum", self.spec.wide_tables, 1)))
        if self.spec.dense.interaction is Interaction.DEEP_FM:
            kernels += self._machine_forward()
        return kernels

    def _skipping_backward(self) -> list[tuple[str, MemoryBound]]:
        kernels = []
        if self.spec.wide_tables:
            kernels.append(("ExpandBackward", self._traffic("copy", 1, self.spec.wide_tables)))
        if self.spec.dense.interaction is Interaction.DEEP_FM:
            kernels += self._machine_backward()
        return kernels

    def _machine_forward(self) -> list[tuple[str, MemoryBound]]:
        """Half of (sum of vectors)^2 - sum of squares, summed over the width."""
        deep, width = self.spec.deep_inputs, self.spec.deep_width
        if self.stack.fuses(Fusion.INTERACTION):
            return [("interaction", self._traffic("interaction", deep, 1))]
        return [
            ("sum", self._traffic("sum", deep, width)),
            ("pow", self._traffic("pow", width, width)),
            ("pow", self._traffic("pow", deep, deep)),
            ("sum", self._traffic("sum", deep, width)),
            ("sub", self._traffic("sub", 2 * width, width)),
            ("sum", self._traffic("sum", width, 1)),
        ]

    def _machine_backward(self) -> list[tuple[str, MemoryBound]]:
        """Each vector gets (sum of vectors - itself), added to its gradient from the top layers."""
        deep, width = self.spec.deep_inputs, self.spec.deep_width
        if self.stack.fuses(Fusion.INTERACTION):
            fused = self._traffic("interaction", 2 * deep + 1, deep)
            return [("InteractionBackward", fused)]
        return [
            ("MulBackward", self._traffic("mul", width + 1, width)),
            ("PowBackward", self._traffic("mul", deep + width, deep)),
            ("add", self._traffic("add", deep + width, deep)),
            ("add", self._traffic("add", 2 * deep, deep)),
        ]

    def _traffic(self, word: str, reads: int, writes: int) -> MemoryBound:
        """A kernel that reads and writes so many numbers a sample."""
        size = self.samples * self._dtype.size_bytes
        return MemoryBound(word, reads * size, writes * size, self._dtype)

    def _sized(self, word: str, elements: int, reads: int = 1) -> MemoryBound:
        return elementwise(word, elements, self._dtype, reads=reads)

    def _note(self, *operators: str) -> None:
        """Operators without kernels, where the script's own are followed one by one."""
        if self.stack.has(FrameworkBehaviour.HOST_TRIANGLE):
            for operator in operators:
                self.writer.note(operator)

    def _run(self, operator: str, kernels: Sequence[Op], label: str) -> None:
        self.writer.run(operator, kernels, label=label)
