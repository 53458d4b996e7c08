"""GEMM fits: constants of one device, and what is learned on top, for GEMMs and layers of experts.

A layer of experts is two grouped GEMMs. It has few measured rows, so its correction is a regression
and not a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import (
    Correction,
    Matrix,
    OrderedCorrection,
    OrderedNetwork,
    range_of,
)
from perfmodel.costs.expert_physics import (
    LARGEST_CORRECTION,
    ExpertConstants,
    layer_features,
    layer_shapes,
    predict_layer_times,
    smooth_log_ratio,
    square_terms,
)
from perfmodel.costs.gemm import TENSOR, VECTOR, variant_of
from perfmodel.costs.gemm_features import (
    gemm_features,
    gemm_shapes,
    gemm_step_features,
    machine_rates,
)
from perfmodel.costs.gemm_physics import (
    ACTIVATION_BYTES,
    TINY_WORK,
    GemmConstants,
    GemmShapes,
    MachineRates,
    predict_gemm_times,
)
from perfmodel.extensions.measurements.calibration.bounded_fit import (
    build_entry,
    fit_constants,
    load_limits,
)
from perfmodel.extensions.measurements.calibration.networks import (
    TrainingPlan,
    fit_spread,
    fit_steps,
    on_one_thread,
    train_ordered,
)
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from perfmodel.stacks.capabilities import Residency
from topologies import load_device

HELD_OUT_EVERY = 3
EXPERT_EVALUATIONS = 60
SMALLEST_EXPERT_SIGMA = 0.05
FEWEST_SHAPES = 8
"""With fewer models in a table, the correction would overfit to them."""
RIDGE = 0.01
ROUNDS = 15
USUAL_ERROR = 0.03
"""Errors of the logarithm beyond this count by their size, not by its square."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How the networks of one kind of arithmetic are trained."""

    ordered: TrainingPlan
    steps: TrainingPlan | None
    spread: TrainingPlan


LEARNING = {
    TENSOR: Learning(
        ordered=TrainingPlan(hidden=96, steps=3000, learning_rate=2e-2),
        steps=TrainingPlan(hidden=32, steps=2500, learning_rate=8e-3),
        spread=TrainingPlan(steps=3000, learning_rate=1e-2, spread_hidden=12),
    ),
    # Few rows: effects against the order would be learned from noise.
    VECTOR: Learning(
        ordered=TrainingPlan(
            hidden=48, steps=2000, batch=512, learning_rate=2e-2, weight_decay=1e-3
        ),
        steps=None,
        spread=TrainingPlan(steps=2000, batch=512, learning_rate=1e-2, spread_hidden=8),
    ),
}


