"""GEMM fits: constants of one device, and what is learned on top, for GEMMs and layers of experts.

A layer of experts is two grouped GEMMs. It has few measured rows, so its correction is a regression
and not a network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from experiments.fitting.kernels.constants import LIMITS, alone_ns, build_entry, fit_constants
from experiments.fitting.kernels.networks import (
    TrainingPlan,
    fit_spread,
    fit_steps,
    on_one_thread,
    range_of,
    train_ordered,
)
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import (
    Correction,
    Matrix,
    OrderedCorrection,
    OrderedNetwork,
)
from perfmodel.costs.expert_physics import (
    ExpertConstants,
    ExpertTimes,
)
from perfmodel.costs.gemm import TENSOR, VECTOR, variant_of
from perfmodel.costs.gemm_features import (
    gemm_features,
    gemm_shapes,
    gemm_step_features,
    machine_rates,
)
from perfmodel.costs.gemm_physics import (
    TINY_WORK,
    GemmConstants,
    GemmShapes,
    MachineRates,
    predict_gemm_times,
)
from perfmodel.extensions.measurements.expert_layers import (
    LARGEST_CORRECTION,
    ExpertShapes,
    layer_features,
    layer_shapes,
    predict_layer_times,
    smooth_log_ratio,
    square_terms,
)
from perfmodel.extensions.measurements.measured_kernels import KernelTable, MeasuredKernel
from perfmodel.stacks.capabilities import Residency
from topologies import load_device

HELD_OUT_EVERY = 3
EXPERT_EVALUATIONS = 60
SMALLEST_EXPERT_SIGMA = 0.05
FEWEST_SHAPES, FEW_LAYERS = 8, 500
"""With fewer models or rows in a table, the correction would overfit to them; with fewer of both,
the constants: on models left out of AMD tables they err by 29 %, fitted together by 13."""
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


FEW_ROWS, FEW_WEIGHTS = 200, 250
"""With fewer rows, or on tensor cores fewer sizes of weights, a large network learns which weights
were measured: on weights left out of AMD tables it errs by 32 %, the physics alone by 15."""
FEW = TrainingPlan(hidden=16, steps=150, learning_rate=2e-2)
SMALL_SPREAD = TrainingPlan(steps=3000, learning_rate=1e-2, spread_hidden=4)
FEW_FOLDS, FEW_SPREAD = 4, 1.2
"""The physics is fitted to the rows that are left out of the network; if those are left out of it,
too, errors grow by a fifth."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of what a small network says of other weights may be taken."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRows:
    """What is learned from: features *rising* with the work and such that are *free*.

    *share* is how much of the measured time is the kernel, the rest being timing and casts;
    *weights* numbers the sizes of weights.
    """

    rising: Matrix
    free: Matrix
    log_time: Matrix
    share: Matrix
    weights: NDArray[np.intp]

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


def fit_few(rows: LearnedRows) -> OrderedCorrection:
    """The ordered correction of *rows* that hold few sizes of weights.

    Weights are left out in turn. What a small network makes of the physics is taken as far as it
    helps there: between two times that grow with the work, so do those in between.
    """
    found = range_of(rows.rising)
    scaled = replace(rows, rising=(rows.rising - found["mean"]) / found["scale"])
    physics, left_out = rows.rising[:, 0], np.empty(len(rows.log_time))
    fold = np.random.default_rng(FEW.seed).permutation(rows.weights.max() + 1) % FEW_FOLDS
    with on_one_thread():
        for number in range(FEW_FOLDS):
            is_out = fold[rows.weights] == number
            if is_out.all() or not is_out.any():
                left_out[is_out] = physics[is_out]
                continue
            known, rest = scaled.take(~is_out), scaled.take(is_out)
            network = train_ordered(known.rising, known.log_time, FEW, weight=known.share)
            inside = np.clip(rest.rising, known.rising.min(axis=0), known.rising.max(axis=0))
            left_out[is_out] = network.answer(inside)
        errors = {
            share: np.abs(rows.share * (share * left_out + (1 - share) * physics - rows.log_time))
            for share in SHARES
        }
        share = min(SHARES, key=lambda one: float(errors[one].mean()))
        whole = train_ordered(scaled.rising, rows.log_time, FEW, weight=rows.share)
        straight = share * whole.straight
        straight[0] += (1 - share) * found["scale"][0]
        order = replace(
            whole,
            last=share * whole.last,
            straight=straight,
            bias=share * whole.bias + (1 - share) * found["mean"][0],
        )
        spread = fit_spread(scaled.rising, FEW_SPREAD * errors[share], SMALL_SPREAD)
    return OrderedCorrection(**found, order=order, spread=spread)


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


