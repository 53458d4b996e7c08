"""GEMM: batches of matrix products on tensor cores or vector units.

Physics first (tiles, waves, split k, cache, memory, clock under load), then a
small fitted correction of what the library really does. A device nobody
measured borrows constants, which are ratios of its datasheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.calibration_files import Entry, Match, load_entries, match_entry
from perfmodel.costs.corrections import CHUNK_ROWS, Correction, OrderedCorrection
from perfmodel.costs.estimates import (
    Bound,
    Estimates,
    FloatColumn,
    build_estimates,
    scatter_estimates,
)
from perfmodel.costs.gemm.features import SIZE_FEATURES, gemm_features, gemm_step_features
from perfmodel.costs.gemm.physics import (
    GemmConstants,
    GemmShapes,
    MachineRates,
    predict_arithmetic_ns,
    predict_gemm_times,
)
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.stack import Residency, SoftwareStack
from topologies import Device

TENSOR = "tensor"
VECTOR = "vector"
_TENSOR_DTYPES = frozenset({DType.BF16, DType.FP16, DType.FP8, DType.TF32, DType.INT8})
_FITTED_DTYPES = frozenset({DType.BF16, DType.FP16, DType.FP32})
FRACTIONAL_WAVE_CAPABILITIES = frozenset({"9.0", "10.0", "10.3"})
"""Chips whose kernels stay resident and share the last wave."""
ARITHMETIC_SHARE = 0.876
"""A product whose time without memory traffic is at least this share of its time counts as bound
by arithmetic, which long load slows down; (1 - 0.8**4)**0.25, memory being four fifths of it."""
OTHER_DTYPE_SIGMA = 0.12
"""How unsure the step from half precision to a dtype without measurements makes us."""


@dataclass(frozen=True, slots=True, eq=False)
class GemmCalibration:
    """Constants and corrections that price products of one variant on a device."""

    constants: GemmConstants
    ordered: OrderedCorrection | None
    steps: Correction | None
    relative_sigma: float
    borrowed_sigma: float

    @property
    def is_own(self) -> bool:
        """Whether it was fitted on the device itself."""
        return self.borrowed_sigma == 0.0


class GemmModel:
    """Prices matrix products."""

    family = "gemm"

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self._entries = entries

    def price(self, ops: Sequence[Gemm], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""
        parts, places = [], []
        for stored, rows in rows_by_dtype(ops).items():
            chosen = ops if len(rows) == len(ops) else [ops[row] for row in rows]
            dtype = stack.matmul_dtypes.get(stored, stored)
            parts.append(self._price_dtype(gemm_shapes(chosen), dtype, device, stack))
            places.append(np.array(rows, dtype=np.intp))
        return scatter_estimates(parts, places) if len(parts) != 1 else parts[0]

    def _price_dtype(
        self, shapes: GemmShapes, dtype: DType, device: Device, stack: SoftwareStack
    ) -> Estimates:
        calibration = self.calibration(device, variant_of(dtype))
        extra = 0.0 if dtype in _FITTED_DTYPES else OTHER_DTYPE_SIGMA
        return price_gemms(
            shapes,
            machine_rates(device, dtype),
            calibration,
            residency=stack.residency,
            slowdown=stack.slowdown(device.architecture.value),
            extra_sigma=extra,
        )

    def calibration(self, device: Device, variant: str) -> GemmCalibration:
        """The constants of *variant* arithmetic on *device*."""
        entries = load_entries("gemm") if self._entries is None else tuple(self._entries)
        match = match_entry(entries, device, variant)
        if match is None:
            raise CalibrationError(
                f"gemm: no constants for {variant} arithmetic in the calibration. "
                "Make them with `perfmodel calibrate gemm`."
            )
        return gemm_calibration(match, device)


def gemm_calibration(match: Match, device: Device) -> GemmCalibration:
    """What *match* says, ready to price with.

    Chips before Hopper, and graphics chips, hand tiles out in whole waves;
    constants borrowed from a chip that does not are changed in that point.
    Corrections are of one generation's kernels and are lent within it only.
    """
    entry = match.entry
    is_near = match.is_own or entry.compute_capability == device.compute_capability
    constants = GemmConstants(**entry.constants)
    if not match.is_own and device.compute_capability not in FRACTIONAL_WAVE_CAPABILITIES:
        constants = replace(constants, tail_ratio=1.0)
    return GemmCalibration(
        constants=constants,
        ordered=entry.ordered if is_near else None,
        steps=entry.correction if is_near else None,
        relative_sigma=entry.relative_sigma,
        borrowed_sigma=match.borrowed_sigma,
    )


def price_gemms(
    shapes: GemmShapes,
    machine: MachineRates,
    calibration: GemmCalibration,
    *,
    residency: Residency,
    slowdown: float = 1.0,
    extra_sigma: float = 0.0,
) -> Estimates:
    """Predict *shapes*, all of one dtype."""
    times = predict_gemm_times(shapes, machine, calibration.constants, residency)
    kernel_ns = times.kernel_ns
    sigma = np.full(len(shapes), calibration.relative_sigma)
    is_inside = np.full(len(shapes), calibration.is_own)
    if calibration.ordered is not None:
        features = gemm_features(shapes, machine, times)
        log_ratio, sigma = _apply(calibration.ordered, features)
        kernel_ns = kernel_ns * np.exp(log_ratio)
        is_inside &= has_fitted_sizes(features, calibration.ordered)
    if calibration.steps is not None:
        steps = calibration.steps.log_ratio(gemm_step_features(shapes, machine, times))
        kernel_ns = kernel_ns * np.exp(steps)
    floor_ns = calibration.constants.floor_ns
    is_memory = times.memory_ns > 0.8 * (times.kernel_ns - floor_ns)
    if slowdown > 1.0:
        arithmetic_ns = predict_arithmetic_ns(shapes, machine, calibration.constants)
        slowed_ns = slowdown * np.minimum(kernel_ns, arithmetic_ns / ARITHMETIC_SHARE)
        kernel_ns = np.maximum(kernel_ns, slowed_ns)
    bound = np.where(is_memory, Bound.MEMORY, Bound.COMPUTE)
    spread = np.sqrt(sigma**2 + calibration.borrowed_sigma**2 + extra_sigma**2)
    return build_estimates(
        times.timing_ns + kernel_ns,
        relative_sigma=spread,
        provenance=np.where(
            is_inside & (extra_sigma == 0.0), Provenance.INTERPOLATED, Provenance.EXTRAPOLATED
        ),
        bound=np.where(times.kernel_ns < 2 * floor_ns, Bound.LATENCY, bound),
    )


def _apply(correction: OrderedCorrection, features: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Logarithm of the correction and its sigma, some rows at a time to stay in the cache."""
    parts = [
        correction.apply(features[start : start + CHUNK_ROWS])
        for start in range(0, max(len(features), 1), CHUNK_ROWS)
    ]
    return (
        np.concatenate([part.log_ratio for part in parts]),
        np.concatenate([part.relative_sigma for part in parts]),
    )


