"""Experts' fit: six constants of one device, kernel and format."""

from __future__ import annotations

import numpy as np

from perfmodel.calibration.bounded_fit import Limit, fit_constants
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.experts.model import layer_shapes, variant_of
from perfmodel.costs.experts.physics import ExpertConstants, predict_layer_ns
from perfmodel.costs.gemm.model import machine_rates
from perfmodel.costs.measured_kernels import KernelTable
from topologies import load_device

LIMITS = {
    "floor_ns": Limit(30_000, 3_000, 150_000),
    "compute_ratio": Limit(0.6, 0.1, 0.9),
    "memory_ratio": Limit(0.8, 0.1, 1.0),
    "wasted_rows": Limit(48, 2, 256),
    "row_traffic": Limit(1.0, 0.02, 12.0),
    "token_traffic": Limit(1.0, 0.02, 12.0),
}
EVALUATIONS = 80
SMALLEST_SIGMA = 0.05


def fit_expert_entry(table: KernelTable, device_name: str) -> Entry:
    """Constants from the rows of *table*, all of one device, kernel and format."""
    device = load_device(device_name)
    layers = [kernel.op for kernel in table.kernels]
    shapes, machine = layer_shapes(layers), machine_rates(device, layers[0].dtype)
    measured = table.measured_ns
    constants = fit_constants(
        LIMITS,
        lambda values: predict_layer_ns(shapes, machine, ExpertConstants(**values)),
        measured,
        evaluations=EVALUATIONS,
    )
    predicted = predict_layer_ns(shapes, machine, ExpertConstants(**constants))
    return Entry(
        device=device.name,
        architecture=device.architecture.value,
        compute_capability=device.compute_capability,
        variant=variant_of(layers[0]),
        constants=constants,
        correction=None,
        relative_sigma=max(SMALLEST_SIGMA, float(np.std(np.log(measured / predicted)))),
    )
