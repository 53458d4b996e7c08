"""Memory fit: the convex traffic curve of one operator on one device.

Non-negative least squares of relative errors over a floor, a slope and hinges,
so every fitted curve rises and bends upwards only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import NS_PER_S
from perfmodel.calibration.bounded_fit import build_entry
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from perfmodel.costs.estimates import INTERVAL_SIGMAS
from perfmodel.costs.measured_kernels import KernelTable
from perfmodel.costs.memory import interpolate_row_factor
from topologies import Device, load_device

LARGEST_FLOOR_NS = 1_300.0
"""What a kernel costs by itself at most; a larger offset is the benchmark's own timing. Kernels of
64 kB replayed in a CUDA graph take 1.0 us on L40 and 1.3 us on A100 and H200 (gpu-small-kernels of
the microbenchmarks)."""
MOST_HINGES = 6
FEWEST_LENGTHS = 4
"""Fewer lengths of rows than this say nothing about what a length costs."""
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
    size = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
    length = np.array([op.row_length for op in ops], dtype=np.float64)
    measured = table.measured_ns
    if "/" in ops[0].operator or len(np.unique(length)) < FEWEST_LENGTHS:
        length = np.zeros(len(ops))
    fitted = _fit(size, length, measured, device)
    errors = _held_out_errors(size, length, measured, device) if len(ops) > 2 else np.ones(1)
    offset_ns = float(fitted.weights[0])
    floor_ns = min(offset_ns, LARGEST_FLOOR_NS)
    pairs = zip(fitted.knots, fitted.weights[1:], strict=True)
    curves: dict[str, Sequence[Sequence[float]]] = {
        "slopes": [[float(k), float(s)] for k, s in pairs]
    }
    if fitted.row_factors:
        curves["row_factors"] = fitted.row_factors
    return build_entry(
        device,
        ops[0].operator,
        constants={"floor_ns": floor_ns, "timing_ns": offset_ns - floor_ns},
        relative_sigma=_sigma(errors),
        curves=curves,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """Knots, the offset and slopes at them, and factors by the length of a row."""

    knots: Matrix
    weights: Matrix
    row_factors: Sequence[Sequence[float]]

    def predict(self, size: Matrix, length: Matrix, device: Device) -> Matrix:
        factors = interpolate_row_factor(length, self.row_factors)
        return np.asarray(_basis(size, factors, self.knots, device) @ self.weights)


def _fit(size: Matrix, length: Matrix, measured: Matrix, device: Device) -> _Fitted:
    """The curve, and factors by length where rows have several."""
    knots = _knots(size)
    factors = np.ones(len(size))
    weights = _fit_curve(size, factors, measured, knots, device)
    lengths = np.unique(length)
    if len(lengths) < 2:
        return _Fitted(knots, weights, ())
    for _ in range(ROUNDS):
        factors = _fit_row_factors(size, length, measured, knots, weights, device)
        weights = _fit_curve(size, factors, measured, knots, device)
    pairs = [[float(one), float(np.median(factors[length == one]))] for one in lengths]
    return _Fitted(knots, weights, pairs)


def _sigma(errors: Matrix) -> float:
    """The spread that puts nine in ten of *errors* in the 90 % interval."""
    # The quantile of few errors is itself unsure; a wider one keeps its promise.
    caution = 1.0 + 1.0 / math.sqrt(len(errors))
    quantile = float(np.quantile(np.abs(errors), 0.9))
    return max(SMALLEST_SIGMA, caution * quantile / INTERVAL_SIGMAS)


def _held_out_errors(size: Matrix, length: Matrix, measured: Matrix, device: Device) -> Matrix:
    """Log errors of each part of the rows by a curve fitted to the others."""
    count = min(LEAVE_OUT_PARTS, len(size))
    part = np.random.default_rng(0).permutation(len(size)) % count
    errors = np.empty(len(size))
    for number in range(count):
        out = part == number
        fitted = _fit(size[~out], length[~out], measured[~out], device)
        predicted = fitted.predict(size[out], length[out], device)
        errors[out] = np.log(measured[out] / np.maximum(predicted, 1.0))
    return errors


def _knots(size: Matrix) -> NDArray[np.float64]:
    values = np.unique(size)
    if values[0] > BYTES_OF_LARGE_ELEMENTWISE and len(values) > 20:
        return np.zeros(1)
    if len(values) > MOST_HINGES:
        values = np.geomspace(values[0], values[-1], MOST_HINGES)
    return np.concatenate([[0.0], values[:-1]])


def _basis(size: Matrix, factors: Matrix, knots: Matrix, device: Device) -> NDArray[np.float64]:
    byte_ns = NS_PER_S / device.memory_bandwidth_bytes_per_s
    hinges = np.maximum(size[:, None] - knots[None, :], 0.0) * byte_ns * factors[:, None]
    return np.column_stack([np.ones(len(size)), hinges])


def _fit_curve(
    size: Matrix, factors: Matrix, measured: Matrix, knots: Matrix, device: Device
) -> NDArray[np.float64]:
    from scipy.optimize import nnls

    basis = _basis(size, factors, knots, device) / measured[:, None]
    scale = np.linalg.norm(basis, axis=0) + 1e-30
    # A little cost on each hinge keeps the curve straight where the rows do not say otherwise.
    penalty = HINGE_PENALTY * np.sqrt(len(size)) * np.diag([0.0, 0.0, *[1.0] * (len(knots) - 1)])
    rows = np.vstack([basis / scale, penalty])
    wanted = np.concatenate([np.ones(len(size)), np.zeros(len(penalty))])
    weights, _ = nnls(rows, wanted)
    return np.asarray(weights / scale, dtype=np.float64)


def _fit_row_factors(
    size: Matrix, length: Matrix, measured: Matrix, knots: Matrix, weights: Matrix, device: Device
) -> NDArray[np.float64]:
    """For each row length the factor that brings its rows closest, given the curve."""
    busy = _basis(size, np.ones(len(size)), knots, device)[:, 1:] @ weights[1:]
    factors = np.ones(len(size))
    for value in np.unique(length):
        rows = length == value
        left = np.maximum(measured[rows] - weights[0], 0.05 * measured[rows])
        factors[rows] = max(0.1, float(np.median(left / busy[rows])))
    return np.asarray(factors / factors.min(), dtype=np.float64)
