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

# Measured times fall by several per cent at one step of m in ten, where a library
# changes kernels. The answer is held to three per cent either way, so a larger
# product is never more than six per cent faster. Beyond the fitted range inputs stand still.


Matrix = NDArray[np.float64]

CHUNK_ROWS = 4096
"""Rows worked on at once, so that what lies between layers stays in the CPU's cache."""
LOWEST_INPUT = np.float32(-60.0)
"""Below this the exponential would overflow single precision; the answer is zero anyway."""
LARGEST_CORRECTION = 0.7
"""Limit of the logarithm of a correction that keeps the order: a factor of two either way."""
LARGEST_STEP = 0.03
"""Limit of the logarithm of one that does not."""
SMALLEST_SIGMA = 0.005
LARGEST_SIGMA = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One linear layer: inputs x outputs, and what is added."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Linear layers with x sigmoid(x) between them, one answer a row."""

    layers: tuple[Layer, ...]

    def answer(self, inputs: Matrix) -> Matrix:
        """One number for each row of *inputs*."""
        rows = inputs.astype(np.float32)
        parts = [
            self._answer_rows(rows[start : start + CHUNK_ROWS])
            for start in range(0, len(rows), CHUNK_ROWS)
        ]
        return np.concatenate(parts or [np.empty(0, dtype=np.float32)]).astype(np.float64)

    def _answer_rows(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        for place, layer in enumerate(self.layers):
            values = values @ layer.weight + layer.bias
            if place + 1 < len(self.layers):
                values /= 1.0 + np.exp(-np.maximum(values, LOWEST_INPUT))
        return values[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The network and the range it was fitted in."""

    mean: Matrix
    scale: Matrix
    low: Matrix
    high: Matrix
    shift: Network

    def log_ratio(self, features: Matrix) -> Matrix:
        """Logarithms of the correction of rows of *features*."""
        inputs = (np.clip(features, self.low, self.high) - self.mean) / self.scale
        return np.clip(self.shift.answer(inputs), -LARGEST_STEP, LARGEST_STEP)


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Log of measured over physics, its spread, and whether the row lies in the fitted range."""

    log_ratio: Matrix
    relative_sigma: Matrix
    is_inside: NDArray[np.bool_]


def correction_to_document(correction: Correction) -> dict[str, Any]:
    """*correction* as plain lists, five digits, for a calibration file."""
    return {
        **{name: _rounded(getattr(correction, name), digits=5) for name in _RANGE},
        "shift": network_to_document(correction.shift),
    }


def correction_from_document(document: Mapping[str, Any], *, place: str) -> Correction:
    """The correction in *document*; *place* names it in errors."""
    try:
        return Correction(
            **{name: np.array(document[name], dtype=np.float64) for name in _RANGE},
            shift=network_from_document(document["shift"]),
        )
    except (KeyError, TypeError, ValueError) as fault:
        raise CalibrationError(
            f"{place}: correction must hold {', '.join(_RANGE)} and shift as numbers "
            f"({fault}). Make the file again with `perfmodel calibrate`."
        ) from None


_RANGE = ("mean", "scale", "low", "high")


def network_to_document(network: Network) -> list[dict[str, Any]]:
    """The layers of *network* as plain lists, five digits."""
    return [
        {"weight": _rounded(layer.weight, digits=5), "bias": _rounded(layer.bias, digits=5)}
        for layer in network.layers
    ]


def network_from_document(layers: list[Mapping[str, Any]]) -> Network:
    """The network whose *layers* are plain lists."""
    return Network(
        tuple(
            Layer(
                np.array(layer["weight"], dtype=np.float32),
                np.array(layer["bias"], dtype=np.float32),
            )
            for layer in layers
        )
    )


def _rounded(values: Matrix | NDArray[np.float32], *, digits: int) -> Any:
    flat = [float(f"{value:.{digits}g}") for value in values.ravel()]
    return np.array(flat).reshape(values.shape).tolist()


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
        **{name: _rounded(getattr(correction, name), digits=6) for name in _RANGE},
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


def _rounded_weights(values: NDArray[np.float64]) -> Any:
    """Weights for a file; in large matrices three digits do, and the many tiny ones add nothing."""
    if values.size < LARGE_MATRIX:
        return _rounded(values, digits=6)
    flat = [
        float(f"{value:.3g}") if value > TINY_WEIGHT else 0 for value in values.ravel().tolist()
    ]
    return [flat[start : start + values.shape[1]] for start in range(0, len(flat), values.shape[1])]
