"""Kernels to measure: ops a cost model can price, each with the torch call that does the same.

Operands take turns over enough copies to leave the caches, because in training a weight comes
from memory. Outputs are allocated anew, as eager operators do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.calibration.measure.clock import Stopwatch, Timing, time_call
from perfmodel.graph.ops import Attention, EmbeddingOp, Gemm, MemoryBound, Pass, Work

ROTATED_BYTES = 64 * 2**20
MOST_COPIES = 8
TORCH_DTYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}
GEMM_SHAPES = (
    (128, 1024, 1024), (128, 512, 2048), (256, 2048, 512), (512, 768, 256), (512, 256, 1024),
    (1024, 1024, 512), (64, 4096, 1024),
)  # fmt: skip
BATCHED_SHAPES = ((16, 128, 128, 64), (8, 256, 256, 64))
MEMORY_ELEMENTS = (2**16, 2**18, 2**20, 2**22)
ROW_LENGTHS = (256, 1024)


@dataclass(frozen=True, slots=True)
class KernelCase:
    """An op and the call that carries it out."""

    family: str
    op: Work
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """An op and how long it took here."""

    family: str
    op: Work
    timing: Timing


def measure_kernels(
    device: str, dtypes: Sequence[DType], *, stopwatch: Stopwatch, samples: int
) -> list[KernelMeasurement]:
    """Measure every case on *device*; products and attention in all of *dtypes*."""
    cases = itertools.chain(
        iter_products(device, dtypes),
        iter_memory(device),
        iter_attention(device, dtypes),
        iter_embedding(device),
    )
    with torch.no_grad():
        return [
            KernelMeasurement(
                case.family, case.op, time_call(case.call, stopwatch=stopwatch, samples=samples)
            )
            for case in cases
        ]


def iter_products(device: str, dtypes: Sequence[DType]) -> Iterator[KernelCase]:
    """Layers forward, their gradients by input and by weight, and batches of products."""
    for dtype in dtypes:
        kind = TORCH_DTYPES[dtype]
        for rows, outputs, inputs in GEMM_SHAPES:
            data = _copies(device, kind, (rows, inputs), (outputs, inputs), (rows, outputs))
            yield KernelCase(
                "gemm",
                Gemm(rows, outputs, inputs, dtype),
                _turning(data, _forward),
            )
            yield KernelCase(
                "gemm", Gemm(rows, inputs, outputs, dtype), _turning(data, _input_gradient)
            )
            yield KernelCase(
                "gemm",
                Gemm(outputs, inputs, rows, dtype),
                _turning(data, _weight_gradient),
            )
        for batch, rows, columns, inner in BATCHED_SHAPES:
            data = _copies(device, kind, (batch, rows, inner), (batch, inner, columns))
            op = Gemm(rows, columns, inner, dtype, batch=batch)
            yield KernelCase("bmm", op, _turning(data, torch.bmm))


def _forward(inputs: Tensor, weight: Tensor, slope: Tensor) -> Tensor:
    del slope
    return functional.linear(inputs, weight)


def _input_gradient(inputs: Tensor, weight: Tensor, slope: Tensor) -> Tensor:
    del inputs
    return slope @ weight


def _weight_gradient(inputs: Tensor, weight: Tensor, slope: Tensor) -> Tensor:
    del weight
    return slope.t() @ inputs


def iter_memory(device: str) -> Iterator[KernelCase]:
    """Kernels bound by traffic: pointwise ones, norms, softmax, an optimizer's pass."""
    pointwise: tuple[tuple[str, int, Callable[..., object]], ...] = (
        ("relu", 1, torch.relu),
        ("gelu", 1, functional.gelu),
        ("add", 2, torch.add),
        ("copy", 1, torch.clone),
    )
    for elements in MEMORY_ELEMENTS:
        size = elements * DType.FP32.size_bytes
        for word, reads, call in pointwise:
            data = _copies(device, torch.float32, *[(elements,)] * reads)
            yield KernelCase(
                "memory", MemoryBound(word, reads * size, size, DType.FP32), _turning(data, call)
            )
        data = _copies(device, torch.float32, (elements,), (elements,))
        step = MemoryBound("sgd", 2 * size, size, DType.FP32)
        yield KernelCase(
            "memory", step, _turning(data, lambda weight, slope: weight.add_(slope, alpha=-1e-9))
        )
        for length in ROW_LENGTHS:
            data = _copies(device, torch.float32, (elements // length, length))
            yield from _row_cases(data, elements, length)


def _row_cases(data: list[tuple[Tensor, ...]], elements: int, length: int) -> Iterator[KernelCase]:
    size = elements * DType.FP32.size_bytes
    calls: tuple[tuple[str, Callable[..., object]], ...] = (
        ("layer_norm", lambda x: functional.layer_norm(x, (length,))),
        ("softmax", lambda x: functional.softmax(x, dim=-1)),
    )
    for word, call in calls:
        op = MemoryBound(word, size, size, DType.FP32, row_length=length)
        yield KernelCase("memory", op, _turning(data, call))


def iter_attention(device: str, dtypes: Sequence[DType]) -> Iterator[KernelCase]:
    """Attention forward: fused on CUDA, products and passes over the scores on a CPU."""
    is_fused = device == "cuda"
    dtype = dtypes[-1]
    for batch, heads, length, width in ((4, 4, 128, 64), (2, 8, 256, 64), (1, 8, 512, 64)):
        shape = (batch, heads, length, width)
        data = _copies(device, TORCH_DTYPES[dtype], shape, shape, shape)
        op = Attention(
            batch=batch,
            query_length=length,
            key_length=length,
            heads=heads,
            kv_heads=heads,
            head_dim=width,
            dtype=dtype,
            is_causal=is_fused,
            kernel="auto" if is_fused else "unfused",
        )
        yield KernelCase("attention", op, _turning(data, _fused if is_fused else attend_unfused))


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def attend_unfused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as two products with a softmax between, the mask left out."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return functional.softmax(scores, dim=-1) @ value


def iter_embedding(device: str) -> Iterator[KernelCase]:
    """Lookups of pooled rows, evenly drawn; forward only, since torch has no fused update."""
    generator = torch.Generator().manual_seed(0)
    for rows, width, batch, pooling in ((100_000, 64, 512, 20), (500_000, 32, 1024, 10)):
        weight = torch.randn(rows, width, device=device)
        indices = torch.randint(rows, (batch, pooling), generator=generator).to(device)
        lookup = Lookup((EmbeddingTable("table", rows, width, float(pooling)),), batch)
        op = EmbeddingOp(lookup, Pass.FORWARD)
        data = [(indices, weight)]
        yield KernelCase(
            "embedding",
            op,
            _turning(data, lambda i, w: functional.embedding_bag(i, w, mode="sum")),
        )


def _copies(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Operands of one call, several times over."""
    first = tuple(torch.randn(shape, device=device).to(dtype) for shape in shapes)
    size = sum(tensor.numel() * tensor.element_size() for tensor in first)
    count = min(max(-(-ROTATED_BYTES // size), 2), MOST_COPIES)
    return [first, *(tuple(t.clone() for t in first) for _ in range(count - 1))]


def _turning(
    data: Sequence[tuple[Tensor, ...]], call: Callable[..., object]
) -> Callable[[], object]:
    turns = itertools.cycle(data)
    return lambda: call(*next(turns))
