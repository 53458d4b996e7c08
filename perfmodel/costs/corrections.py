"""Corrections: small networks on top of the physics, evaluated with numpy.

An ordered correction predicts time itself. All its weights are positive and all its inputs grow
with the work, so the corrected time never falls where work grows: a property of the form, not of
the fit. A plain correction covers library effects against that order: measured times fall by
several per cent at one step of m in ten, where a library changes kernels. It is limited to three
per cent either way, so a larger GEMM is never more than six per cent faster. Inputs are clipped to
the fitted range; beyond it time grows as the physics says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import CalibrationError

Matrix = NDArray[np.float64]
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""One linear layer: weights (inputs x outputs) and bias."""

CHUNK_ROWS = 4096
"""Rows evaluated at once, so that values between layers stay in the CPU's cache."""
LOWEST_INPUT = np.float32(-60.0)
"""Below this the exponential would overflow single precision; the result is zero anyway."""
LARGEST_CORRECTION = 0.7
"""Limit of the logarithm of an ordered correction: a factor of two either way."""
LARGEST_STEP = 0.03
"""Limit of the logarithm of a plain correction."""
SMALLEST_SIGMA = 0.005
LARGEST_SIGMA = 0.5
ROUNDING = 1e-3
"""Files hold six digits of logarithms: nearer than this to the range counts as inside."""
DECIMALS = 5
"""Of a network's answer. Single precision rounds as the CPU adds; equal questions must not."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Linear layers with x sigmoid(x) between them, one number per row."""

    layers: tuple[Layer, ...]

    def answer(self, inputs: Matrix) -> Matrix:
        """One number for each row of *inputs*."""
        rows = inputs.astype(np.float32)
        parts = [
            self._answer_rows(rows[start : start + CHUNK_ROWS])
            for start in range(0, len(rows), CHUNK_ROWS)
        ]
        together: Matrix = np.concatenate([np.empty(0), *parts])
        return together.round(DECIMALS)

    def _answer_rows(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        for place, (weight, bias) in enumerate(self.layers):
            values = values @ weight + bias
            if place + 1 < len(self.layers):
                values /= 1.0 + np.exp(-np.maximum(values, LOWEST_INPUT))
        return values[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """The features that a correction was fitted to."""

    mean: Matrix
    scale: Matrix
    low: Matrix
    high: Matrix

    def inputs(self, features: Matrix) -> Matrix:
        """*features* within the range, as the networks take them."""
        scaled: Matrix = (np.clip(features, self.low, self.high) - self.mean) / self.scale
        return scaled


@dataclass(frozen=True, slots=True, eq=False)
class Correction(Range):
    """The network of a plain correction and the range it was fitted in."""

    shift: Network

    def log_ratio(self, features: Matrix) -> Matrix:
        """Logarithms of the correction of rows of *features*."""
        return np.clip(self.shift.answer(self.inputs(features)), -LARGEST_STEP, LARGEST_STEP)


@dataclass(frozen=True, slots=True, eq=False)
class OrderedNetwork:
    """Two layers of tanh plus a linear term; every weight is at least zero."""

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
class OrderedCorrection(Range):
    """The network for the logarithm of time, one for its spread, and the range of the fit.

    The first feature is the logarithm of the time that the physics predicts.
    """

    order: OrderedNetwork
    spread: Network

    def apply(self, features: Matrix) -> tuple[Matrix, Matrix, NDArray[np.bool_]]:
        """Per row of *features*: log of measured over physics, sigma, and if it is in range."""
        inputs = self.inputs(features)
        is_inside = (features >= self.low - ROUNDING) & (features <= self.high + ROUNDING)
        log_ratio = self.order.answer(inputs) - np.clip(features[:, 0], self.low[0], self.high[0])
        sigma = np.exp(np.clip(self.spread.answer(inputs), -20, 5))
        return (
            np.clip(log_ratio, -LARGEST_CORRECTION, LARGEST_CORRECTION),
            np.clip(sigma, SMALLEST_SIGMA, LARGEST_SIGMA),
            np.all(is_inside, axis=1),
        )


RANGE = tuple(one.name for one in fields(Range))


def correction_from_document(document: Mapping[str, Any] | None) -> Correction | None:
    """The correction in *document*, if there is one."""
    if document is None:
        return None
    with _reading("shift"):
        return Correction(
            **_arrays(document, RANGE), shift=_network_from_document(document["shift"])
        )


def ordered_from_document(document: Mapping[str, Any] | None) -> OrderedCorrection | None:
    """The ordered correction in *document*, if there is one."""
    if document is None:
        return None
    with _reading("order", "spread"):
        names = [one.name for one in fields(OrderedNetwork)]
        return OrderedCorrection(
            **_arrays(document, RANGE),
            order=OrderedNetwork(**_arrays(document["order"], names)),
            spread=_network_from_document(document["spread"]),
        )


@contextmanager
def _reading(*parts: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as fault:
        raise CalibrationError(
            f"must hold {', '.join((*RANGE, *parts))} as lists of numbers ({fault}). "
            "Make the file again with `perfmodel calibrate`."
        ) from None


def _arrays(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _finite(document[name], name) for name in names}


def _finite(values: Any, name: str, dtype: Any = np.float64) -> NDArray[Any]:
    array = np.array(values, dtype=dtype)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)].flat[0]}")
    return array


def _network_from_document(layers: list[Mapping[str, Any]]) -> Network:
    parts = [
        [_finite(one[name], name, np.float32) for name in ("weight", "bias")] for one in layers
    ]
    return Network(tuple((weight, bias) for weight, bias in parts))
