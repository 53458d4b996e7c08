"""Validation of kernels and collectives: every measured row compared with its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collectives.calibration import Calibration
from collectives.collective import FREE, CollectiveCost, CollectiveKind, CollectiveSoftware
from collectives.measurements import CollectiveMeasurement
from collectives.pricing import price_sizes
from collectives.wiring import Wiring
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, PerfModelError
from perfmodel.base.units import NS_PER_MS, NS_PER_US
from perfmodel.costs.estimates import Estimates, interval_of
from perfmodel.extensions.measurements.checking import check_kernels
from perfmodel.extensions.measurements.kernel_tables import KERNEL_KINDS
from perfmodel.extensions.measurements.measured_kernels import (
    MeasuredKernel,
    Unsupported,
    price_measured,
)
from perfmodel.extensions.measurements.validation.scoreboard import (
    Deviation,
    Scoreboard,
)


def validate_kernels(kind: str, path: Path, *, calibration: Sequence[str] = ()) -> Scoreboard:
    """Compare the table at *path* with predictions, in milliseconds, the unit of the tables.

    Constants of the files *calibration* override the shipped ones.
    """
    known = KERNEL_KINDS[kind]
    table, cautions = check_kernels(known.load(path, None), str(path), known.price)
    model = known.model(None)
    deviations: dict[str | int, Deviation] = {}
    unsupported = list(table.unsupported)
    # Rows of one device and op are either all priced or all unsupported.
    members: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for kernel in table.kernels:
        members.setdefault((kernel.device, kernel.group[-1]), []).append(kernel)
    for (device, op_word), kernels in members.items():
        try:
            estimates = price_measured(kernels, model, calibration=calibration)
        except PerfModelError as fault:
            reason = f"{op_word} on {device}: {' '.join(str(fault).split())}"
            unsupported.extend(Unsupported(kernel.row, reason) for kernel in kernels)
            continue
        deviations.update((one.row, one) for one in kernel_deviations(kernels, estimates))
    in_order = (kernel.row for kernel in table.kernels)
    return Scoreboard(
        kind,
        tuple(deviations[row] for row in in_order if row in deviations),
        tuple(unsupported),
        cautions,
    )


def kernel_deviations(
    kernels: Sequence[MeasuredKernel], estimates: Estimates
) -> tuple[Deviation, ...]:
    """Each of *kernels* compared with its prediction."""
    columns = zip(kernels, estimates.duration_ns, estimates.low_ns, estimates.high_ns, strict=True)
    return tuple(
        Deviation(
            row=kernel.row,
            group=" ".join(part for part in kernel.group if part),
            measured=kernel.measured_ns / NS_PER_MS,
            predicted=float(predicted_ns) / NS_PER_MS,
            low=float(low_ns) / NS_PER_MS,
            high=float(high_ns) / NS_PER_MS,
        )
        for kernel, predicted_ns, low_ns, high_ns in columns
    )


_Curve = tuple[Wiring, CollectiveKind, CollectiveSoftware, DType]


def validate_collectives(
    measurements: Sequence[CollectiveMeasurement], *, calibration: Calibration | None = None
) -> Scoreboard:
    """Compare *measurements* with predictions, in microseconds, the unit of the tables."""
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
    for (wiring, kind, software, dtype), places in curves.items():
        sizes = np.array([float(measurements[place].size_bytes) for place in places])
        prices = [FREE] * len(sizes)
        if wiring.rank_count > 1:
            prices = price_sizes(
                kind, sizes, wiring=wiring, software=software, calibration=calibration, dtype=dtype
            )
        costs.update(zip(places, prices, strict=True))
    deviations = []
    for place, cost in sorted(costs.items()):
        row = measurements[place]
        if cost.duration_ns <= 0:
            unsupported.append(Unsupported(row.row, "a group of one rank moves nothing"))
        else:
            deviations.append(collective_deviation(row, cost.duration_ns, cost.relative_sigma))
    return Scoreboard("collectives", tuple(deviations), tuple(unsupported))


def collective_deviation(
    row: CollectiveMeasurement, predicted_ns: float, relative_sigma: float
) -> Deviation:
    """One row compared with a prediction."""
    low, high = interval_of(predicted_ns, relative_sigma)
    return Deviation(
        row=row.row,
        group=row.group,
        measured=row.duration_ns / NS_PER_US,
        predicted=predicted_ns / NS_PER_US,
        low=low / NS_PER_US,
        high=high / NS_PER_US,
    )
