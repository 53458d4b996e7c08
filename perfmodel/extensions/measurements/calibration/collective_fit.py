"""Fitting one block of collective constants: least squares of the logarithm with a soft loss.

NCCL's choice does not depend on what is fitted, so it is made once; each batch of rows with the
same wiring, kind, choice and software is one array. The uncertainty of a scope makes nine of ten
held-out rows fall in the 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np

from collectives.calibration import (
    Calibration,
    Call,
    Constants,
    build_tuner,
    predict_call_ns,
    regime_of,
)
from collectives.collective import CollectiveKind
from collectives.constants import FabricConstants, HostConstants, SoftwareConstants
from collectives.measurements import CollectiveMeasurement
from collectives.movement import FloatArray, Movement, build_movement
from collectives.pricing import price_sizes
from collectives.timing import Choice
from collectives.wiring import Wiring
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.estimates import INTERVAL_SIGMAS

MIN_ROWS = 10
SMALLEST_SIGMA = 0.01
PRIOR_WEIGHT = 0.02
OUTLIER_SCALE = 0.1
_CURVE_ROWS = 20

Fitted = TypeVar("Fitted", HostConstants, FabricConstants, SoftwareConstants)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A row and its prediction; *latency_ratio* is the share of the prediction that is latency."""

    measurement: CollectiveMeasurement
    predicted_ns: float
    latency_ratio: float
    relative_sigma: float = 0.0

    @property
    def log_error(self) -> float:
        """Absolute error of the logarithm."""
        return abs(math.log(self.predicted_ns / self.measurement.duration_ns))

    @property
    def scopes(self) -> tuple[str, str, str]:
        """The scopes of uncertainty that the row counts for, narrowest first."""
        row = self.measurement
        spread = "one_host" if row.wiring().host_count == 1 else "several_hosts"
        regime = regime_of(self.latency_ratio)
        return (
            f"{row.topology}/{spread}/{row.kind.value}/{regime}",
            f"{row.topology}/{spread}/any/{regime}",
            f"unseen/{spread}/any/{regime}",
        )


def fit_uncertainty(held: Sequence[HeldOut], unseen: Sequence[HeldOut] = ()) -> dict[str, float]:
    """Standard deviations by scope; those of unseen machines from rows of machines left out."""
    errors: dict[str, list[float]] = {}
    for one in held:
        for scope in one.scopes[:2]:
            errors.setdefault(scope, []).append(one.log_error)
    for one in unseen:
        errors.setdefault(one.scopes[2], []).append(one.log_error)
    return {
        scope: max(SMALLEST_SIGMA, round(float(np.quantile(values, 0.9)) / INTERVAL_SIGMAS, 4))
        for scope, values in sorted(errors.items())
        if len(values) >= MIN_ROWS or "/any/" in scope
    }


