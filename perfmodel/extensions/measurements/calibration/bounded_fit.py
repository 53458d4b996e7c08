"""Bounded fits: constants between limits that make predictions close to measurements.

Positive constants are fitted by their logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.costs.corrections import Matrix

FILE = Path(__file__).with_name("limits.yaml")


class Limit(NamedTuple):
    """Where the fit of a constant starts and its range. Above zero, its logarithm is fitted."""

    start: float
    low: float
    high: float


Limits = Mapping[str, Limit]


@cache
def load_limits(file: Path = FILE) -> Mapping[str, Limits]:
    """The limits of *file*, by kind of fit."""
    content = load_yaml(file)
    return {
        kind: {name: Limit(*map(float, numbers)) for name, numbers in limits.items()}
        for kind, limits in content.items()
    }


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
