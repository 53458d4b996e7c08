"""Kernel estimates: the work of a kernel without recorded shapes.

Its name gives its family, its grid the number of values or the size of its output, and its
duration how much fits into that time at the rates of its device. An estimate is good for ratios
between devices, not for counting, and is marked as an estimate wherever it goes.

Leaves out: caches, and kernels that run far below the rates of their family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.units import NS_PER_S
from perfmodel.graph.ops import Gemm, MemoryBound, Work
from topologies import Device, find_device, load_device

_REACHED_RATIO = 0.7
"""Rough share of the datasheet's rates that kernels of a training job reach."""
_FLOOR_NS = 2_000
_UNKNOWN_DEVICE = "a100_sxm_80gb"
_WORDS = load_yaml(Path(__file__).with_suffix(".yaml"))
_FORMAT_WORDS = {DType(dtype): words for dtype, words in _WORDS["formats"].items()}
"""Parts of kernel names that show the number format; the first format that fits decides."""
_TILE = re.compile(r"(?<![0-9x])(\d{2,3})x(\d{2,3})(?![0-9])")
_ELEMENTWISE = re.compile(
    r"(vectorized_|unrolled_|legacy_)?elementwise_kernel\w*<(\d+)(?:, *(\d+))?"
)
_POINTERS = re.compile(r"Array<char ?\*, *(\d+)u?l?>")
_LISTS = re.compile(r"TensorListMetadata<(\d+)>|TensorListScalarListMetadata<\w+, *(\d+)>")
_CHUNK_VALUES = 65_536
_VALUES_PER_THREAD = 4


@lru_cache(maxsize=4096)
def is_gemm_kernel(name: str) -> bool:
    """Whether a kernel of this *name* is a GEMM or a convolution."""
    word = name.lower()
    return any(w in word for w in _WORDS["gemm"]) and not any(w in word for w in _WORDS["no_gemm"])


def estimate_work(
    name: str,
    duration_ns: int,
    device: Device,
    *,
    detail: Mapping[str, Any] | None = None,
    is_batched: bool = False,
) -> Work:
    """The work of kernel *name* that took *duration_ns* on *device*.

    *detail* is what the profiler kept about its launch; with *is_batched* the depth of the grid
    counts matrices.
    """
    grid, block = (_extents((detail or {}).get(key)) for key in ("grid", "block"))
    dtype = _format_of(name)
    if is_gemm_kernel(name):
        return _gemm(name, duration_ns, device, dtype, grid, is_batched=is_batched)
    dtype = DType.FP32 if dtype is DType.TF32 else dtype
    active_ns = max(duration_ns - _FLOOR_NS, 1)
    fits_bytes = active_ns * device.memory_bandwidth_bytes_per_s / NS_PER_S
    counted_bytes = _counted_values(name, grid, block) * dtype.size_bytes
    moved_bytes = min(counted_bytes, fits_bytes) if counted_bytes else fits_bytes * _REACHED_RATIO
    half = max(round(moved_bytes / 2), 1)
    return MemoryBound(_family_of(name), half, half, dtype)


@lru_cache(maxsize=4096)
def _format_of(name: str) -> DType:
    word = name.lower()
    formats = (dtype for dtype, words in _FORMAT_WORDS.items() if any(w in word for w in words))
    return next(formats, DType.FP32)


@lru_cache(maxsize=4096)
def _family_of(name: str) -> str:
    word = name.lower()
    return next((known for known in _WORDS["families"] if known in word), "kernel")


def _extents(value: Any) -> tuple[int, ...]:
    is_whole = isinstance(value, list) and all(isinstance(n, int) and 0 < n < 2**31 for n in value)
    return tuple(value) if is_whole and len(value) == 3 else ()


def _gemm(
    name: str,
    duration_ns: int,
    device: Device,
    dtype: DType,
    grid: tuple[int, ...],
    *,
    is_batched: bool,
) -> Gemm:
    """Output from tiles and grid, depth from the time: an inverted roofline."""
    rate = device.peak_flops.get(dtype) or device.vector_flops
    flops = max(rate * _REACHED_RATIO * duration_ns / NS_PER_S, 2.0)
    tile = _TILE.search(name)
    # Kernels of Hopper and later stay on their multiprocessors: the grid says nothing there.
    if tile and grid and "nvjet" not in name:
        rows, columns = grid[1] * int(tile[2]), grid[0] * int(tile[1])
        batch = grid[2] if is_batched else 1
        depth = max(round(flops / (2.0 * batch * rows * columns)), 1)
        return Gemm(rows, columns, depth, dtype, batch)
    side = max(round((flops / 2.0) ** (1.0 / 3.0)), 1)
    return Gemm(side, side, side, dtype)


def _counted_values(name: str, grid: tuple[int, ...], block: tuple[int, ...]) -> int:
    """Values by the grid, times tensors; 0 if the kernel's name does not show it."""
    lists = _LISTS.search(name)
    if grid and lists:
        return grid[0] * _CHUNK_VALUES * int(lists[1] or lists[2])
    kind = _ELEMENTWISE.search(name)
    if not grid or not block or kind is None:
        return 0
    # elementwise_kernel<threads, values> states the number; the others take four per thread.
    per_thread = int(kind[3]) if kind[3] and not kind[1] else _VALUES_PER_THREAD
    pointers = _POINTERS.search(name)
    tensors = int(pointers[1]) if pointers else 3 if "Binary" in name else 2
    return grid[0] * block[0] * per_thread * tensors


_BUS_RATES = {
    "volta": 80e9,
    "ampere": 200e9,
    "hopper": 350e9,
    "blackwell": 700e9,
    "cdna3": 250e9,
}
"""Bus bandwidth of four or eight connected GPUs in large collectives, bytes per second."""
_HOST_BUS_RATE = 10e9
_SPREAD = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def estimate_collective(
    kind: CollectiveKind, transfer_ns: int, ranks: int, device: Device
) -> Collective:
    """A collective of *kind* that takes *transfer_ns* among *ranks* of these devices."""
    is_wired = "pcie" not in device.name
    rate = _BUS_RATES.get(device.generation, _HOST_BUS_RATE) if is_wired else _HOST_BUS_RATE
    passes = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    share = passes * (ranks - 1) / ranks if kind in _SPREAD else 1.0
    size_bytes = max(round(transfer_ns * rate / NS_PER_S / max(share, 0.5) / 4), 1) * 4
    return Collective(kind, size_bytes)


def estimating_device(names: Sequence[str]) -> Device:
    """The GPU whose rates turn durations into work; a common one if none is known."""
    found = find_device(names[0]) if names else None
    return found or load_device(_UNKNOWN_DEVICE)