def with_sigma(held: Sequence[HeldOut], fold_of_row: Sequence[int]) -> list[HeldOut]:
    """Give every row the uncertainty that the rows of the other folds show."""
    tables = {
        fold: fit_uncertainty(
            [one for one, of in zip(held, fold_of_row, strict=True) if of != fold]
        )
        for fold in sorted(set(fold_of_row))
    }

    def sigma(one: HeldOut, table: dict[str, float]) -> float:
        for scope in one.scopes:
            if scope in table:
                return table[scope]
        return float(np.median(list(table.values()))) if table else SMALLEST_SIGMA

    return [
        replace(one, relative_sigma=sigma(one, tables[fold]))
        for one, fold in zip(held, fold_of_row, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRows:
    """Rows of one wiring, call and choice, as arrays."""

    wiring: Wiring
    call: Call
    choice: Choice
    movement: Movement
    measured_ns: FloatArray
    weight: FloatArray

    def predict_ns(self, constants: Constants) -> FloatArray:
        """Predict the rows with other constants than those of the calibration."""
        if self.wiring.host_count == 1:
            constants = constants._replace(fabric=None)
        return predict_call_ns(self.call, self.movement, self.choice, self.wiring, constants)


def predict_rows(
    measurements: Sequence[CollectiveMeasurement], calibration: Calibration
) -> list[HeldOut]:
    """Predict every row with *calibration*, in order."""
    found: dict[int, HeldOut] = {}
    for rows in _gather(measurements).values():
        first = measurements[rows[0]]
        costs = price_sizes(
            first.kind,
            np.array([float(measurements[row].size_bytes) for row in rows]),
            wiring=first.wiring(),
            software=first.software,
            calibration=calibration,
            dtype=first.dtype,
        )
        for row, cost in zip(rows, costs, strict=True):
            about = (cost.duration_ns, cost.latency_ratio, cost.relative_sigma)
            found[row] = HeldOut(measurements[row], *about)
    return [found[number] for number in range(len(measurements))]


_Alike = tuple[Wiring, CollectiveKind, bool, bool]


def _gather(measurements: Sequence[CollectiveMeasurement]) -> Mapping[_Alike, list[int]]:
    """The numbers of the rows that differ in size only, as far as prices see."""
    gathered: dict[_Alike, list[int]] = {}
    for number, row in enumerate(measurements):
        is_byte = row.dtype.size_bytes == 1
        key = (row.wiring(), row.kind, row.software.is_before_2_24, is_byte)
        gathered.setdefault(key, []).append(number)
    return gathered


def build_batches(
    measurements: Sequence[CollectiveMeasurement], calibration: Calibration
) -> list[FitRows]:
    """Let NCCL's tuner choose for every row and gather equal rows."""
    batches: list[FitRows] = []
    for (wiring, kind, _, _), rows in _gather(measurements).items():
        batches += _by_choice(wiring, kind, rows, measurements, calibration)
    return batches


def _by_choice(
    wiring: Wiring,
    kind: CollectiveKind,
    rows: list[int],
    measurements: Sequence[CollectiveMeasurement],
    calibration: Calibration,
) -> Iterable[FitRows]:
    first = measurements[rows[0]]
    sizes = np.array([float(measurements[row].size_bytes) for row in rows])
    measured = np.array([measurements[row].duration_ns for row in rows])
    candidates, shares = build_tuner(wiring, calibration).choose(kind, sizes, first.software)
    chosen = np.argmax(shares, axis=0)
    for number in np.unique(chosen):
        taken = np.nonzero(chosen == number)[0]
        yield FitRows(
            wiring=wiring,
            call=Call(kind, first.software, first.dtype),
            choice=candidates[number],
            movement=build_movement(kind, candidates[number][0], sizes[taken], wiring),
            measured_ns=measured[taken],
            # A row that NCCL may have made by another choice says less of this one.
            weight=min(1.0, _CURVE_ROWS / len(rows)) ** 0.5 * shares[number, taken],
        )


def fit_constants(
    prior: Fitted,
    batches: Sequence[FitRows],
    predict: Callable[[FitRows, Fitted], FloatArray],
    *,
    frozen: Sequence[str] = (),
    pull: float = PRIOR_WEIGHT,
) -> Fitted:
    """The constants that bring *predict* closest to *batches*, drawn to *prior* by *pull*."""
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    start = asdict(prior)
    names = [name for name, value in start.items() if name not in frozen and value > 0]
    origin = np.log([start[name] for name in names])

    def constants_at(place: FloatArray) -> Fitted:
        values = dict(zip(names, np.exp(np.clip(place, origin - 4, origin + 4)), strict=True))
        return replace(prior, **{name: float(value) for name, value in values.items()})

    def cost(place: FloatArray) -> FloatArray:
        tried = constants_at(place)
        errors = log_residuals(batches, lambda batch: predict(batch, tried))
        return np.concatenate([errors, pull * (place - origin)])

    answer = least_squares(
        cost, origin, loss="soft_l1", f_scale=OUTLIER_SCALE, max_nfev=60, x_scale="jac"
    )
    if not np.all(np.isfinite(answer.x)):
        raise CalibrationError(
            "fit of collectives did not converge. Check the table for wrong times."
        )
    return constants_at(answer.x)


def log_residuals(
    batches: Sequence[FitRows], predict: Callable[[FitRows], FloatArray]
) -> FloatArray:
    """Weighted logarithms of predicted over measured."""
    return np.concatenate(
        [batch.weight * np.log(predict(batch) / batch.measured_ns) for batch in batches]
    )
