"""Validation of collectives: every row of a table predicted with the shipped calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectives.calibration import Calibration
from collectives.collective import CollectiveKind
from collectives.cost import FREE, CollectiveCost
from collectives.measurements import CollectiveMeasurement
from collectives.pricing import price_sizes
from collectives.software import CollectiveSoftware
from collectives.wiring import Wiring
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported, interval_of

_NS_PER_US = 1e3
_Curve = tuple[Wiring, CollectiveKind, CollectiveSoftware, DType]


def validate_collectives(
    measurements: Sequence[CollectiveMeasurement], *, calibration: Calibration | None = None
) -> Scoreboard:
    """Compare *measurements* with predictions, in microseconds as the tables have them."""
    curves: dict[_Curve, list[int]] = {}
    unsupported: list[Unsupported] = []
    for place, row in enumerate(measurements):
        try:
            key = (row.wiring(), row.kind, row.software, row.dtype)
        except InputError as fault:
            unsupported.append(Unsupported(row.row, " ".join(str(fault).split())))
            continue
        curves.setdefault(key, []).append(place)
    costs: dict[int, CollectiveCost] = {}
    for curve, places in curves.items():
        sizes = np.array([float(measurements[place].size_bytes) for place in places])
        costs.update(zip(places, _price(curve, sizes, calibration), strict=True))
    deviations = []
    for place in sorted(costs):
        row = measurements[place]
        if costs[place].duration_ns <= 0:
            unsupported.append(Unsupported(row.row, "a group of one rank moves nothing"))
        else:
            deviations.append(build_deviation(row, costs[place]))
    return Scoreboard("collectives", tuple(deviations), tuple(unsupported))


def _price(
    curve: _Curve, sizes: np.ndarray, calibration: Calibration | None
) -> list[CollectiveCost]:
    wiring, kind, software, dtype = curve
    if wiring.rank_count == 1:
        return [FREE] * len(sizes)
    return price_sizes(
        kind, sizes, wiring=wiring, software=software, calibration=calibration, dtype=dtype
    )


def build_deviation(row: CollectiveMeasurement, cost: CollectiveCost) -> Deviation:
    """One row beside its predicted *cost*."""
    return deviation_of(row, cost.duration_ns, cost.relative_sigma)


def deviation_of(
    row: CollectiveMeasurement, predicted_ns: float, relative_sigma: float
) -> Deviation:
    """One row beside a prediction."""
    low, high = interval_of(predicted_ns, relative_sigma)
    return Deviation(
        row=row.row,
        group=row.group,
        measured=row.duration_ns / _NS_PER_US,
        predicted=predicted_ns / _NS_PER_US,
        low=low / _NS_PER_US,
        high=high / _NS_PER_US,
    )
