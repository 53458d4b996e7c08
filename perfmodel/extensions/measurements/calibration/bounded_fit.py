"""Bounded fits: constants between limits that make predictions close to measurements.

Positive constants are fitted by their logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import Matrix
from topologies import Device


class Limit(NamedTuple):
    """Where the fit of a constant starts and its range. Above zero, its logarithm is fitted."""

    start: float
    low: float
    high: float


Limits = Mapping[str, Limit]


@cache
def load_limits() -> Mapping[str, Limits]:
    """The limits of `limits.yaml`, by kind of fit."""
    content = load_yaml(Path(__file__).with_name("limits.yaml"))
    return {
        kind: {name: Limit(*map(float, numbers)) for name, numbers in limits.items()}
        for kind, limits in content.items()
    }


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


def minimise(
    limits: Limits,
    errors: Callable[[Mapping[str, float]], Matrix],
    *,
    evaluations: int,
    step: float,
    loss: Literal["linear", "soft_l1"] = "linear",
    pull: float = 0.0,
) -> dict[str, float]:
    """Constants within *limits* with the least *errors*, each pulled to its start by *pull*."""
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    start, low, high = np.array(list(limits.values()), dtype=np.float64).T
    is_positive = low > 0
    start, low, high = (
        np.where(is_positive, np.log(np.where(is_positive, one, 1.0)), one)
        for one in (start, low, high)
    )

    def constants_at(vector: Matrix) -> dict[str, float]:
        values = np.where(is_positive, np.exp(vector), vector)
        return dict(zip(limits, values.tolist(), strict=True))

    def cost(vector: Matrix) -> Matrix:
        found = errors(constants_at(vector))
        return np.concatenate([found, pull * (vector - start)]) if pull else found

    answer = least_squares(
        cost,
        start,
        bounds=(low, high),
        loss=loss,
        max_nfev=evaluations,
        diff_step=[step] * len(limits),
    )
    return constants_at(answer.x)


def build_entry(device: Device, variant: str, **fitted: Any) -> Entry:
    """The entry of *variant* on *device*; *fitted* are the other fields of an entry."""
    return Entry(
        device=device.name,
        architecture=device.architecture,
        compute_capability=device.compute_capability,
        variant=variant,
        **{"correction": None, **fitted},
    )