def fit_gemm_entry(table: KernelTable, device_name: str, *, has_cast: bool = True) -> Entry:
    """Constants and correction from the rows of *table*, all of one device and arithmetic.

    With *has_cast* the time of a quantised layer includes the cast of its activation.
    """
    device = load_device(device_name)
    # Eight bits may be multiplied in a table of half precision, at another rate.
    dtype = Counter(kernel.op.dtype for kernel in table.kernels).most_common(1)[0][0]
    table = KernelTable(tuple(one for one in table.kernels if one.op.dtype is dtype))
    ops = [kernel.op for kernel in table.kernels]
    shapes, machine = gemm_shapes(ops), machine_rates(device, dtype)
    measured = alone_ns(table)
    found = {kernel.operand_residency for kernel in table.kernels}
    if len(found) > 1:
        words = " and ".join(sorted(residency.value for residency in found))
        raise CalibrationError(
            f"GEMMs on {device_name}: rows of one fit must be measured in the same way, got "
            f"residency {words}. Fit recordings and benchmarks separately."
        )
    [residency] = found
    has_cast = has_cast and dtype.is_quantised
    constants = _fit_physics(shapes, machine, measured, residency, has_cast=has_cast)
    times = predict_gemm_times(shapes, machine, constants, residency)
    log_ratio = np.log(measured / times.duration_ns)
    kernel_ns = np.maximum(measured - times.timing_ns, SMALLEST_KERNEL_SHARE * measured)
    rows = LearnedRows(
        rising=gemm_features(shapes, machine, times),
        free=gemm_step_features(shapes, machine, times),
        log_time=np.log(kernel_ns),
        share=kernel_ns / measured,
        weights=np.unique(np.stack([shapes.n, shapes.k]), axis=1, return_inverse=True)[1].ravel(),
    )
    variant = variant_of(dtype)
    has_few = variant != VECTOR and rows.weights.max() < FEW_WEIGHTS
    if has_few or len(measured) < FEW_ROWS:
        ordered, steps = fit_few(rows), None
    else:
        ordered, steps = fit_learned(rows, LEARNING[VECTOR if variant == VECTOR else TENSOR])
    return build_entry(
        device,
        variant,
        constants=asdict(constants),
        correction=steps,
        ordered=ordered,
        relative_sigma=float(np.std(log_ratio)),
    )


def _fit_physics(
    shapes: GemmShapes,
    machine: MachineRates,
    measured: Matrix,
    residency: Residency,
    *,
    has_cast: bool,
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

    known = LIMITS
    limits = dict(known["gemm"])
    if residency is Residency.REPEATED:
        limits |= known["gemm_timing"]
    if has_cast:
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
    beyond_floor = measured[rows] - LIMITS["gemm"]["floor_ns"].start
    return max(0.0, float(np.quantile(beyond_floor / shapes.k[rows], 0.1)))


def fit_expert_entry(
    table: KernelTable, device_name: str, alike: KernelTable | None = None
) -> Entry:
    """Constants from the rows of *table*, all of one device, kernel and format.

    Few rows of few models say too little: they are fitted together with those that are *alike*, of
    the same kernel on chips of the generation in any format.
    """
    device = load_device(device_name)
    models = {tuple(kernel.columns.values()) for kernel in table.kernels}
    is_small = len(table.kernels) < FEW_LAYERS
    is_few = is_small and len(models) < FEWEST_SHAPES
    parts = [_LayerRows.of(table)]
    fitted = _layers_by_kind(alike) if is_few and alike is not None else parts

    def predict(values: Mapping[str, float]) -> Matrix:
        constants = ExpertConstants(**values)
        return np.concatenate([part.predict(constants).duration_ns for part in fitted])

    measured = np.concatenate([part.measured_ns for part in fitted])
    constants = fit_constants(LIMITS["experts"], predict, measured, evaluations=EXPERT_EVALUATIONS)
    times = parts[0].predict(ExpertConstants(**constants))
    log_ratio = np.log(alone_ns(table) / times.duration_ns)
    curves: dict[str, list[list[float]]] = {}
    if len(models) >= FEWEST_SHAPES and not is_small:
        features = layer_features(parts[0].shapes, times)
        span, weights = _fit_correction(features, log_ratio)
        log_ratio = log_ratio - smooth_log_ratio(features, span, weights)
        curves = {"span": span.tolist(), "weights": [weights.tolist()]}
    sigma = float(np.std(log_ratio))
    if is_few:
        sigma = FEW_SPREAD * float(np.std(np.log(measured / predict(constants))))
    return build_entry(
        device,
        table.kernels[0].op.variant,
        constants=constants,
        relative_sigma=max(SMALLEST_EXPERT_SIGMA, sigma),
        curves=curves,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _LayerRows:
    """Layers of experts of one device and format, and their times."""

    shapes: ExpertShapes
    machine: MachineRates
    measured_ns: Matrix

    @classmethod
    def of(cls, table: KernelTable) -> Self:
        layers, device = [kernel.op for kernel in table.kernels], table.kernels[0].device
        machine = machine_rates(load_device(device), layers[0].dtype)
        return cls(layer_shapes(layers), machine, alone_ns(table))

    def predict(self, constants: ExpertConstants) -> ExpertTimes:
        return predict_layer_times(self.shapes, self.machine, constants)


def _layers_by_kind(table: KernelTable) -> list[_LayerRows]:
    kinds: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for one in table.kernels:
        kinds.setdefault((one.device, one.op.variant), []).append(one)
    return [_LayerRows.of(KernelTable(tuple(rows))) for rows in kinds.values()]


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
