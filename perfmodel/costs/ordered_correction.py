"""OrderedCorrection: a small network for time itself that never falls where work grows.

All its weights are positive and all its inputs grow with the work, so the
corrected time does too: a property of the form, not of the fit. Inputs are
held inside the range seen in fitting; beyond it time grows as the physics says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.correction import (
    LARGEST_CORRECTION,
    LARGEST_SIGMA,
    SMALLEST_SIGMA,
    Corrected,
    Matrix,
    Network,
    network_from_document,
    network_to_document,
)

ROUNDING = 1e-3
"""Files hold six digits of logarithms: nearer than this to the range counts as inside."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderedNetwork:
    """Two layers of tanh and a straight line beside them; every weight is at least zero."""

    first: Matrix
    first_bias: Matrix
    second: Matrix
    second_bias: Matrix
    last: Matrix
    straight: Matrix
    bias: Matrix

    def __post_init__(self) -> None:
        weights = (self.first, self.second, self.last, self.straight)
        lowest = min(float(np.min(weight)) for weight in weights)
        if not lowest >= 0:
            raise CalibrationError(
                f"ordered correction: weights must be at least 0, got {lowest}. "
                "Make the file again with `perfmodel calibrate`."
            )

    def answer(self, inputs: Matrix) -> Matrix:
        """One number for each row of *inputs*."""
        hidden = np.tanh(inputs @ self.first + self.first_bias)
        hidden = np.tanh(hidden @ self.second + self.second_bias)
        together: Matrix = hidden @ self.last + inputs @ self.straight + self.bias[0]
        return together


@dataclass(frozen=True, slots=True, eq=False)
class OrderedCorrection:
    """The network for the logarithm of time, one for its spread, and the range of the fit.

    The first feature is the logarithm of the time that the physics predicts.
    """

    mean: Matrix
    scale: Matrix
    low: Matrix
    high: Matrix
    order: OrderedNetwork
    spread: Network

    def apply(self, features: Matrix) -> Corrected:
        """Corrections for rows of *features*."""
        held = np.clip(features, self.low, self.high)
        inputs = (held - self.mean) / self.scale
        is_inside = np.all(
            (features >= self.low - ROUNDING) & (features <= self.high + ROUNDING), axis=1
        )
        return Corrected(
            log_ratio=np.clip(
                self.order.answer(inputs) - held[:, 0], -LARGEST_CORRECTION, LARGEST_CORRECTION
            ),
            relative_sigma=np.clip(
                np.exp(np.clip(self.spread.answer(inputs), -20, 5)), SMALLEST_SIGMA, LARGEST_SIGMA
            ),
            is_inside=is_inside,
        )


def ordered_to_document(correction: OrderedCorrection) -> dict[str, Any]:
    """*correction* as plain lists, six digits, for a calibration file."""
    return {
        **{name: _rounded(getattr(correction, name)) for name in _RANGE},
        "order": {
            one.name: _rounded_weights(getattr(correction.order, one.name))
            for one in fields(OrderedNetwork)
        },
        "spread": network_to_document(correction.spread),
    }


def ordered_from_document(document: Mapping[str, Any], *, place: str) -> OrderedCorrection:
    """The correction in *document*; *place* names it in errors."""
    try:
        return OrderedCorrection(
            **{name: np.array(document[name], dtype=np.float64) for name in _RANGE},
            order=OrderedNetwork(
                **{
                    one.name: np.array(document["order"][one.name], dtype=np.float64)
                    for one in fields(OrderedNetwork)
                }
            ),
            spread=network_from_document(document["spread"]),
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise CalibrationError(
            f"{place}: ordered must hold {', '.join(_RANGE)}, order and spread as lists of numbers "
            f"({fault}). Make the file again with `perfmodel calibrate`."
        ) from None


LARGE_MATRIX = 1000
TINY_WEIGHT = 1e-4
_RANGE = ("mean", "scale", "low", "high")


def _rounded(values: NDArray[np.float64]) -> Any:
    flat = [float(f"{value:.6g}") for value in values.ravel()]
    return np.array(flat).reshape(values.shape).tolist()


def _rounded_weights(values: NDArray[np.float64]) -> Any:
    """Weights for a file; in large matrices three digits do, and the many tiny ones add nothing."""
    if values.size < LARGE_MATRIX:
        return _rounded(values)
    flat = [
        float(f"{value:.3g}") if value > TINY_WEIGHT else 0 for value in values.ravel().tolist()
    ]
    return [flat[start : start + values.shape[1]] for start in range(0, len(flat), values.shape[1])]
