"""Fitting one block of collective constants: least squares of the logarithm, outliers held down.

NCCL's choice does not depend on what is fitted, so it is made once; each batch of rows with the
same wiring, kind, choice and software is one array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np

from collectives.calibration import Calibration, build_tuner, byte_factor, regime_of, wire_speeds
from collectives.collective import CollectiveKind, CollectiveSoftware
from collectives.constants import FabricConstants, HostConstants, SoftwareConstants
from collectives.measurements import CollectiveMeasurement
from collectives.movement import FloatArray, Movement, build_movement
from collectives.timing import predict_duration_ns
from collectives.tuner import Choice
from collectives.wiring import Wiring
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.calibration.collectives.rows import HeldOut

# A standard deviation is the 90 % quantile of the absolute error of the logarithm, divided by that
# of a normal distribution, so that nine of ten held-out rows lie in the 90 % interval.


MIN_ROWS = 10
SMALLEST_SIGMA = 0.01
_Z_OF_90_PCT = 1.6448536269514722


def scopes_of(held: HeldOut) -> tuple[str, str, str]:
    """The scopes a row counts for, narrowest first."""
    row = held.measurement
    spread = "one_host" if row.hosts == 1 else "several_hosts"
    regime = regime_of(held.latency_ratio)
    return (
        f"{row.topology}/{spread}/{row.kind.value}/{regime}",
        f"{row.topology}/{spread}/any/{regime}",
        f"unseen/{spread}/any/{regime}",
    )


def fit_uncertainty(held: Sequence[HeldOut], unseen: Sequence[HeldOut] = ()) -> dict[str, float]:
    """Standard deviations by scope; those of unseen machines from rows of machines left out."""
    errors: dict[str, list[float]] = {}
    for one in held:
        for scope in scopes_of(one)[:2]:
            errors.setdefault(scope, []).append(_log_error(one))
    for one in unseen:
        errors.setdefault(scopes_of(one)[2], []).append(_log_error(one))
    return {
        scope: _sigma(values)
        for scope, values in sorted(errors.items())
        if _is_enough(scope, values)
    }


def _is_enough(scope: str, values: Sequence[float]) -> bool:
    return len(values) >= MIN_ROWS or "/any/" in scope


def _log_error(held: HeldOut) -> float:
    return abs(math.log(held.predicted_ns / held.measurement.duration_ns))


def _sigma(errors: Iterable[float]) -> float:
    quantile = float(np.quantile(np.array(list(errors)), 0.9))
    return max(SMALLEST_SIGMA, round(quantile / _Z_OF_90_PCT, 4))


def with_sigma(held: Sequence[HeldOut], fold_of_row: Sequence[int]) -> list[HeldOut]:
    """Give every row the uncertainty that the rows of the other folds show."""
    tables = {
        fold: fit_uncertainty(
            [one for one, of in zip(held, fold_of_row, strict=True) if of != fold]
        )
        for fold in sorted(set(fold_of_row))
    }
    return [
        replace(one, relative_sigma=_look_up(one, tables[fold]))
        for one, fold in zip(held, fold_of_row, strict=True)
    ]


def _look_up(held: HeldOut, table: dict[str, float]) -> float:
    for scope in scopes_of(held):
        if scope in table:
            return table[scope]
    return float(np.median(list(table.values()))) if table else SMALLEST_SIGMA


PRIOR_WEIGHT = 0.02
OUTLIER_SCALE = 0.1
_CURVE_ROWS = 20

Constants = TypeVar("Constants", HostConstants, FabricConstants, SoftwareConstants)
Residuals = Callable[[Constants], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one wiring, kind, choice and software, as arrays."""

    wiring: Wiring
    kind: CollectiveKind
    choice: Choice
    software: CollectiveSoftware
    dtype: DType
    movement: Movement
    measured_ns: FloatArray
    weights: FloatArray
    rows: tuple[int, ...]

    def predict_ns(
        self,
        host: HostConstants,
        fabric: FabricConstants | None,
        software: SoftwareConstants,
    ) -> FloatArray:
        """Predict the rows with other constants than those of the calibration."""
        if self.software.is_before_2_24:
            host = host.before_2_24(software)
        duration = predict_duration_ns(
            self.movement,
            algorithm=self.choice[0],
            protocol=self.choice[1],
            wires=wire_speeds(self.wiring),
            host=host,
            fabric=fabric if self.wiring.host_count > 1 else None,
        )
        return duration * byte_factor(self.kind, self.dtype, software)


def build_batches(
    measurements: Sequence[CollectiveMeasurement], calibration: Calibration
) -> list[Batch]:
    """Let NCCL's tuner choose for every row and gather equal rows."""
    gathered: dict[tuple[Wiring, CollectiveKind, bool, bool], list[int]] = {}
    for number, row in enumerate(measurements):
        key = (
            row.wiring(),
            row.kind,
            row.software.is_before_2_24,
            row.dtype.size_bytes == 1,
        )
        gathered.setdefault(key, []).append(number)
    batches: list[Batch] = []
    for (wiring, kind, _, _), rows in gathered.items():
        batches += _by_choice(wiring, kind, rows, measurements, calibration)
    return batches


def _by_choice(
    wiring: Wiring,
    kind: CollectiveKind,
    rows: list[int],
    measurements: Sequence[CollectiveMeasurement],
    calibration: Calibration,
) -> Iterable[Batch]:
    first = measurements[rows[0]]
    sizes = np.array([float(measurements[row].size_bytes) for row in rows])
    measured = np.array([measurements[row].duration_ns for row in rows])
    tuner = build_tuner(wiring, calibration)
    candidates, chosen = tuner.choose(kind, sizes, first.software)
    weight = min(1.0, _CURVE_ROWS / len(rows)) ** 0.5
    for number in np.unique(chosen):
        taken = np.nonzero(chosen == number)[0]
        yield Batch(
            wiring=wiring,
            kind=kind,
            choice=candidates[number],
            software=first.software,
            dtype=first.dtype,
            movement=build_movement(kind, candidates[number][0], sizes[taken], wiring),
            measured_ns=measured[taken],
            weights=np.full(len(taken), weight),
            rows=tuple(rows[place] for place in taken),
        )


def fit_constants(
    prior: Constants, residuals: Residuals[Constants], *, frozen: Sequence[str] = ()
) -> Constants:
    """The constants that make weighted *residuals* smallest, pulled weakly to *prior*."""
    from scipy.optimize import least_squares  # heavy, and only fitting needs it

    start = asdict(prior)
    names = [name for name, value in start.items() if name not in frozen and value > 0]
    origin = np.log([start[name] for name in names])

    def constants_at(place: FloatArray) -> Constants:
        values = dict(zip(names, np.exp(np.clip(place, origin - 4, origin + 4)), strict=True))
        return replace(prior, **{name: float(value) for name, value in values.items()})

    def cost(place: FloatArray) -> FloatArray:
        pull = PRIOR_WEIGHT * (place - origin)
        return np.concatenate([residuals(constants_at(place)), pull])

    answer = least_squares(
        cost, origin, loss="soft_l1", f_scale=OUTLIER_SCALE, max_nfev=60, x_scale="jac"
    )
    if not np.all(np.isfinite(answer.x)):
        raise CalibrationError("fit of collectives did not converge. Check the table for junk.")
    return constants_at(answer.x)


def log_residuals(batches: Sequence[Batch], predicted: Sequence[FloatArray]) -> FloatArray:
    """Weighted logarithms of predicted over measured."""
    return np.concatenate(
        [
            batch.weights * np.log(one / batch.measured_ns)
            for batch, one in zip(batches, predicted, strict=True)
        ]
    )
