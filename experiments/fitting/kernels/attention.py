"""Attention fit: physics constants and the correction of one device, kernel and mask.

Rows of both directions are fitted together: forward first, then how backward
follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np

from experiments.fitting.kernels.constants import LIMITS, alone_ns, build_entry, fit_constants
from experiments.fitting.kernels.networks import TrainingPlan, fit_ordered
from perfmodel.costs.attention import attention_shapes
from perfmodel.costs.attention_kernels import variant_of
from perfmodel.costs.attention_physics import (
    NARROW_HEAD,
    AttentionConstants,
    AttentionShapes,
    BackwardConstants,
    attention_features,
    predict_backward_ns,
    predict_forward_times,
)
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from perfmodel.costs.gemm_features import machine_rates
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.extensions.measurements.calibration.bounded_fit import Limits
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from topologies import load_device

PHYSICS_ROWS = 4000
FEWEST_ROWS = 200
"""With fewer rows only the efficiency, the balance and the traffic are fitted, and no
correction is learned: it would memorise the rows."""
USUAL_PAIR_CLOCKS = 0.04
"""Used where all rows have one head size, which cannot separate multiplying from the rest of the
work on a pair. Fits over several head sizes give 0.04 to 0.065 on Hopper; 16 exponentials a
clock would alone take 0.0625, of which kernels hide a part."""
EVALUATIONS = 60
SMALLEST_SIGMA = 0.04
WITHOUT_CACHE = frozenset({"cudnn"})
"""Kernels with training benchmarks; serving benchmarks write causal keys to a cache."""

TILES = ((128.0, 128.0), (64.0, 64.0), (192.0, 128.0), (192.0, 192.0), (128.0, 64.0))
"""Lengths of query tiles, for heads up to 96 and beyond; the best fit is used."""
TRIAL_ROWS = 800
TRIAL_EVALUATIONS = 25
PLAN = TrainingPlan(
    hidden=32,
    steps=1400,
    batch=512,
    learning_rate=3e-2,
    weight_decay=1e-4,
    spread_hidden=10,
    inner_parts=1,
)
MANY_ROWS = 5000
"""With so many rows or more, one held-out half is enough to learn the spread."""
FEW_ROWS = ("compute_ratio", "balance", "traffic_bytes_per_clock")


def fit_attention_entry(table: KernelTable, device_name: str) -> Entry:
    """Constants from the rows of *table*, all of one device, kernel and mask."""
    device = load_device(device_name)
    ops = [kernel.op for kernel in table.kernels]
    shapes, machine = attention_shapes(ops), machine_rates(device, ops[0].dtype)
    measured = alone_ns(table)
    is_forward = np.flatnonzero(~shapes.is_backward)
    known = LIMITS
    limits = known["attention"]
    if ops[0].is_causal and ops[0].kernel not in WITHOUT_CACHE:
        limits = {**limits, **known["attention_cache"]}
    constants = _fit_forward(shapes.rows(is_forward), machine, measured[is_forward], limits)
    predicted = predict_forward_times(shapes, machine, constants).duration_ns
    backward: dict[str, float] = {}
    if len(is_forward) < len(ops):
        is_backward = np.flatnonzero(shapes.is_backward)
        behind, forward_ns = shapes.rows(is_backward), predicted[is_backward]

        def predict(tried: Mapping[str, float]) -> Matrix:
            relation = BackwardConstants(**tried)
            return predict_backward_ns(behind, machine, relation, forward_ns=forward_ns)

        backward = fit_constants(
            known["attention_backward"], predict, measured[is_backward], evaluations=EVALUATIONS
        )
        predicted[is_backward] = predict(backward)
    ordered, curves = None, {}
    if len(is_forward) < FEWEST_ROWS:
        ranges = {"head_dim": shapes.head_dim, "length": shapes.queries}
        curves = {name: [[float(np.min(one)), float(np.max(one))]] for name, one in ranges.items()}
    else:
        rows = shapes.rows(is_forward)
        times = predict_forward_times(rows, machine, constants)
        plan = PLAN if len(is_forward) >= MANY_ROWS else replace(PLAN, inner_parts=2)
        log_time = np.log(measured[is_forward])
        ordered = fit_ordered(attention_features(rows, machine, times), log_time, plan)
    return build_entry(
        device,
        variant_of(ops[0]),
        constants={**asdict(constants), **backward},
        ordered=ordered,
        curves=curves,
        relative_sigma=_sigma(np.log(measured / predicted)),
    )


def _sigma(log_ratio: Matrix) -> float:
    """The spread of errors; with few rows, corrected for the fitted constants."""
    sigma = float(np.std(log_ratio))
    if len(log_ratio) < FEWEST_ROWS:
        fitted = len(FEW_ROWS) + len(LIMITS["attention_backward"])
        sigma *= float(np.sqrt(len(log_ratio) / max(1, len(log_ratio) - fitted)))
    return max(SMALLEST_SIGMA, sigma)


def _fit_forward(
    shapes: AttentionShapes, machine: MachineRates, measured: Matrix, limits: Limits
) -> AttentionConstants:
    """The best fit over lengths of tiles, which are chosen on fewer rows."""
    # Constants that the rows cannot determine keep their usual values.
    fixed: dict[str, float] = {}
    if len(shapes) < FEWEST_ROWS:
        fixed = {name: limit.start for name, limit in limits.items() if name not in FEW_ROWS}
    if len(np.unique(shapes.head_dim)) == 1:
        fixed["pair_clocks"] = USUAL_PAIR_CLOCKS
    tiles: tuple[tuple[float, float], ...] = TILES[:1]
    if len(measured) >= FEWEST_ROWS:
        is_wide = bool(np.any(shapes.head_dim > NARROW_HEAD))
        tiles = TILES if is_wide else tuple(pair for pair in TILES if pair[0] == pair[1])

    def fit(
        tile: tuple[float, float], rows: int, evaluations: int
    ) -> tuple[float, AttentionConstants]:
        chosen = np.random.default_rng(0).permutation(len(measured))[:rows]
        few, truth = shapes.rows(np.sort(chosen)), measured[np.sort(chosen)]
        held = {**fixed, "query_tile": tile[0], "wide_query_tile": tile[1]}

        def predict(constants: Mapping[str, float]) -> Matrix:
            together = AttentionConstants(**held, **constants)
            return predict_forward_times(few, machine, together).duration_ns

        free = {name: limit for name, limit in limits.items() if name not in held}
        found = fit_constants(free, predict, truth, evaluations=evaluations)
        error = float(np.mean(np.abs(np.log(predict(found) / truth))))
        return error, AttentionConstants(**held, **found)

    errors = [fit(tile, TRIAL_ROWS, TRIAL_EVALUATIONS)[0] for tile in tiles]
    return fit(tiles[int(np.argmin(errors))], PHYSICS_ROWS, EVALUATIONS)[1]
