"""Scoreboard: predictions compared with measurements, by group and overall.

Errors are relative to the measurement. The geometric mean is of absolute errors, each counted as
0.01 % or more, so one exact row does not make it zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.base.cautions import NO_CAUTIONS, Cautions
from perfmodel.extensions.measurements.measured_kernels import Unsupported

SCHEMA_VERSION = 1
_SMALLEST_PCT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One measurement and its prediction with the 90 % interval, all in the table's unit."""

    row: str | int
    group: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error_pct(self) -> float:
        """How far the prediction is off, positive when too long."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    @property
    def is_inside(self) -> bool:
        """Whether the measurement is in the interval."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a set of rows was predicted."""

    rows: int
    mape_pct: float
    median_pct: float
    geomean_pct: float
    p90_pct: float
    bias_pct: float
    inside_interval_pct: float


def build_score(deviations: Sequence[Deviation]) -> Score:
    """Sum up *deviations*; there must be at least one."""
    errors = np.array([deviation.error_pct for deviation in deviations])
    sizes = np.abs(errors)
    return Score(
        rows=len(deviations),
        mape_pct=float(sizes.mean()),
        median_pct=float(np.median(sizes)),
        geomean_pct=float(np.exp(np.log(np.maximum(sizes, _SMALLEST_PCT)).mean())),
        p90_pct=float(np.quantile(sizes, 0.9)),
        bias_pct=float(errors.mean()),
        inside_interval_pct=100.0 * float(np.mean([one.is_inside for one in deviations])),
    )


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """All rows of a validation: predicted ones, and those that could not be."""

    kind: str
    deviations: tuple[Deviation, ...]
    unsupported: tuple[Unsupported, ...] = ()
    cautions: Cautions = NO_CAUTIONS

    @property
    def overall(self) -> Score | None:
        """The score of all predicted rows; none where there are none."""
        return build_score(self.deviations) if self.deviations else None

    @property
    def groups(self) -> dict[str, Score]:
        """The score of each group, in the order the groups first appear."""
        members: dict[str, list[Deviation]] = {}
        for deviation in self.deviations:
            members.setdefault(deviation.group, []).append(deviation)
        return {name: build_score(rows) for name, rows in members.items()}

    def exceeds(self, limit_pct: float) -> bool:
        """Whether the mean error is beyond *limit_pct*, or nothing could be predicted."""
        overall = self.overall
        return overall is None or overall.mape_pct > limit_pct

    def to_json(self) -> dict[str, Any]:
        """The machine-readable answer."""
        overall = self.overall
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "overall": None if overall is None else asdict(overall),
            "groups": {name: asdict(score) for name, score in self.groups.items()},
            "unsupported": [asdict(one) for one in self.unsupported],
            "rows": [_row_of(deviation) for deviation in self.deviations],
            **self.cautions.document(),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """A flat row per measurement: its numbers, or the reason why it could not be predicted."""
        predicted = [{**_row_of(one), "group": one.group} for one in self.deviations]
        return predicted + [asdict(one) for one in self.unsupported]


def _row_of(deviation: Deviation) -> dict[str, Any]:
    return {
        "row": deviation.row,
        "measured": deviation.measured,
        "predicted": deviation.predicted,
        "low": deviation.low,
        "high": deviation.high,
        "error_pct": deviation.error_pct,
    }
