"""Uncertainty of collectives: how far held-out rows were off, by machine, kind and regime.

A standard deviation is the 90 % quantile of the absolute error of the logarithm, divided by that
of a normal distribution, so that nine of ten held-out rows lie in the 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from collectives.calibration import regime_of
from perfmodel.calibration.collectives_rows import HeldOut

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
