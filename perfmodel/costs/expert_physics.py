"""Expert physics: a layer of experts on one GPU, in ten constants per GPU, kernel and format.

Two grouped GEMMs, each limited by its tiles or by the weights it reads. Every active expert
wastes part of a tile of rows, and a GEMM that does not fill the multiprocessors still takes most
of a wave. Rows are copied to their experts and back, and tokens are read and written once more.

Leaves out: how unevenly the experts of one rank are loaded, except for how many are active.
Source: fitted to the public tables that `experiments/fitting` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.dtypes import BITS_PER_BYTE, DType
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
LARGEST_CORRECTION = 0.4
"""Limit of the logarithm of the learned correction."""
_GATED_MATRICES, _PLAIN_MATRICES = 3.0, 2.0


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The experts of one layer on the most loaded rank, as a benchmark runs them."""

    kernel: str
    tokens: int
    rows: float
    active: float
    hidden: int
    ffn: int
    is_gated: bool
    dtype: DType

    @property
    def variant(self) -> str:
        """The variant that its constants are filed under."""
        return f"{self.kernel}/{self.dtype.value}"

    @property
    def flops(self) -> float:
        """Operations of its grouped GEMMs."""
        matrices = _GATED_MATRICES if self.is_gated else _PLAIN_MATRICES
        return 2 * self.rows * self.hidden * self.ffn * matrices


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
class ExpertShapes:
    """Layers of experts as columns: what the measured rank works on.

    *matrices* is how many weights of hidden x ffn an expert has.
    """

    tokens: FloatColumn
    rows: FloatColumn
    active: FloatColumn
    hidden: FloatColumn
    ffn: FloatColumn
    matrices: FloatColumn
    width_bytes: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class ExpertTimes:
    """Predicted durations and their parts: arithmetic, reading of weights, copies of rows."""

    arithmetic_ns: FloatColumn
    memory_ns: FloatColumn
    traffic_ns: FloatColumn
    duration_ns: FloatColumn


def layer_shapes(layers: Sequence[ExpertLayer]) -> ExpertShapes:
    """*layers* as columns."""
    rows = [
        (layer.tokens, layer.rows, layer.active, layer.hidden, layer.ffn,
         _GATED_MATRICES if layer.is_gated else _PLAIN_MATRICES,
         layer.dtype.size_bits / BITS_PER_BYTE)
        for layer in layers
    ]  # fmt: skip
    return ExpertShapes(*np.array(rows, dtype=np.float64).T)


def predict_layer_times(
    shapes: ExpertShapes, machine: MachineRates, constants: ExpertConstants
) -> ExpertTimes:
    """Predict the forward pass of whole layers."""

    def gemm(n: FloatColumn, k: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Both limits of one GEMM of a layer: its tiles, and the weights it reads."""
        rate = machine.memory_bytes_per_s * constants.memory_ratio
        weights_ns = shapes.active * n * k * shapes.width_bytes * NS_PER_S / rate
        return _tiles_ns(shapes.rows, shapes.active, n, k, machine, constants), weights_ns

    up = gemm((shapes.matrices - 1) * shapes.ffn, shapes.hidden)
    down = gemm(shapes.hidden, shapes.ffn)
    moved = constants.row_traffic * shapes.rows * (2 * shapes.hidden + shapes.matrices * shapes.ffn)
    moved = moved + constants.token_traffic * shapes.tokens * shapes.hidden
    traffic = moved * ACTIVATION_BYTES * NS_PER_S / machine.memory_bytes_per_s
    floor_ns = constants.floor_ns + constants.expert_ns * shapes.active
    gemms = soft_maximum(*up) + soft_maximum(*down)
    return ExpertTimes(up[0] + down[0], up[1] + down[1], traffic, floor_ns + gemms + traffic)


def _tiles_ns(
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


def layer_features(shapes: ExpertShapes, times: ExpertTimes) -> FloatColumn:
    """Layers x features: sizes, and which part of the time is which."""
    rows_of_expert = shapes.rows / shapes.active
    gemms_ns = times.arithmetic_ns + times.memory_ns
    return np.stack(
        [
            np.log(times.duration_ns),
            np.log(rows_of_expert),
            np.log1p(rows_of_expert / 64),
            np.log(shapes.active),
            np.log(shapes.rows),
            np.log(shapes.tokens),
            np.log(shapes.hidden),
            np.log(shapes.ffn),
            (times.arithmetic_ns - times.memory_ns) / gemms_ns,
            times.arithmetic_ns / times.duration_ns,
            times.memory_ns / times.duration_ns,
            times.traffic_ns / times.duration_ns,
        ],
        axis=1,
    )


def smooth_log_ratio(features: FloatColumn, span: FloatColumn, weights: FloatColumn) -> FloatColumn:
    """Logs of measured over predicted times: a quadratic polynomial, clipped to the fitted range.

    *span* has one line per feature: mean, scale, lowest and highest value.
    """
    mean, scale, low, high = span.T
    inputs = (np.clip(features, low, high) - mean) / scale
    return np.clip(square_terms(inputs) @ weights, -LARGEST_CORRECTION, LARGEST_CORRECTION)


def square_terms(inputs: FloatColumn) -> FloatColumn:
    """One, each of *inputs*, and their products with each other."""
    count = inputs.shape[1]
    first, second = np.triu_indices(count)
    return np.column_stack([np.ones(len(inputs)), inputs, inputs[:, first] * inputs[:, second]])


def predict_grouped_times(
    sizes: FloatColumn,
    machine: MachineRates,
    constants: ExpertConstants,
    *,
    width_bytes: float,
) -> ExpertTimes:
    """Predict single grouped GEMMs; *sizes* are rows groups, m, n, k."""
    groups, m, n, k = sizes
    arithmetic = _tiles_ns(groups * m, groups, n, k, machine, constants)
    byte_ns = NS_PER_S / machine.memory_bytes_per_s
    memory = groups * n * k * width_bytes * byte_ns / constants.memory_ratio
    passes = max(constants.row_traffic - PASSES_APART, 0.0)
    traffic = passes * groups * m * (n + k) * ACTIVATION_BYTES * byte_ns
    floor_ns = (constants.floor_ns + constants.expert_ns * groups) / KERNELS_OF_LAYER
    duration_ns = floor_ns + soft_maximum(arithmetic, memory) + traffic
    return ExpertTimes(arithmetic, memory, traffic, duration_ns)
