"""Expert physics: grouped GEMMs on one GPU, in ten constants per GPU, kernel and format.

Each is limited by its tiles or by the weights it reads. Every active expert wastes part of a tile
of rows, and a GEMM that does not fill the multiprocessors still takes most of a wave.

Source: fitted to the public tables of whole layers that `experiments/fitting` names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.costs.memory import soft_maximum

KERNELS_OF_LAYER = 5
"""Routing, permutation, two GEMMs and the weighted sum: each has a floor."""
ACTIVATION_BYTES = 2
TILE_COLUMNS = 128
WAVE_SOFTNESS = 4.0
PASSES_APART = 1.0
"""Traffic per row of permutation and activation, which are separate kernels in training."""


@dataclass(frozen=True, slots=True)
class ExpertConstants:
    """What a GPU reaches: ratios of its datasheet, tiles of rows, and traffic per row.

    *wasted_tiles* are the unfilled tiles per expert, *least_waves* the fewest waves that a GEMM
    takes, *start_k* the length of k that starting a tile costs.
    """

    floor_ns: float
    expert_ns: float
    compute_ratio: float
    memory_ratio: float
    tile_rows: float
    wasted_tiles: float
    least_waves: float
    start_k: float
    row_traffic: float
    token_traffic: float


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTimes:
    """Predicted durations and their parts: arithmetic, reading of weights, copies of rows."""

    arithmetic_ns: FloatColumn
    memory_ns: FloatColumn
    traffic_ns: FloatColumn
    duration_ns: FloatColumn


def tiles_ns(
    rows: FloatColumn,
    active: FloatColumn,
    n: FloatColumn,
    k: FloatColumn,
    machine: MachineRates,
    constants: ExpertConstants,
) -> FloatColumn:
    """How long the tiles of grouped GEMMs take: *rows* in all, over *active* experts."""
    of_rows = rows / constants.tile_rows + constants.wasted_tiles * active
    waves = of_rows * np.maximum(n / TILE_COLUMNS, 1.0) / machine.sm_count
    waves = (waves**WAVE_SOFTNESS + constants.least_waves**WAVE_SOFTNESS) ** (1 / WAVE_SOFTNESS)
    flops = 2 * constants.tile_rows * TILE_COLUMNS * (k + constants.start_k)
    rate = machine.peak_flops * constants.compute_ratio / machine.sm_count
    return np.asarray(waves * flops * NS_PER_S / rate)


def predict_grouped_times(
    sizes: FloatColumn,
    machine: MachineRates,
    constants: ExpertConstants,
    *,
    width_bytes: float,
) -> ExpertTimes:
    """Predict single grouped GEMMs; *sizes* are rows groups, m, n, k."""
    groups, m, n, k = sizes
    arithmetic = tiles_ns(groups * m, groups, n, k, machine, constants)
    byte_ns = NS_PER_S / machine.memory_bytes_per_s
    memory = groups * n * k * width_bytes * byte_ns / constants.memory_ratio
    passes = max(constants.row_traffic - PASSES_APART, 0.0)
    traffic = passes * groups * m * (n + k) * ACTIVATION_BYTES * byte_ns
    floor_ns = (constants.floor_ns + constants.expert_ns * groups) / KERNELS_OF_LAYER
    duration_ns = floor_ns + soft_maximum(arithmetic, memory) + traffic
    return ExpertTimes(arithmetic, memory, traffic, duration_ns)
