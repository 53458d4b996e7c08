"""Kernels that both families use: GEMMs of fully connected layers, memory-bound ones, optimizers.

A fused optimizer reads and writes everything once. `foreach` runs each
operation of the formula over a list of tensors, `plain` over one tensor after
another; both move every operand again. Weights used in a format shorter than
fp32 have an fp32 master copy, and are rewritten from it.
Leaves out: loss scaling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Gemm, MemoryBound
from perfmodel.stacks.capabilities import OptimizerKernels
from perfmodel.stacks.optimizers import load_optimizers

FP32_BYTES = DType.FP32.size_bytes


@dataclass(frozen=True, slots=True)
class Linear:
    """A fully connected layer as one rank has it; *bias* counts its elements."""

    inputs: int
    outputs: int
    bias: int = 0

    @property
    def weight(self) -> int:
        """Elements of the weight."""
        return self.inputs * self.outputs

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of the weight and of the bias, if there is one."""
        return (self.weight, self.bias) if self.bias else (self.weight,)

    @property
    def parameters(self) -> int:
        """Elements of weight and bias."""
        return self.weight + self.bias

    def forward_gemm(self, rows: int, dtype: DType) -> Gemm:
        """The GEMM of the forward pass over *rows* rows."""
        return Gemm(m=rows, n=self.outputs, k=self.inputs, dtype=dtype)

    def input_gemm(self, rows: int, dtype: DType) -> Gemm:
        """The GEMM for the gradient of the input."""
        return Gemm(m=rows, n=self.inputs, k=self.outputs, dtype=dtype)

    def weight_gemm(self, rows: int, dtype: DType) -> Gemm:
        """The GEMM for the gradient of the weight."""
        return Gemm(m=self.outputs, n=self.inputs, k=rows, dtype=dtype)


def elementwise(
    operator: str,
    elements: int,
    dtype: DType,
    *,
    reads: int = 1,
    writes: int = 1,
    row_length: int = 0,
) -> MemoryBound:
    """A kernel that reads *reads* and writes *writes* tensors of *elements* numbers."""
    size_bytes = elements * dtype.size_bytes
    return MemoryBound(
        operator, reads * size_bytes, writes * size_bytes, dtype, row_length=row_length
    )


def cast(elements: int, source: DType, target: DType, *, copies: int = 1) -> MemoryBound:
    """Convert *elements* numbers to another format, written *copies* times.

    Four bits have a scale of the whole tensor beside those of blocks: it is read once more.
    """
    written_bytes = copies * target.bytes_of(elements)
    reads = 2 if target is DType.NVFP4 else 1
    return MemoryBound("cast", reads * elements * source.size_bytes, written_bytes, target)


def row_sum(rows: int, columns: int, dtype: DType) -> MemoryBound:
    """The sum over rows that is the gradient of a bias."""
    size_bytes = columns * dtype.size_bytes
    return MemoryBound("reduction", rows * size_bytes, size_bytes, dtype, row_length=rows)


def dropout(elements: int, dtype: DType, *, is_backward: bool = False) -> MemoryBound:
    """Drop *elements* numbers, or pass their gradients back; the mask is one byte per number."""
    size_bytes = elements * dtype.size_bytes
    read, write = (elements, 0) if is_backward else (0, elements)
    return MemoryBound("dropout", size_bytes + read, size_bytes + write, dtype)


def iter_optimizer_calls(
    optimizer: str,
    kernels: OptimizerKernels,
    groups: Sequence[Sequence[int]],
    *,
    gradient_dtype: DType,
    weight_dtype: DType,
    state_dtype: DType = DType.FP32,
) -> Iterator[tuple[str, tuple[MemoryBound, ...]]]:
    """The operators of a step of *optimizer*, each with its kernels.

    *groups* are groups of tensors, each tensor given by its elements.
    """
    sizes = [sum(group) for group in groups]
    is_fused = kernels is OptimizerKernels.FUSED
    sizes_bytes = gradient_dtype.size_bytes, state_dtype.size_bytes
    operations = _operations(optimizer, *sizes_bytes, is_fused=is_fused)
    lists = [sizes]
    if kernels is OptimizerKernels.PLAIN:
        lists = [[tensor] for group in groups for tensor in group]
    calls = [(numbers, call) for numbers in lists for call in operations]
    if (size := weight_dtype.size_bytes) < state_dtype.size_bytes:
        calls.append((sizes, ("copy_", "master_weights", FP32_BYTES, size)))
    for numbers, (operator, word, read, write) in calls:
        yield (
            operator,
            tuple(MemoryBound(word, n * read, n * write, DType.FP32) for n in numbers),
        )


def _operations(
    optimizer: str, gradient_bytes: int, state_bytes: int, *, is_fused: bool
) -> list[tuple[str, str, int, int]]:
    """Operator, kernel, and bytes read and written per parameter of every operation."""
    formula = load_optimizers()[optimizer]
    if not is_fused:
        casts = (
            [("to", "cast", gradient_bytes, state_bytes)] if gradient_bytes < state_bytes else []
        )
        return casts + [
            (operator, optimizer, reads * state_bytes, writes * state_bytes)
            for operator, reads, writes in formula.step
        ]
    name = f"Optimizer.step#{optimizer.upper()}.step"
    write = state_bytes * (1 + formula.states)
    operations = [(name, optimizer, write + gradient_bytes, write)]
    return operations + [
        (name if operator == "step" else operator, word, reads * state_bytes, writes * state_bytes)
        for operator, word, reads, writes in formula.fused
    ]
