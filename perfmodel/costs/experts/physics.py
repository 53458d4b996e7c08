"""Physics of a layer of experts on one GPU, in six constants a GPU, kernel and format.

Two grouped products, each limited by arithmetic or by the weights it reads;
every expert at work wastes a part of a tile of rows. Rows are copied to their
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
PASSES_APART = 1.0
"""Of the traffic a row, what permutation and activation move: in training kernels of their own."""


@dataclass(frozen=True, slots=True)
class ExpertConstants:
    """What a GPU reaches: ratios of its datasheet, rows wasted an expert, and traffic a row."""

    floor_ns: float
    compute_ratio: float
    memory_ratio: float
    wasted_rows: float
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


def predict_layer_ns(
    shapes: ExpertShapes, machine: MachineRates, constants: ExpertConstants
) -> FloatColumn:
    """Predict the forward pass of whole layers."""
    one = shapes.hidden * shapes.ffn * shapes.matrices
    products = _product_ns(shapes.rows, shapes.active, one, machine, constants, shapes.width_bytes)
    moved = constants.row_traffic * shapes.rows * (2 * shapes.hidden + shapes.matrices * shapes.ffn)
    moved = moved + constants.token_traffic * shapes.tokens * shapes.hidden
    traffic = moved * ACTIVATION_BYTES * NS_PER_S / machine.memory_bytes_per_s
    total: FloatColumn = constants.floor_ns + products + traffic
    return total


def _product_ns(
    rows: FloatColumn,
    active: FloatColumn,
    weights: FloatColumn,
    machine: MachineRates,
    constants: ExpertConstants,
    width_bytes: FloatColumn,
) -> FloatColumn:
    padded = rows + active * constants.wasted_rows
    arithmetic = 2 * padded * weights * NS_PER_S / (machine.peak_flops * constants.compute_ratio)
    rate = machine.memory_bytes_per_s * constants.memory_ratio
    return soft_maximum(arithmetic, active * weights * width_bytes * NS_PER_S / rate)


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
    padded = groups * (m + constants.wasted_rows)
    arithmetic = 2 * padded * n * k * NS_PER_S / (machine.peak_flops * constants.compute_ratio)
    arithmetic = arithmetic * slowdown
    byte_ns = NS_PER_S / machine.memory_bytes_per_s
    memory = groups * n * k * width_bytes * byte_ns / constants.memory_ratio
    passes = max(constants.row_traffic - PASSES_APART, 0.0)
    traffic = passes * groups * m * (n + k) * ACTIVATION_BYTES * byte_ns
    floor_ns = constants.floor_ns / KERNELS_OF_LAYER
    return GroupedTimes(arithmetic, memory, floor_ns + soft_maximum(arithmetic, memory) + traffic)


def stack_shapes(values: list[tuple[float, ...]]) -> FloatColumn:
    """Rows of numbers as columns, one a field."""
    return np.array(values, dtype=np.float64).T
