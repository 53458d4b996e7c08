"""Kernel estimates: how much a kernel did, where no shapes were recorded.

Its name says what family it is of, its grid how many values it handled or how
large its output was, and its duration how much fits into that time at the
rates of the device it ran on. An estimate is good for ratios between devices,
not for counting: it is marked as one wherever it goes.

Leaves out: caches, and kernels that run far below the rates of their family.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.units import NS_PER_S
from perfmodel.graph.ops import Gemm, MemoryBound, Work
from topologies import Device, find_device, load_device
from topologies.device import Architecture

_REACHED_RATIO = 0.7
"""What kernels of a training job reach of the datasheet's rates, roughly."""
_FLOOR_NS = 2_000
_UNKNOWN_DEVICE = "a100_sxm_80gb"
_PRODUCT_WORDS = (
    "gemm", "cijk_", "xmma", "nvjet", "cutlass", "gemv", "conv", "wgrad", "dgrad", "fprop",
    "winograd", "cublas",
)  # fmt: skip
_NO_PRODUCT_WORDS = (
    "splitkreduce", "transpose", "nchwtonhwc", "nhwctonchw", "reduce_", "tensorop1d", "embedding",
    "fbgemm", "preprocess", "postprocess",
)  # fmt: skip
_FORMATS = (
    ("qqtst", DType.FP8), ("qrtst", DType.FP8), ("rqsss", DType.FP8), ("e4m3", DType.FP8),
    ("bf16", DType.BF16), ("bfloat16", DType.BF16), ("_bbs_", DType.BF16),
    ("nvjet_tst", DType.BF16),
    ("half", DType.FP16), ("fp16", DType.FP16), ("_hhs_", DType.FP16), ("h884", DType.FP16),
    ("h1688", DType.FP16), ("h16816", DType.FP16), ("f16", DType.FP16),
    ("s1688", DType.TF32), ("tf32", DType.TF32), ("double", DType.FP64), ("dgemm", DType.FP64),
)  # fmt: skip
_TILE = re.compile(r"(?<![0-9x])(\d{2,3})x(\d{2,3})(?![0-9])")
_ELEMENTWISE = re.compile(
    r"(vectorized_|unrolled_|legacy_)?elementwise_kernel\w*<(\d+)(?:, *(\d+))?"
)
_POINTERS = re.compile(r"Array<char ?\*, *(\d+)u?l?>")
_LISTS = re.compile(r"TensorListMetadata<(\d+)>|TensorListScalarListMetadata<\w+, *(\d+)>")
_CHUNK_VALUES = 65_536
_VALUES_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel as the profiler saw it; *grid* and *block* are empty where it did not say."""

    name: str
    duration_ns: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


def is_product(name: str) -> bool:
    """Whether a kernel of this *name* multiplies matrices."""
    word = name.lower()
    return any(w in word for w in _PRODUCT_WORDS) and not any(w in word for w in _NO_PRODUCT_WORDS)


def parse_launch(name: str, duration_ns: int, detail: dict[str, Any]) -> Launch:
    """A launch from what the profiler kept about it in *detail*."""
    return Launch(name, duration_ns, _extents(detail.get("grid")), _extents(detail.get("block")))


def _extents(value: Any) -> tuple[int, ...]:
    is_whole = isinstance(value, list) and all(isinstance(n, int) and 0 < n < 2**31 for n in value)
    return tuple(value) if is_whole and len(value) == 3 else ()


def estimate_work(launch: Launch, device: Device, *, is_batched: bool = False) -> Work:
    """The work of *launch* on *device*; *is_batched* where a grid's depth counts products."""
    if is_product(launch.name):
        return _product(launch, device, is_batched=is_batched)
    return _memory_bound(launch, device)


