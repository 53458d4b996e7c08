"""Experts' fit: the constants of one device, kernel and format, and what is learned on top."""

from __future__ import annotations

import numpy as np

from perfmodel.calibration.bounded_fit import build_entry, fit_constants, load_limits
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix, range_of
from perfmodel.costs.expert_physics import (
    LARGEST_CORRECTION,
    ExpertConstants,
    layer_features,
    layer_shapes,
    predict_layer_times,
    smooth_log_ratio,
    square_terms,
)
from perfmodel.costs.gemm import machine_rates
from perfmodel.costs.measured_kernels import KernelTable
from topologies import load_device

EVALUATIONS = 60
SMALLEST_SIGMA = 0.05
FEWEST_SHAPES = 8
"""With fewer models in a table, the correction would overfit to them."""
RIDGE = 0.01
ROUNDS = 15
USUAL_ERROR = 0.03
"""Errors of the logarithm beyond this count by their size, not by its square."""


def fit_expert_entry(table: KernelTable, device_name: str) -> Entry:
    """Constants from the rows of *table*, all of one device, kernel and format."""
    device = load_device(device_name)
    layers = [kernel.op for kernel in table.kernels]
    shapes, machine = layer_shapes(layers), machine_rates(device, layers[0].dtype)
    measured = table.measured_ns
    constants = fit_constants(
        load_limits()["experts"],
        lambda values: predict_layer_times(shapes, machine, ExpertConstants(**values)).duration_ns,
        measured,
        evaluations=EVALUATIONS,
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
        relative_sigma=max(SMALLEST_SIGMA, float(np.std(log_ratio))),
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
