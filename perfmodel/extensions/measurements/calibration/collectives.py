"""Calibration of collectives: from tables of measurements to constants, and held-out checks.

Folds are made of sizes, so no row of a held-out size is in the fit. Many rows fit all blocks
(`collective_blocks`); few rows shift the shipped constants (`collective_shift`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from collectives.calibration import (
    SCHEMA_VERSION,
    Calibration,
    load_default_calibration,
)
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import CalibrationError
from perfmodel.base.forms import to_plain
from perfmodel.base.writing import write_file
from perfmodel.extensions.measurements.calibration.collective_blocks import (
    fit_collectives,
    load_blocks,
)
from perfmodel.extensions.measurements.calibration.collective_fit import (
    HeldOut,
    fit_uncertainty,
    predict_rows,
    with_sigma,
)
from perfmodel.extensions.measurements.calibration.collective_shift import (
    measured_spans,
    shift_collectives,
)
from perfmodel.prediction.phases import OnPhase, ignore_phase

ENOUGH_ROWS = 200
"""Fewer rows, or rows of other machines, shift the shipped constants by a few factors."""


def cross_validate(
    measurements: Sequence[CollectiveMeasurement],
    *,
    folds: int,
    by: str = "size_bytes",
    on_phase: OnPhase = ignore_phase,
) -> list[HeldOut]:
    """Predict every row that a fold holds from a fit on all others; see `assign_folds`."""
    fold_of_row = assign_folds(measurements, folds, by=by)
    held: dict[int, HeldOut] = {}
    for fold in range(folds):
        on_phase(f"fitting without fold {fold + 1} of {folds}", 0.6 * fold / folds)
        inside = [row for row, of in zip(measurements, fold_of_row, strict=True) if of != fold]
        places = [place for place, of in enumerate(fold_of_row) if of == fold]
        if is_enough(measurements):
            fitted = fit_collectives(inside)
        else:
            fitted, _ = shift_collectives(inside, load_default_calibration())
        predicted = predict_rows([measurements[place] for place in places], fitted)
        held.update(zip(places, predicted, strict=True))
    places = sorted(held)
    return with_sigma([held[place] for place in places], [fold_of_row[one] for one in places])


def predict_left_out(
    measurements: Sequence[CollectiveMeasurement], machines: Sequence[str]
) -> list[HeldOut]:
    """Predict the rows of *machines* from a fit on all others and the datasheet.

    A machine is `dgx_h100`, or `dgx_h100:10` for its runs on 10 hosts only.
    """
    names = set()
    for text in machines:
        name, _, hosts = text.partition(":")
        if not name or (hosts and not hosts.isdecimal()):
            raise CalibrationError(
                f"leave-out: must be a topology, or one with its number of hosts such as "
                f"dgx_h100:10, got {text!r}."
            )
        names.add(f"{name}:{int(hosts)}" if hosts else name)
    kept: list[CollectiveMeasurement] = []
    rest: list[CollectiveMeasurement] = []
    for row in measurements:
        is_out = bool(names & {row.topology, f"{row.topology}:{row.hosts}"})
        (rest if is_out else kept).append(row)
    if not rest:
        raise CalibrationError(
            f"leave-out {', '.join(machines)}: no row of the tables is of that machine."
        )
    return predict_rows(rest, fit_collectives(kept))


def is_enough(measurements: Sequence[CollectiveMeasurement]) -> bool:
    """Whether *measurements* can be fitted from priors: many rows, all of machines with a block.

    Fewer rows shift the shipped constants instead (`collective_shift`).
    """
    blocks = load_blocks()
    known = {name for block in blocks.hosts for name in block.learns_from}
    known |= {name for block in blocks.fabrics for name in block.learns_from}
    return len(measurements) >= ENOUGH_ROWS and all(row.topology in known for row in measurements)


def fit_with_uncertainty(
    measurements: Sequence[CollectiveMeasurement], *, folds: int, on_phase: OnPhase = ignore_phase
) -> Calibration:
    """Fit all rows, with the uncertainty that held-out sizes and left-out machines show."""
    held = cross_validate(measurements, folds=folds, on_phase=on_phase)
    unseen: list[HeldOut] = []
    for machine in load_blocks().left_out:
        if any(row.topology == machine for row in measurements):
            on_phase(f"fitting without {machine}", 0.7)
            unseen += predict_left_out(measurements, [machine])
    on_phase("fitting all rows", 0.9)
    fitted = fit_collectives(measurements)
    spans = measured_spans(measurements)
    return replace(fitted, uncertainty=fit_uncertainty(held, unseen), spans=spans)


FOLD_COLUMNS: Mapping[str, Callable[[CollectiveMeasurement], int]] = {
    "size_bytes": lambda row: row.size_bytes,
    "hosts": lambda row: row.hosts,
    "nranks": lambda row: row.ranks,
}
IN_EVERY_FIT = -1


def assign_folds(
    measurements: Sequence[CollectiveMeasurement], folds: int, *, by: str = "size_bytes"
) -> list[int]:
    """The fold of each row: values of the column *by* in order, assigned round-robin.

    Folding by hosts tests how far a network extrapolates: rows of one host are always fitted.
    """
    values = [
        None if by == "hosts" and row.hosts == 1 else FOLD_COLUMNS[by](row) for row in measurements
    ]
    distinct = sorted({value for value in values if value is not None})
    if not 2 <= folds <= len(distinct):
        raise CalibrationError(
            f"cross-validation: folds must be from 2 to the number of values of {by} "
            f"({len(distinct)}), got {folds}."
        )
    fold_of = {value: number % folds for number, value in enumerate(distinct)}
    return [IN_EVERY_FIT if value is None else fold_of[value] for value in values]


_HEADING = """\
# Fitted constants of collectives. Times in nanoseconds, ratios of the datasheet's bandwidth.
# Made by the command below; do not edit by hand.
"""


def write_calibration(calibration: Calibration, path: Path, *, about: Mapping[str, str]) -> None:
    """Write *calibration* to *path*; *about* says source, hardware, software, licence, command."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **about}
    document["hosts"] = [to_plain(entry) for entry in calibration.hosts]
    document["fabrics"] = [to_plain(entry) for entry in calibration.fabrics]
    document["software_constants"] = to_plain(calibration.software_constants)
    document["uncertainty"] = dict(calibration.uncertainty)
    document["measured"] = [
        [span.topology, span.kind.value, span.hosts, span.ranks, span.low_bytes, span.high_bytes]
        for span in calibration.spans
    ]
    text = yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)
    write_file(path, _HEADING + text)


def about_tables(measurements: Sequence[CollectiveMeasurement]) -> dict[str, str]:
    """Where constants come from: the sources, machines and releases that the tables name."""
    sources = sorted({row.source or "not stated" for row in measurements})
    versions = sorted({row.nccl_version for row in measurements if row.nccl_version is not None})
    named = [".".join(str(part) for part in version) for version in versions]
    if any(row.nccl_version is None for row in measurements):
        named.append("releases not stated")
    return {
        "source": "; ".join(sources),
        "hardware": ", ".join(sorted({row.topology for row in measurements})),
        "software": f"NCCL {', '.join(named)}",
    }
