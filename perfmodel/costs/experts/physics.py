"""Physics of a layer of experts on one GPU, in ten constants a GPU, kernel and format.

Two grouped products, each limited by its tiles or by the weights it reads;
every expert at work wastes a part of a tile of rows, and a product that does
not fill the multiprocessors still takes most of a wave. Rows are copied to their
experts and back, and tokens are read and written once more.

Leaves out: how unevenly the experts of one rank are loaded, but for how many work at all.
Source: fitted to the public tables of `perfmodel calibrate experts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm.physics import MachineRates
from perfmodel.costs.memory.curves import soft_maximum

KERNELS_OF_LAYER = 5
"""Routing, permutation, two products and the sum of what they made: each has a floor."""
ACTIVATION_BYTES = 2
TILE_COLUMNS = 128
WAVE_SOFTNESS = 4.0
PASSES_APART = 1.0
"""Of the traffic a row, what permutation and activation move: in training kernels of their own."""
LARGEST_CORRECTION = 0.4
"""Limit of the logarithm of what is learned on top."""


@dataclass(frozen=True, slots=True)
class ExpertConstants:
    """What a GPU reaches: ratios of its datasheet, tiles of rows, and traffic a row.

    *wasted_tiles* an expert are not filled, *least_waves* the fewest that a product
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
class LayerTimes:
    """The parts of a layer's time, and the time."""

    arithmetic_ns: FloatColumn
    memory_ns: FloatColumn
    traffic_ns: FloatColumn
    duration_ns: FloatColumn


def predict_layer_times(
    shapes: ExpertShapes, machine: MachineRates, constants: ExpertConstants
) -> LayerTimes:
    """Predict the forward pass of whole layers."""
    up = _product(shapes, machine, constants, (shapes.matrices - 1) * shapes.ffn, shapes.hidden)
    down = _product(shapes, machine, constants, shapes.hidden, shapes.ffn)
    moved = constants.row_traffic * shapes.rows * (2 * shapes.hidden + shapes.matrices * shapes.ffn)
    moved = moved + constants.token_traffic * shapes.tokens * shapes.hidden
    traffic = moved * ACTIVATION_BYTES * NS_PER_S / machine.memory_bytes_per_s
    floor_ns = constants.floor_ns + constants.expert_ns * shapes.active
    products = soft_maximum(*up) + soft_maximum(*down)
    return LayerTimes(up[0] + down[0], up[1] + down[1], traffic, floor_ns + products + traffic)


def _product(
    shapes: ExpertShapes,
    machine: MachineRates,
    constants: ExpertConstants,
    n: FloatColumn,
    k: FloatColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Both limits of one of a layer's products: its tiles, and the weights it reads."""
    tiles = _tiles(shapes.rows, shapes.active, n, constants)
    rate = machine.memory_bytes_per_s * constants.memory_ratio
    weights = shapes.active * n * k * shapes.width_bytes * NS_PER_S / rate
    return _tiles_ns(tiles, k, machine, constants), weights


def _tiles(
    rows: FloatColumn, active: FloatColumn, n: FloatColumn, constants: ExpertConstants
) -> FloatColumn:
    of_rows = rows / constants.tile_rows + constants.wasted_tiles * active
    tiles: FloatColumn = of_rows * np.maximum(n / TILE_COLUMNS, 1.0)
    return tiles


def _tiles_ns(
    tiles: FloatColumn, k: FloatColumn, machine: MachineRates, constants: ExpertConstants
) -> FloatColumn:
    waves = tiles / machine.sm_count
    waves = (waves**WAVE_SOFTNESS + constants.least_waves**WAVE_SOFTNESS) ** (1 / WAVE_SOFTNESS)
    flops = 2 * constants.tile_rows * TILE_COLUMNS * (k + constants.start_k)
    rate = machine.peak_flops * constants.compute_ratio / machine.sm_count
    together: FloatColumn = waves * flops * NS_PER_S / rate
    return together


def layer_features(shapes: ExpertShapes, times: LayerTimes) -> FloatColumn:
    """Layers x features: sizes, and which part of the time is which."""
    rows_of_expert = shapes.rows / shapes.active
    products_ns = times.arithmetic_ns + times.memory_ns
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
            (times.arithmetic_ns - times.memory_ns) / products_ns,
            times.arithmetic_ns / times.duration_ns,
            times.memory_ns / times.duration_ns,
            times.traffic_ns / times.duration_ns,
        ],
        axis=1,
    )


@dataclass(frozen=True, slots=True, eq=False)
class SmoothCorrection:
    """A square polynomial of features, held inside the range that it was fitted in.

    *span* has a line a feature: mean, scale, lowest and highest value.
    """

    span: FloatColumn
    weights: FloatColumn

    def log_ratio(self, features: FloatColumn) -> FloatColumn:
        """Logarithms of measured over predicted times of rows of *features*."""
        mean, scale, low, high = self.span.T
        inputs = (np.clip(features, low, high) - mean) / scale
        shift = square_terms(inputs) @ self.weights
        return np.clip(shift, -LARGEST_CORRECTION, LARGEST_CORRECTION)


def square_terms(inputs: FloatColumn) -> FloatColumn:
    """One, each of *inputs*, and their products with each other."""
    count = inputs.shape[1]
    first, second = np.triu_indices(count)
    return np.column_stack([np.ones(len(inputs)), inputs, inputs[:, first] * inputs[:, second]])


@dataclass(frozen=True, slots=True, eq=False)
class GroupedShapes:
    """Grouped products of one dtype as columns."""

    groups: FloatColumn
    m: FloatColumn
    n: FloatColumn
    k: FloatColumn


@dataclass(frozen=True, slots=True, eq=False)
class GroupedTimes:
    """Both limits of grouped products, and the time that follows."""

    arithmetic_ns: FloatColumn
    memory_ns: FloatColumn
    duration_ns: FloatColumn


def predict_grouped_times(
    shapes: GroupedShapes,
    machine: MachineRates,
    constants: ExpertConstants,
    *,
    width_bytes: float,
    slowdown: float,
) -> GroupedTimes:
    """Predict single grouped products, under a *slowdown* of arithmetic by long load."""
    groups, m, n, k = shapes.groups, shapes.m, shapes.n, shapes.k
    tiles = _tiles(groups * m, groups, n, constants)
    arithmetic = _tiles_ns(tiles, k, machine, constants) * slowdown
    byte_ns = NS_PER_S / machine.memory_bytes_per_s
    memory = groups * n * k * width_bytes * byte_ns / constants.memory_ratio
    passes = max(constants.row_traffic - PASSES_APART, 0.0)
    traffic = passes * groups * m * (n + k) * ACTIVATION_BYTES * byte_ns
    floor_ns = (constants.floor_ns + constants.expert_ns * groups) / KERNELS_OF_LAYER
    return GroupedTimes(arithmetic, memory, floor_ns + soft_maximum(arithmetic, memory) + traffic)


def stack_shapes(values: list[tuple[float, ...]]) -> FloatColumn:
    """Rows of numbers as columns, one a field."""
    return np.array(values, dtype=np.float64).T
