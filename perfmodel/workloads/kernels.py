"""Kernels: ops that both families use, with the bytes they move."""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Gemm, MemoryBound


def forward_gemm(rows: int, inputs: int, outputs: int, dtype: DType) -> Gemm:
    """The product of a fully connected layer: rows x inputs by inputs x outputs."""
    return Gemm(m=rows, n=outputs, k=inputs, dtype=dtype)


def input_gemm(rows: int, inputs: int, outputs: int, dtype: DType) -> Gemm:
    """The gradient of that layer's input: rows x outputs by outputs x inputs."""
    return Gemm(m=rows, n=inputs, k=outputs, dtype=dtype)


def weight_gemm(rows: int, inputs: int, outputs: int, dtype: DType) -> Gemm:
    """The gradient of that layer's weight: outputs x rows by rows x inputs."""
    return Gemm(m=outputs, n=inputs, k=rows, dtype=dtype)


def elementwise(
    operator: str, elements: int, dtype: DType, *, reads: int = 1, writes: int = 1
) -> MemoryBound:
    """A kernel that reads and writes *reads* and *writes* tensors of *elements* numbers."""
    size_bytes = elements * dtype.size_bytes
    return MemoryBound(
        operator, read_bytes=reads * size_bytes, write_bytes=writes * size_bytes, dtype=dtype
    )


def cast(elements: int, source: DType, target: DType) -> MemoryBound:
    """Numbers turned from one format into another."""
    return MemoryBound(
        "cast",
        read_bytes=elements * source.size_bytes,
        write_bytes=elements * target.size_bytes,
        dtype=target,
    )


def row_sum(rows: int, columns: int, dtype: DType) -> MemoryBound:
    """The sum over rows that is the gradient of a bias."""
    return MemoryBound(
        "reduction",
        read_bytes=rows * columns * dtype.size_bytes,
        write_bytes=columns * dtype.size_bytes,
        dtype=dtype,
        row_length=rows,
    )


def dropout(elements: int, dtype: DType, *, is_backward: bool) -> MemoryBound:
    """Drop *elements* numbers, or carry their gradients back; the mask is a byte a number."""
    size_bytes = elements * dtype.size_bytes
    return MemoryBound(
        "dropout",
        read_bytes=size_bytes + (elements if is_backward else 0),
        write_bytes=size_bytes + (0 if is_backward else elements),
        dtype=dtype,
    )


def dropout_residual(elements: int, dtype: DType) -> MemoryBound:
    """Drop *elements* numbers and add the residual, in one kernel."""
    size_bytes = elements * dtype.size_bytes
    return MemoryBound("dropout_residual", 2 * size_bytes, size_bytes + elements, dtype=dtype)


def bias_add(rows: int, columns: int, dtype: DType) -> MemoryBound:
    """Add a bias to the output of a product, in a kernel of its own."""
    return elementwise("bias_add", rows * columns, dtype)