def has_fitted_sizes(features: FloatColumn, correction: OrderedCorrection) -> NDArray[np.bool_]:
    """Whether m, n, k and batch lie in the range of the fit."""
    sizes = features[:, SIZE_FEATURES]
    low, high = correction.low[SIZE_FEATURES], correction.high[SIZE_FEATURES]
    return np.asarray(np.all((sizes >= low - 1e-3) & (sizes <= high + 1e-3), axis=1))


def rows_by_dtype(ops: Sequence[Gemm]) -> dict[DType, Sequence[int]]:
    """Which of *ops* have which dtype.

    Compared by identity, because hashing an enum member a hundred thousand
    times takes longer than pricing.
    """
    if not ops:
        return {}
    first = ops[0].dtype
    if all(op.dtype is first for op in ops):
        return {first: range(len(ops))}
    return {
        dtype: rows
        for dtype in DType
        if (rows := [row for row, op in enumerate(ops) if op.dtype is dtype])
    }


def gemm_shapes(ops: Sequence[Gemm]) -> GemmShapes:
    """*ops*, all of one dtype, as columns."""
    count = len(ops)
    return GemmShapes(
        batch=np.fromiter((op.batch for op in ops), np.float64, count),
        m=np.fromiter((op.m for op in ops), np.float64, count),
        n=np.fromiter((op.n for op in ops), np.float64, count),
        k=np.fromiter((op.k for op in ops), np.float64, count),
        width_bytes=np.full(count, float(ops[0].dtype.size_bytes) if ops else 0.0),
    )


def variant_of(dtype: DType) -> str:
    """Whether products of *dtype* run on tensor cores or vector units."""
    return TENSOR if dtype in _TENSOR_DTYPES else VECTOR


def machine_rates(device: Device, dtype: DType) -> MachineRates:
    """What the datasheet of *device* says about products of *dtype*.

    A dtype the chip cannot multiply at its own rate runs as the next wider one
    it can, which for lack of tensor cores is the vector rate.
    """
    rate = next(
        (device.peak_flops[kind] for kind in (dtype, *_WIDER.get(dtype, ()))
         if kind in device.peak_flops),
        device.vector_flops,
    )  # fmt: skip
    return MachineRates(
        sm_count=device.sm_count,
        clock_hz=device.clock_hz,
        peak_flops=float(rate),
        memory_bytes_per_s=float(device.memory_bandwidth_bytes_per_s),
        l2_bytes=float(device.l2_bytes),
    )


_WIDER = {
    DType.FP8: (DType.BF16, DType.FP16),
    DType.INT8: (DType.BF16, DType.FP16),
    DType.BF16: (DType.FP32,),
    DType.TF32: (DType.FP32,),
}
