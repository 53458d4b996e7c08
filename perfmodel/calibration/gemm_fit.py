"""GEMM fit: physics constants and the correction of one device, from measured products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from perfmodel.base.errors import CalibrationError
from perfmodel.calibration.bounded_fit import Limit, fit_constants
from perfmodel.calibration.networks import OrderedPairs, TrainingPlan, fit_correction
from perfmodel.costs.benchmark import residency_of
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.correction import Matrix
from perfmodel.costs.gemm import TENSOR, gemm_shapes, machine_rates, variant_of
from perfmodel.costs.gemm_features import gemm_features
from perfmodel.costs.gemm_physics import (
    GemmConstants,
    GemmShapes,
    MachineRates,
    Residency,
    predict_gemm_times,
)
from perfmodel.costs.tables.kernel_table import KernelTable
from topologies import load_device

PHYSICS_ROWS = 2500
PAIR_ROWS = 8000
FLOOR_ROWS_NS = 5_000.0
"""Measurements shorter than this are mostly timer and launch; the physics is not fitted to them."""

LIMITS = {
    "floor_ns": Limit(2000, 500, 5_000),
    "compute_ratio": Limit(0.85, 0.3, 1.1),
    "loss_k": Limit(100, 1, 800),
    "loss_intensity": Limit(10, 0.5, 60),
    "tail_ratio": Limit(0.7, 0.0, 1.0, is_positive=False),
    "load_bytes_per_clock": Limit(60, 8, 300),
    "cache_ratio": Limit(0.7, 0.1, 3),
    "memory_ratio": Limit(0.9, 0.5, 1.0),
    "sustained_loss": Limit(0.1, 0.001, 1.0),
    "sustained_after_ns": Limit(3e5, 1e4, 1e8),
    "split_ns": Limit(1500, 10, 2e4),
    "resident_ratio": Limit(1.0, 0.1, 1.5),
    "resident_sharpness": Limit(15, 1, 60),
    "activation_resident_ratio": Limit(0.5, 0.02, 3),
}

TIMING_LIMIT = Limit(10_000, 1, 40_000)
"""Tables timed from the host hold its launches; those from CUDA graphs do not."""

PLANS = {
    TENSOR: TrainingPlan(hidden=64, steps=6000, learning_rate=8e-3),
    "vector": TrainingPlan(hidden=24, steps=3000, batch=512, weight_decay=1e-3, spread_hidden=8),
}


def fit_gemm_entry(table: KernelTable, device_name: str, *, seed: int = 0) -> Entry:
    """Constants and correction from the rows of *table*, all of one device and arithmetic."""
    device = load_device(device_name)
    ops = [kernel.op for kernel in table.kernels]
    dtype = ops[0].dtype
    shapes, machine = gemm_shapes(ops), machine_rates(device, dtype)
    measured = table.measured_ns
    residency = _only_residency(table, device_name)
    constants = _fit_physics(shapes, machine, measured, residency, seed)
    times = predict_gemm_times(shapes, machine, constants, residency)
    log_ratio = np.log(measured / times.duration_ns)
    correction = fit_correction(
        gemm_features(shapes, machine, times),
        log_ratio,
        PLANS[variant_of(dtype)],
        _ordered_pairs(shapes, machine, constants, seed),
    )
    return Entry(
        device=device.name,
        architecture=device.architecture.value,
        compute_capability=device.compute_capability,
        variant=variant_of(dtype),
        constants=asdict(constants),
        correction=correction,
        relative_sigma=float(np.std(log_ratio)),
    )


def _only_residency(table: KernelTable, device_name: str) -> Residency:
    """Where operands were in all rows of *table*."""
    found = {residency_of(kernel) for kernel in table.kernels}
    if len(found) > 1:
        words = " and ".join(sorted(residency.value for residency in found))
        raise CalibrationError(
            f"products on {device_name}: rows of one fit must be measured in the same way, got "
            f"residency {words}. Fit recordings and benchmarks apart."
        )
    return found.pop()


def _fit_physics(
    shapes: GemmShapes,
    machine: MachineRates,
    measured: Matrix,
    residency: Residency,
    seed: int,
) -> GemmConstants:
    rows = np.flatnonzero(measured > FLOOR_ROWS_NS)
    chooser = np.random.default_rng(seed)
    chosen = np.sort(chooser.choice(rows, min(PHYSICS_ROWS, len(rows)), replace=False))
    few = shapes.rows(chosen)

    def predict(constants: Mapping[str, float]) -> Matrix:
        whole = GemmConstants(**{"timing_ns": 0.0, **constants})
        return predict_gemm_times(few, machine, whole, residency).duration_ns

    is_host_timed = residency is Residency.REPEATED
    limits = {**LIMITS, "timing_ns": TIMING_LIMIT} if is_host_timed else LIMITS
    return GemmConstants(**{"timing_ns": 0.0, **fit_constants(limits, predict, measured[chosen])})


def _ordered_pairs(
    shapes: GemmShapes, machine: MachineRates, constants: GemmConstants, seed: int
) -> OrderedPairs:
    """Products and the same with m, n or k doubled, weights cold as in training.

    Sizes are moved off those in the table, which are mostly round, and half of
    the batches are single products, so that the order also holds there.
    """
    chooser = np.random.default_rng(seed)
    table = shapes.rows(chooser.integers(0, len(shapes), PAIR_ROWS))
    m, n, k = (
        np.maximum(1.0, np.rint(size * np.exp2(chooser.uniform(-0.6, 0.6, PAIR_ROWS))))
        for size in (table.m, table.n, table.k)
    )
    batch = np.where(chooser.random(PAIR_ROWS) < 0.5, 1.0, table.batch)
    base = GemmShapes(batch=batch, m=m, n=n, k=k, width_bytes=table.width_bytes)
    which = chooser.integers(0, 3, PAIR_ROWS)
    larger = GemmShapes(
        batch=base.batch,
        m=base.m * np.where(which == 0, 2, 1),
        n=base.n * np.where(which == 1, 2, 1),
        k=base.k * np.where(which == 2, 2, 1),
        width_bytes=base.width_bytes,
    )
    small_times = predict_gemm_times(base, machine, constants, Residency.COLD)
    large_times = predict_gemm_times(larger, machine, constants, Residency.COLD)
    return OrderedPairs(
        smaller=gemm_features(base, machine, small_times),
        larger=gemm_features(larger, machine, large_times),
        log_step=np.log(large_times.duration_ns / small_times.duration_ns),
    )
