"""Constants of kernels between limits that make predictions close to measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from perfmodel.extensions.measurements.calibration.bounded_fit import (
    Limits,
    load_limits,
    minimise,
)
from perfmodel.extensions.measurements.measured_kernels import KernelTable, load_factors
from perfmodel.stacks.profiles import load_stack
from topologies import Device

LIMITS = load_limits(Path(__file__).with_name("limits.yaml"))


def alone_ns(table: KernelTable) -> Matrix:
    """Durations of *table* in order, of a chip that is not under load: what is fitted."""
    factors = load_factors(table.kernels, load_stack("kernel_benchmark"))
    return np.array([kernel.measured_ns for kernel in table.kernels]) / factors


def fit_constants(
    limits: Limits,
    predict: Callable[[Mapping[str, float]], Matrix],
    measured: Matrix,
    *,
    evaluations: int = 30,
) -> dict[str, float]:
    """Constants within *limits* that bring *predict* close to *measured*.

    Errors are of the logarithm of time with a soft L1 loss, so a few outliers do not decide.
    """

    def errors(constants: Mapping[str, float]) -> Matrix:
        # Times ten: the loss turns from square to linear at an error of ten per cent.
        log_ratio: Matrix = np.log(predict(constants) / measured)
        return 10.0 * log_ratio

    return minimise(limits, errors, evaluations=evaluations, step=1e-3, loss="soft_l1")


def build_entry(device: Device, variant: str, **fitted: Any) -> Entry:
    """The entry of *variant* on *device*; *fitted* are the other fields of an entry."""
    return Entry(
        device=device.name,
        architecture=device.architecture,
        compute_capability=device.compute_capability,
        variant=variant,
        **{"correction": None, **fitted},
    )
