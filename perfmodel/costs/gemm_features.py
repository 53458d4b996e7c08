"""GEMM features: what the learned correction of a product may look at.

Shape, how the physics sees it, and how full the last wave of common tiles is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.gemm_physics import GemmShapes, GemmTimes, MachineRates

WAVE_TILES = ((128, 128), (256, 128), (64, 128), (128, 256))


def gemm_features(
    shapes: GemmShapes, machine: MachineRates, times: GemmTimes
) -> NDArray[np.float64]:
    """Products x features."""
    log_m, log_n, log_k = np.log2(shapes.m), np.log2(shapes.n), np.log2(shapes.k)
    log_time = np.log2(times.duration_ns)
    work = 2 * shapes.batch * shapes.m * shapes.n * shapes.k
    traffic = shapes.activation_bytes + shapes.weight_bytes + shapes.output_bytes
    columns = [
        log_m,
        log_n,
        log_k,
        np.log2(shapes.batch),
        np.minimum(log_m, 7.0),
        log_time,
        np.log2(work * (NS_PER_S / machine.peak_flops)) - log_time,
        np.log2(traffic * (NS_PER_S / machine.memory_bytes_per_s)) - log_time,
        np.log2(shapes.weight_bytes / machine.l2_bytes),
        times.weight_miss_ratio,
        shapes.m / (128 * np.ceil(shapes.m / 128)),
    ]
    for rows, across in WAVE_TILES:
        tiles = np.ceil(shapes.m / rows) * np.ceil(shapes.n / across) * shapes.batch
        waves = tiles / machine.sm_count
        columns.append(waves / np.ceil(waves))
        columns.append(np.clip(np.log2(waves), -7, 5))
    return np.stack(columns, axis=1)