FEW_ROWS, FEW_ROW_STEPS = 200, 400
"""With fewer rows every step sees all of them, and effects against the order are noise: on held-out
shapes of 30 and 150 rows of an H100 table, longer training errs more (13.0 instead of 9.5 %)."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRows:
    """What is learned from: features *rising* with the work and such that are *free*.

    *share* is how much of the measured time is the kernel, the rest being timing and casts.
    """

    rising: Matrix
    free: Matrix
    log_time: Matrix
    share: Matrix

    def take(self, chosen: NDArray[np.bool_]) -> LearnedRows:
        """The rows that are *chosen*."""
        return LearnedRows(*(getattr(self, one.name)[chosen] for one in fields(self)))


def fit_learned(
    rows: LearnedRows, learning: Learning
) -> tuple[OrderedCorrection, Correction | None]:
    """The ordered correction of the kernels in *rows*, then that of effects against the order.

    A third of the rows is held out once to measure the error of both on unseen rows.
    """
    found = range_of(rows.rising)
    scaled = replace(rows, rising=(rows.rising - found["mean"]) / found["scale"])
    order = np.random.default_rng(learning.ordered.seed).permutation(len(rows.log_time))
    is_out = order % HELD_OUT_EVERY == 0
    rest = scaled.take(is_out)
    with on_one_thread():
        trial, steps = _fit(scaled.take(~is_out), learning)
        log_time = trial.answer(rest.rising)
        if steps is not None:
            log_time = log_time + steps.log_ratio(rest.free)
        # As an error of the measured time: only the kernel's share of it counts.
        errors = rest.share * (rest.log_time - log_time)
        whole, steps = _fit(scaled, learning)
        ordered = OrderedCorrection(
            **found,
            order=whole,
            spread=fit_spread(rest.rising, np.abs(errors), learning.spread),
        )
    return ordered, steps


def _fit(rows: LearnedRows, learning: Learning) -> tuple[OrderedNetwork, Correction | None]:
    order = train_ordered(rows.rising, rows.log_time, learning.ordered, weight=rows.share)
    if learning.steps is None:
        return order, None
    left = rows.log_time - order.answer(rows.rising)
    return order, fit_steps(rows.free, left, learning.steps)


PHYSICS_ROWS = 2500
LONG_K = 2048
SMALLEST_VECTOR_TILE = 64.0 * 64
"""Elements of the smallest fp32 tiles, by kernel names in recordings: 32 x 128, 64 x 64."""
SMALLEST_KERNEL_SHARE = 0.2
"""At least this share of a measurement is the kernel, the rest timing and casts."""
FLOOR_ROWS_NS = 5_000.0
"""Measurements shorter than this are mostly timer and launch; the physics is not fitted to them."""

GEMM_FLOOR_NS = 3_000.0
"""Used where a cast precedes: a table cannot separate its floor from that of the GEMM, and half
precision has floors of 2.9 to 3.5 us on chips that multiply 8 bits."""


def fit_gemm_entry(table: KernelTable, device_name: str) -> Entry:
    """Constants and correction from the rows of *table*, all of one device and arithmetic."""
    device = load_device(device_name)
    ops = [kernel.op for kernel in table.kernels]
    dtype = ops[0].dtype
    shapes, machine = gemm_shapes(ops), machine_rates(device, dtype)
    measured = table.alone_ns
    found = {kernel.operand_residency for kernel in table.kernels}
    if len(found) > 1:
        words = " and ".join(sorted(residency.value for residency in found))
        raise CalibrationError(
            f"GEMMs on {device_name}: rows of one fit must be measured in the same way, got "
            f"residency {words}. Fit recordings and benchmarks separately."
        )
    [residency] = found
    constants = _fit_physics(shapes, machine, measured, residency)
    times = predict_gemm_times(shapes, machine, constants, residency)
    log_ratio = np.log(measured / times.duration_ns)
    kernel_ns = np.maximum(measured - times.timing_ns, SMALLEST_KERNEL_SHARE * measured)
    rows = LearnedRows(
        rising=gemm_features(shapes, machine, times),
        free=gemm_step_features(shapes, machine, times),
        log_time=np.log(kernel_ns),
        share=kernel_ns / measured,
    )
    variant = variant_of(dtype)
    learning = LEARNING[VECTOR if variant == VECTOR else TENSOR]
    if len(measured) < FEW_ROWS:
        few = replace(learning.ordered, steps=FEW_ROW_STEPS)
        learning = replace(learning, ordered=few, steps=None)
    ordered, steps = fit_learned(rows, learning)
    return build_entry(
        device,
        variant,
        constants=asdict(constants),
        correction=steps,
        ordered=ordered,
        relative_sigma=float(np.std(log_ratio)),
    )


def _fit_physics(
    shapes: GemmShapes, machine: MachineRates, measured: Matrix, residency: Residency
) -> GemmConstants:
    rows = np.flatnonzero(measured > FLOOR_ROWS_NS)
    chooser = np.random.default_rng(0)
    chosen = np.sort(chooser.choice(rows, min(PHYSICS_ROWS, len(rows)), replace=False))
    few = shapes.rows(chosen)

    given = {
        "timing_ns": 0.0,
        "tiny_k_ns": tiny_k_ns(shapes, measured),
        "smallest_tile": SMALLEST_VECTOR_TILE if shapes.width_bytes[0] > 2 else 0.0,
    }

    def predict(constants: Mapping[str, float]) -> Matrix:
        whole = GemmConstants(**{**given, **constants})
        return predict_gemm_times(few, machine, whole, residency).duration_ns

    known = load_limits()
    limits = dict(known["gemm"])
    if residency is Residency.REPEATED:
        limits |= known["gemm_timing"]
    if shapes.width_bytes[0] < ACTIVATION_BYTES:
        limits |= known["gemm_cast"]
        given["floor_ns"] = GEMM_FLOOR_NS
        del limits["floor_ns"]
    return GemmConstants(**{**given, **fit_constants(limits, predict, measured[chosen])})


def tiny_k_ns(shapes: GemmShapes, measured: Matrix) -> float:
    """What an element of k costs in tiny GEMMs, from those with a long k; 0 without any.

    The fastest tenth: where a library has no such kernel, nothing is slow.
    """
    work = shapes.batch * shapes.m * shapes.n * shapes.k
    is_vector = np.minimum(shapes.m, shapes.n) == 1
    rows = (work < TINY_WORK) & (shapes.k >= LONG_K) & ~is_vector
    if not rows.any():
        return 0.0
    beyond_floor = measured[rows] - load_limits()["gemm"]["floor_ns"].start
    return max(0.0, float(np.quantile(beyond_floor / shapes.k[rows], 0.1)))


def fit_expert_entry(table: KernelTable, device_name: str) -> Entry:
    """Constants from the rows of *table*, all of one device, kernel and format."""
    device = load_device(device_name)
    layers = [kernel.op for kernel in table.kernels]
    shapes, machine = layer_shapes(layers), machine_rates(device, layers[0].dtype)
    measured = table.alone_ns
    constants = fit_constants(
        load_limits()["experts"],
        lambda values: predict_layer_times(shapes, machine, ExpertConstants(**values)).duration_ns,
        measured,
        evaluations=EXPERT_EVALUATIONS,
    )
    times = predict_layer_times(shapes, machine, ExpertConstants(**constants))
    log_ratio = np.log(measured / times.duration_ns)
    curves: dict[str, list[list[float]]] = {}
    if len({tuple(kernel.columns.values()) for kernel in table.kernels}) >= FEWEST_SHAPES:
        features = layer_features(shapes, times)
        span, weights = _fit_correction(features, log_ratio)
        log_ratio = log_ratio - smooth_log_ratio(features, span, weights)
        curves = {"span": span.tolist(), "weights": [weights.tolist()]}
    return build_entry(
        device,
        layers[0].variant,
        constants=constants,
        relative_sigma=max(SMALLEST_EXPERT_SIGMA, float(np.std(log_ratio))),
        curves=curves,
    )


def _fit_correction(features: Matrix, log_ratio: Matrix) -> tuple[Matrix, Matrix]:
    """Span and weights of `smooth_log_ratio`: ridge regression with robust reweighting.

    Some rows of public tables ran untuned kernels at a fifth of the speed. They must not dominate.
    """
    span = np.stack(list(range_of(features).values()), axis=1)
    terms = square_terms((features - span[:, 0]) / span[:, 1])
    wanted = np.clip(log_ratio, -LARGEST_CORRECTION, LARGEST_CORRECTION)
    ridge = RIDGE * len(wanted) * np.eye(terms.shape[1])
    weight: Matrix = np.ones(len(wanted))
    found: Matrix = np.zeros(terms.shape[1])
    for _ in range(ROUNDS):
        weighted = terms.T * weight
        found = np.linalg.solve(weighted @ terms + ridge, weighted @ wanted).astype(np.float64)
        weight = USUAL_ERROR / np.maximum(np.abs(wanted - terms @ found), USUAL_ERROR)
    return span, found
