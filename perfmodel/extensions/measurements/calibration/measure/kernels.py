"""Kernels to measure: ops a cost model can price, each with the torch call that does the same.

Operands rotate over enough copies to leave the caches, because in training a weight comes from
memory. Outputs are newly allocated, as eager operators do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.costs.models import family_of
from perfmodel.extensions.measurements.calibration.measure.clock import Stopwatch, Timing, time_call
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


KernelCase = tuple[Work, Callable[[], object]]
"""An op and the torch call that does the same."""


@dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """An op and how long it took here."""

    op: Work
    timing: Timing

    @property
    def family(self) -> str:
        """The family of its cost model; batched GEMMs are a family of their own."""
        is_batched = isinstance(self.op, Gemm) and self.op.batch > 1
        return "bmm" if is_batched else family_of(type(self.op))


def measure_kernels(
    device: str, dtypes: Sequence[DType], *, stopwatch: Stopwatch, samples: int
) -> list[KernelMeasurement]:
    """Measure every case on *device*; GEMMs in all of *dtypes*, attention in the last."""
    cases = itertools.chain(
        iter_gemms(device, dtypes),
        iter_memory(device),
        iter_attention(device, dtypes[-1]),
        iter_embedding(device),
    )
    with torch.no_grad():
        return [
            KernelMeasurement(op, time_call(call, stopwatch=stopwatch, samples=samples))
            for op, call in cases
        ]


def iter_gemms(device: str, dtypes: Sequence[DType]) -> Iterator[KernelCase]:
    """Layers forward, their gradients by input and by weight, and batched GEMMs."""
    for dtype in dtypes:
        kind = TORCH_DTYPES[dtype]
        for rows, outputs, inputs in GEMM_SHAPES:
            data = _copies(device, kind, (rows, inputs), (outputs, inputs), (rows, outputs))
            yield (
                Gemm(rows, outputs, inputs, dtype),
                _rotating(data, lambda x, weight, _: functional.linear(x, weight)),
            )
            yield (
                Gemm(rows, inputs, outputs, dtype),
                _rotating(data, lambda _, weight, gradient: gradient @ weight),
            )
            yield (
                Gemm(outputs, inputs, rows, dtype),
                _rotating(data, lambda x, _, gradient: gradient.t() @ x),
            )
        for batch, rows, columns, inner in BATCHED_SHAPES:
            data = _copies(device, kind, (batch, rows, inner), (batch, inner, columns))
            yield Gemm(rows, columns, inner, dtype, batch=batch), _rotating(data, torch.bmm)


def iter_memory(device: str) -> Iterator[KernelCase]:
    """Memory-bound kernels: pointwise ones, an optimizer step, norms and softmax."""
    pointwise: tuple[tuple[str, int, Callable[..., object]], ...] = (
        ("relu", 1, torch.relu),
        ("gelu", 1, functional.gelu),
        ("add", 2, torch.add),
        ("copy", 1, torch.clone),
        ("sgd", 2, lambda weight, gradient: weight.add_(gradient, alpha=-1e-9)),
    )
    for elements in MEMORY_ELEMENTS:
        size = elements * DType.FP32.size_bytes
        for word, reads, call in pointwise:
            data = _copies(device, torch.float32, *[(elements,)] * reads)
            yield MemoryBound(word, reads * size, size, DType.FP32), _rotating(data, call)
        for length in ROW_LENGTHS:
            data = _copies(device, torch.float32, (elements // length, length))
            norm = MemoryBound("layer_norm", size, size, DType.FP32, row_length=length)
            shape = (length,)
            yield norm, _rotating(data, partial(functional.layer_norm, normalized_shape=shape))
            softmax = MemoryBound("softmax", size, size, DType.FP32, row_length=length)
            yield softmax, _rotating(data, partial(functional.softmax, dim=-1))


def iter_attention(device: str, dtype: DType) -> Iterator[KernelCase]:
    """Attention forward: fused on CUDA, GEMMs and passes over the scores on a CPU."""
    is_fused = device == "cuda"
    fused = partial(functional.scaled_dot_product_attention, is_causal=True)
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
        yield op, _rotating(data, fused if is_fused else attend_unfused)


def attend_unfused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as two GEMMs with a softmax between, without a mask."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return functional.softmax(scores, dim=-1) @ value


def iter_embedding(device: str) -> Iterator[KernelCase]:
    """Lookups of pooled rows, drawn uniformly; forward only, since torch has no fused update."""
    generator = torch.Generator().manual_seed(0)
    for rows, width, batch, pooling in ((100_000, 64, 512, 20), (500_000, 32, 1024, 10)):
        weight = torch.randn(rows, width, device=device)
        indices = torch.randint(rows, (batch, pooling), generator=generator).to(device)
        lookup = Lookup((EmbeddingTable("table", rows, width, float(pooling)),), batch)
        call = partial(functional.embedding_bag, mode="sum")
        yield EmbeddingOp(lookup, Pass.FORWARD), _rotating([(indices, weight)], call)


def _copies(device: str, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[tuple[Tensor, ...]]:
    """Operands of one call, several times over."""
    first = tuple(torch.randn(shape, device=device).to(dtype) for shape in shapes)
    size = sum(tensor.numel() * tensor.element_size() for tensor in first)
    count = min(max(-(-ROTATED_BYTES // size), 2), MOST_COPIES)
    return [first, *(tuple(t.clone() for t in first) for _ in range(count - 1))]


def _rotating(
    data: Sequence[tuple[Tensor, ...]], call: Callable[..., object]
) -> Callable[[], object]:
    copies = itertools.cycle(data)
    return lambda: call(*next(copies))
