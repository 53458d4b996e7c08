"""Occupancy: in how many waves the blocks of a kernel pass through the device.

While blocks of a kernel still wait for a place, no block of another stream
gets one: a kernel of several waves holds back other streams until its last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.recordings.rank_view import RankView

_BLOCKS_PER_MULTIPROCESSOR = 32
_THREADS_OF_A_WARP = 32
_REGISTERS_AT_ONCE = 8


def hold_ratios(view: RankView) -> NDArray[np.float64]:
    """Share of each device task, from its start, in which it holds back other streams.

    Zero for copies, for kernels of up to one wave, and where the trace does not
    describe the device.
    """
    columns, device = view.trace.columns, view.device
    devices = {item.get("id"): item for item in view.trace.devices}
    ratio_of: dict[tuple[int, int], float] = {}
    ratios = np.zeros(len(device))
    for task, row in enumerate(device.row.tolist()):
        key = (int(columns.detail[row]), int(columns.device[row]))
        if key[0] < 0:
            continue
        if key not in ratio_of:
            waves = _waves(view.trace.detail_of(row), devices.get(key[1]))
            ratio_of[key] = 1 - 1 / waves if waves > 1 else 0.0
        ratios[task] = ratio_of[key]
    return ratios


def can_be_held(view: RankView) -> NDArray[np.bool_]:
    """Which device tasks need a multiprocessor: all but copies to and from the host."""
    is_dma = np.array(
        [
            "memcpy htod" in name.lower() or "memcpy dtoh" in name.lower()
            for name in view.trace.names
        ],
        dtype=bool,
    )
    held: NDArray[np.bool_] = ~is_dma[view.trace.columns.name[view.device.row]]
    return held


def _waves(geometry: dict[str, Any], device: dict[str, Any] | None) -> float:
    """Blocks of the kernel over the blocks that fit on *device* at once."""
    try:
        blocks = int(np.prod([int(extent) for extent in geometry["grid"]]))
        threads = int(np.prod([int(extent) for extent in geometry["block"]]))
        assert device is not None
        multiprocessors = int(device["numSms"])
        resident = _resident_blocks(geometry, device, max(threads, 1))
    except (KeyError, TypeError, ValueError, AssertionError):
        return 0.0
    return blocks / (multiprocessors * resident) if multiprocessors > 0 else 0.0


def _resident_blocks(geometry: dict[str, Any], device: dict[str, Any], threads: int) -> int:
    limits = [
        _BLOCKS_PER_MULTIPROCESSOR,
        int(device.get("maxThreadsPerMultiprocessor", 2048)) // threads,
    ]
    registers = int(geometry.get("registers per thread") or 0)
    if registers:
        # Registers are given out eight at a time, to whole warps.
        rounded = -(-registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
        warps = -(-threads // _THREADS_OF_A_WARP)
        available = int(device.get("regsPerMultiprocessor", 65536))
        limits.append(available // (rounded * warps * _THREADS_OF_A_WARP))
    shared_bytes = int(geometry.get("shared memory") or 0)
    if shared_bytes:
        limits.append(int(device.get("sharedMemPerMultiprocessor", 98304)) // shared_bytes)
    return max(min(limits), 1)
