"""Bounded fits: constants between limits that make predictions close to measurements.

Positive constants are fitted by their logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from topologies import Device


@dataclass(frozen=True, slots=True)
class Limit:
    """The range of a constant and where its fit starts."""

    start: float
    low: float
    high: float
    is_positive: bool = True


def fit_constants(
    limits: Mapping[str, Limit],
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


def minimise(
    limits: Mapping[str, Limit],
    errors: Callable[[Mapping[str, float]], Matrix],
    *,
    evaluations: int,
    step: float,
    loss: Literal["linear", "soft_l1"] = "linear",
    pull: float = 0.0,
) -> dict[str, float]:
    """Constants within *limits* with the least *errors*, each pulled to its start by *pull*."""
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    def vector_of(values: list[float]) -> Matrix:
        pairs = zip(limits.values(), values, strict=True)
        return np.array([np.log(value) if one.is_positive else value for one, value in pairs])

    def constants_at(vector: Matrix) -> dict[str, float]:
        return {
            name: float(np.exp(value)) if limit.is_positive else float(value)
            for (name, limit), value in zip(limits.items(), vector, strict=True)
        }

    start = vector_of([limit.start for limit in limits.values()])

    def cost(vector: Matrix) -> Matrix:
        found = errors(constants_at(vector))
        return np.concatenate([found, pull * (vector - start)]) if pull else found

    answer = least_squares(
        cost,
        start,
        bounds=(
            vector_of([limit.low for limit in limits.values()]),
            vector_of([limit.high for limit in limits.values()]),
        ),
        loss=loss,
        max_nfev=evaluations,
        diff_step=[step] * len(limits),
    )
    return constants_at(answer.x)


def build_entry(device: Device, variant: str, **fitted: Any) -> Entry:
    """The entry of *variant* on *device*; *fitted* are the other fields of an entry."""
    return Entry(
        device=device.name,
        architecture=device.architecture.value,
        compute_capability=device.compute_capability,
        variant=variant,
        **{"correction": None, **fitted},
    )
