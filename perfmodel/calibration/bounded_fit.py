"""Bounded fits: constants between limits that make predictions close to measurements.

Positive constants are fitted by their logarithm. Errors are of the logarithm
of time with a soft L1 loss, so a few odd rows do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.costs.corrections import Matrix


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a constant may lie and where its fit begins."""

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
    """Constants within *limits* that bring *predict* close to *measured*."""
    from scipy.optimize import least_squares

    names = list(limits)

    def to_number(name: str, value: float) -> float:
        return float(np.log(value)) if limits[name].is_positive else value

    def to_constants(vector: Matrix) -> dict[str, float]:
        return {
            name: float(np.exp(value)) if limits[name].is_positive else float(value)
            for name, value in zip(names, vector, strict=True)
        }

    def errors(vector: Matrix) -> Matrix:
        # Times ten: the loss turns from square to linear at an error of ten per cent.
        log_ratio: Matrix = np.log(predict(to_constants(vector)) / measured)
        return 10.0 * log_ratio

    answer = least_squares(
        errors,
        [to_number(name, limit.start) for name, limit in limits.items()],
        bounds=(
            [to_number(name, limit.low) for name, limit in limits.items()],
            [to_number(name, limit.high) for name, limit in limits.items()],
        ),
        loss="soft_l1",
        max_nfev=evaluations,
        diff_step=[1e-3] * len(names),
    )
    return to_constants(answer.x)
