"""Memory fit: the convex traffic curve of one operator on one device.

Non-negative least squares of relative errors over a floor, a slope and hinges, so every fitted
curve is rising and convex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.fitting.kernels.constants import alone_ns, build_entry
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from perfmodel.costs.estimates import INTERVAL_SIGMAS
from perfmodel.costs.memory import RECORDED_WORDS, interpolate_row_factor
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from topologies import load_device

LEAST_SLOPE = 1e-9
"""Of a curve, over the time of its bytes at full bandwidth: less is rounding."""
LARGEST_FLOOR_NS = 1_300.0
"""The largest floor of a kernel; a larger offset is the benchmark's own timing. Kernels of
64 kB replayed in a CUDA graph take 1.0 us on L40 and 1.3 us on A100 and H200 (gpu-small-kernels of
the microbenchmarks)."""
MOST_HINGES = 6
FEWEST_LENGTHS = 4
"""Fewer row lengths than this do not determine factors by length."""
ROUNDS = 12
SMALLEST_SIGMA = 0.001
LEAVE_OUT_PARTS = 8
HINGE_PENALTY = 0.02
BYTES_OF_LARGE_ELEMENTWISE = 64e6
"""Above this size an elementwise kernel is on one straight line; hinges would fit noise."""


def fit_memory_entry(table: KernelTable, device_name: str) -> Entry:
    """The curve of the rows of *table*, all of one device and operator."""
    device = load_device(device_name)
    ops = [kernel.op for kernel in table.kernels]
    length = np.array([op.row_length for op in ops], dtype=np.float64)
    if "/" in ops[0].operator or len(np.unique(length)) < FEWEST_LENGTHS:
        length = np.zeros(len(ops))
    size = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
    byte_ns = NS_PER_S / device.memory_bandwidth_bytes_per_s
    rows = _Rows(size, length, alone_ns(table), byte_ns)
    knots, weights, row_factors = _fit(rows)
    errors = _held_out_errors(rows) if len(ops) > 2 else np.ones(1)
    offset_ns = float(weights[0])
    # What was recorded in training has no benchmark around it.
    is_recorded = ops[0].operator in RECORDED_WORDS
    floor_ns = offset_ns if is_recorded else min(offset_ns, LARGEST_FLOOR_NS)
    # Least squares leave slopes of 1e-16 or none, depending on the processor.
    slopes = np.where(weights[1:] < LEAST_SLOPE, 0.0, weights[1:])
    pairs = zip(knots.tolist(), slopes.tolist(), strict=True)
    curves: dict[str, Sequence[Sequence[float]]] = {"slopes": [list(pair) for pair in pairs]}
    if row_factors:
        curves["row_factors"] = row_factors
    # The quantile of few errors is itself uncertain, so it is widened.
    caution = 1.0 + 1.0 / math.sqrt(len(errors))
    quantile = float(np.quantile(np.abs(errors), 0.9))
    return build_entry(
        device,
        ops[0].operator,
        constants={"floor_ns": floor_ns, "timing_ns": offset_ns - floor_ns},
        relative_sigma=max(SMALLEST_SIGMA, caution * quantile / INTERVAL_SIGMAS),
        curves=curves,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Measured kernels of one operator, on a device with *byte_ns* per byte of memory traffic."""

    size: Matrix
    length: Matrix
    measured: Matrix
    byte_ns: float

    def take(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.size[chosen], self.length[chosen], self.measured[chosen], self.byte_ns)

    def basis(self, factors: Matrix, knots: Matrix) -> Matrix:
        """An offset and the time beyond each knot, by row."""
        hinges = np.maximum(self.size[:, None] - knots[None, :], 0.0) * self.byte_ns
        return np.column_stack([np.ones(len(self.size)), hinges * factors[:, None]])


def _fit(rows: _Rows) -> tuple[Matrix, Matrix, Sequence[Sequence[float]]]:
    """Knots, the offset and the slopes at them, and factors by row length if there are several."""
    knots, ones = _knots(rows.size), np.ones(len(rows.size))
    weights = _fit_curve(rows, ones, knots)
    lengths = np.unique(rows.length)
    if len(lengths) < 2:
        return knots, weights, ()
    factors = ones
    for _ in range(ROUNDS):
        factors = _fit_row_factors(rows, knots, weights)
        weights = _fit_curve(rows, factors, knots)
    pairs = [[float(one), float(np.median(factors[rows.length == one]))] for one in lengths]
    return knots, weights, pairs


def _held_out_errors(rows: _Rows) -> Matrix:
    """Log errors of each part of the rows by a curve fitted to the others."""
    count = min(LEAVE_OUT_PARTS, len(rows.size))
    part = np.random.default_rng(0).permutation(len(rows.size)) % count
    errors = np.empty(len(rows.size))
    for number in range(count):
        knots, weights, row_factors = _fit(rows.take(part != number))
        rest = rows.take(part == number)
        factors = interpolate_row_factor(rest.length, row_factors)
        predicted = rest.basis(factors, knots) @ weights
        errors[part == number] = np.log(rest.measured / np.maximum(predicted, 1.0))
    return errors


def _knots(size: Matrix) -> Matrix:
    values = np.unique(size)
    if values[0] > BYTES_OF_LARGE_ELEMENTWISE and len(values) > 20:
        return np.zeros(1)
    if len(values) > MOST_HINGES:
        values = np.geomspace(values[0], values[-1], MOST_HINGES)
    return np.concatenate([[0.0], values[:-1]])


def _fit_curve(rows: _Rows, factors: Matrix, knots: Matrix) -> Matrix:
    from scipy.optimize import nnls

    basis = rows.basis(factors, knots) / rows.measured[:, None]
    scale = np.linalg.norm(basis, axis=0) + 1e-30
    # A small cost per hinge keeps the curve straight unless the rows say otherwise.
    penalty = np.diag([0.0, 0.0, *[1.0] * (len(knots) - 1)])
    penalty = HINGE_PENALTY * np.sqrt(len(basis)) * penalty
    wanted = np.concatenate([np.ones(len(basis)), np.zeros(len(penalty))])
    weights, _ = nnls(np.vstack([basis / scale, penalty]), wanted)
    return np.asarray(weights / scale, dtype=np.float64)


def _fit_row_factors(rows: _Rows, knots: Matrix, weights: Matrix) -> Matrix:
    """For each row length the factor that brings its rows closest, given the curve."""
    factors = np.ones(len(rows.size))
    busy = rows.basis(factors, knots)[:, 1:] @ weights[1:]
    for value in np.unique(rows.length):
        chosen = rows.length == value
        measured = rows.measured[chosen]
        left = np.maximum(measured - weights[0], 0.05 * measured)
        factors[chosen] = max(0.1, float(np.median(left / busy[chosen])))
    return np.asarray(factors / factors.min(), dtype=np.float64)