def _product(launch: Launch, device: Device, *, is_batched: bool) -> Gemm:
    """Output from tiles and grid, depth from the time: a roofline backwards."""
    dtype = _format_of(launch.name)
    rate = device.peak_flops.get(dtype) or device.vector_flops
    flops = max(rate * _REACHED_RATIO * launch.duration_ns / NS_PER_S, 2.0)
    tile = _TILE.search(launch.name)
    # Kernels of Hopper and later stay on their multiprocessors: the grid says nothing there.
    if tile and launch.grid and "nvjet" not in launch.name:
        rows, columns = launch.grid[1] * int(tile[2]), launch.grid[0] * int(tile[1])
        batch = launch.grid[2] if is_batched else 1
        depth = max(round(flops / (2.0 * batch * rows * columns)), 1)
        return Gemm(rows, columns, depth, dtype, batch)
    side = max(round((flops / 2.0) ** (1.0 / 3.0)), 1)
    return Gemm(side, side, side, dtype)


def _format_of(name: str) -> DType:
    word = name.lower()
    return next((dtype for piece, dtype in _FORMATS if piece in word), DType.FP32)


def _memory_bound(launch: Launch, device: Device) -> MemoryBound:
    dtype = _format_of(launch.name)
    dtype = DType.FP32 if dtype is DType.TF32 else dtype
    active_ns = max(launch.duration_ns - _FLOOR_NS, 1)
    fits_bytes = active_ns * device.memory_bandwidth_bytes_per_s / NS_PER_S
    counted_bytes = _counted_bytes(launch, dtype)
    moved_bytes = fits_bytes * _REACHED_RATIO
    if counted_bytes:
        moved_bytes = min(counted_bytes, fits_bytes)
    half = max(round(moved_bytes / 2), 1)
    return MemoryBound(_word_of(launch.name), half, half, dtype)


def _counted_bytes(launch: Launch, dtype: DType) -> int:
    """Values by the grid, times tensors; 0 where the kernel's name does not tell."""
    if not launch.grid:
        return 0
    lists = _LISTS.search(launch.name)
    if lists:
        tensors = int(lists[1] or lists[2])
        return launch.grid[0] * _CHUNK_VALUES * tensors * dtype.size_bytes
    kind = _ELEMENTWISE.search(launch.name)
    if kind is None or not launch.block:
        return 0
    # elementwise_kernel<threads, values> says so itself; the others take four a thread.
    per_thread = int(kind[3]) if kind[3] and not kind[1] else _VALUES_PER_THREAD
    pointers = _POINTERS.search(launch.name)
    tensors = int(pointers[1]) if pointers else 3 if "Binary" in launch.name else 2
    return launch.grid[0] * launch.block[0] * per_thread * tensors * dtype.size_bytes


_KERNEL_WORDS = (
    "embedding", "softmax", "layer_norm", "batch_norm", "multi_tensor_apply", "radixsort", "scan",
    "reduce", "index", "cat", "transpose", "copy", "fill", "memset", "dropout", "elementwise",
)  # fmt: skip


def _word_of(name: str) -> str:
    word = name.lower()
    return next((known for known in _KERNEL_WORDS if known in word), "kernel")


_BUS_RATES = {
    Architecture.VOLTA: 80e9,
    Architecture.AMPERE: 200e9,
    Architecture.HOPPER: 350e9,
    Architecture.BLACKWELL: 700e9,
    Architecture.CDNA3: 250e9,
}
"""What four or eight GPUs wired to each other reach in large collectives, bytes a second."""
_HOST_BUS_RATE = 10e9


def estimate_collective(
    kind: CollectiveKind, transfer_ns: int, ranks: int, device: Device
) -> Collective:
    """A collective of *kind* that takes *transfer_ns* among *ranks* such devices."""
    is_wired = "pcie" not in device.name
    rate = _BUS_RATES.get(device.architecture, _HOST_BUS_RATE) if is_wired else _HOST_BUS_RATE
    passes = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    share = passes * (ranks - 1) / ranks if kind in _SPREAD else 1.0
    size_bytes = max(round(transfer_ns * rate / NS_PER_S / max(share, 0.5) / 4), 1) * 4
    return Collective(kind, size_bytes)


_SPREAD = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def estimating_device(names: Sequence[str]) -> Device:
    """The GPU whose rates turn durations into amounts; a common one where none is known."""
    found = find_device(names[0]) if names else None
    return found or load_device(_UNKNOWN_DEVICE)
