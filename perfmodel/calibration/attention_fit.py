"""Attention fit: physics constants and the correction of one device and kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.calibration.bounded_fit import Limit, fit_constants
from perfmodel.calibration.networks import OrderedPairs, TrainingPlan, fit_correction
from perfmodel.costs.attention import attention_shapes
from perfmodel.costs.attention_physics import (
    AttentionConstants,
    AttentionShapes,
    attention_features,
    predict_attention_times,
)
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.correction import Matrix
from perfmodel.costs.gemm import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.costs.tables.kernel_table import KernelTable
from perfmodel.graph.ops import Pass
from topologies import load_device

PHYSICS_ROWS = 2500
PAIR_ROWS = 2000
FEWEST_CORRECTED_ROWS = 200
"""With fewer rows there is no learned correction: it would repeat the rows."""
SMALLEST_SIGMA = 0.04

LIMITS = {
    "floor_ns": Limit(4000, 1000, 15_000),
    "compute_ratio": Limit(0.7, 0.2, 1.0),
    "pair_clocks": Limit(0.02, 0.001, 0.5),
    "balance": Limit(3.0, 1.0, 12.0),
    "traffic_bytes_per_clock": Limit(8.0, 0.5, 40.0),
    "sustained_loss": Limit(0.05, 0.001, 0.6),
    "sustained_after_ns": Limit(1e6, 1e4, 1e8),
}
PLAN = TrainingPlan(hidden=24, steps=4000, batch=512, weight_decay=1e-3, spread_hidden=10)


def variant_name(table: KernelTable) -> str:
    """The variant that the rows of *table*, all of one kind, are constants for."""
    op = table.kernels[0].op
    direction = "backward" if op.direction is Pass.BACKWARD else "forward"
    suffix = "" if op.dtype in (DType.BF16, DType.FP16) else f"/{op.dtype.value}"
    return f"{op.kernel}/{direction}/{'causal' if op.is_causal else 'full'}{suffix}"


def fit_attention_entry(table: KernelTable, device_name: str, *, seed: int = 0) -> Entry:
    """Constants and correction from the rows of *table*, all of one device and kernel."""
    device = load_device(device_name)
    ops = [kernel.op for kernel in table.kernels]
    shapes, machine = attention_shapes(ops), machine_rates(device, ops[0].dtype)
    measured = table.measured_ns
    constants = _fit_physics(shapes, machine, measured, seed)
    times = predict_attention_times(shapes, machine, constants)
    log_ratio = np.log(measured / times.duration_ns)
    correction = None
    if len(ops) >= FEWEST_CORRECTED_ROWS:
        correction = fit_correction(
            attention_features(shapes, machine, times),
            log_ratio,
            PLAN,
            _ordered_pairs(shapes, machine, constants, seed),
        )
    return Entry(
        device=device.name,
        architecture=device.architecture.value,
        compute_capability=device.compute_capability,
        variant=variant_name(table),
        constants={name: getattr(constants, name) for name in LIMITS},
        correction=correction,
        relative_sigma=max(SMALLEST_SIGMA, float(np.std(log_ratio))),
    )


def _fit_physics(
    shapes: AttentionShapes, machine: MachineRates, measured: Matrix, seed: int
) -> AttentionConstants:
    chooser = np.random.default_rng(seed)
    count = min(PHYSICS_ROWS, len(measured))
    chosen = np.sort(chooser.choice(len(measured), count, replace=False))
    few = shapes.rows(chosen)

    def predict(constants: Mapping[str, float]) -> Matrix:
        return predict_attention_times(few, machine, AttentionConstants(**constants)).duration_ns

    return AttentionConstants(**fit_constants(LIMITS, predict, measured[chosen], evaluations=60))


def _ordered_pairs(
    shapes: AttentionShapes, machine: MachineRates, constants: AttentionConstants, seed: int
) -> OrderedPairs:
    """Calls and the same with twice the samples, heads or length."""
    chooser = np.random.default_rng(seed)
    base = shapes.rows(chooser.integers(0, len(shapes), PAIR_ROWS))
    which = chooser.integers(0, 3, PAIR_ROWS)
    length = np.where(which == 0, 2, 1)
    heads = np.where(which == 2, 2, 1)
    larger = AttentionShapes(
        batch=base.batch * np.where(which == 1, 2, 1),
        queries=base.queries * length,
        keys=base.keys * length,
        heads=base.heads * heads,
        kv_heads=base.kv_heads * heads,
        head_dim=base.head_dim,
        width_bytes=base.width_bytes,
        is_causal=base.is_causal,
        is_backward=base.is_backward,
    )
    small_times = predict_attention_times(base, machine, constants)
    large_times = predict_attention_times(larger, machine, constants)
    return OrderedPairs(
        smaller=attention_features(base, machine, small_times),
        larger=attention_features(larger, machine, large_times),
        log_step=np.log(large_times.duration_ns / small_times.duration_ns),
    )
