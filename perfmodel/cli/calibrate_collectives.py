"""`perfmodel calibrate collectives`: the part of the command that fits collectives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from collectives.measurements import load_measurements
from perfmodel.base.errors import InputError
from perfmodel.calibration.collectives import cross_validate, fit_with_uncertainty
from perfmodel.calibration.collectives_file import about_shipped, write_calibration
from perfmodel.validation.collectives import deviation_of
from perfmodel.validation.scoreboard import Scoreboard

UNCERTAINTY_FOLDS = 5


def run_collectives(
    tables: list[Path], *, folds: int | None, out: Path | None, json_file: str | None
) -> None:
    """Fit the collectives in *tables*, or report held-out errors over *folds*."""
    from datetime import UTC, datetime

    measurements = load_measurements(tables)
    if folds is not None:
        held_out = cross_validate(measurements, folds=folds)
        rows = [deviation_of(one.measurement, one.predicted_ns, one.relative_sigma) for one in held_out]
        _show(Scoreboard("collectives", tuple(rows)), json_file)
        return
    if out is None:
        raise InputError(
            "calibrate collectives: must know where to write. Give --out FILE, or "
            "--cross-validate K to see held-out errors only."
        )
    names = " ".join(str(path) for path in tables)
    about = about_shipped(
        command=f"perfmodel calibrate collectives {names}", day=datetime.now(UTC).date()
    )
    write_calibration(fit_with_uncertainty(measurements, folds=UNCERTAINTY_FOLDS), out, about=about)
    print(f"Wrote {out}")


def _show(board: Scoreboard, json_file: str | None) -> None:
    if json_file is not None:
        text = json.dumps(board.to_json()) + "\n"
        if json_file == "-":
            sys.stdout.write(text)
            return
        Path(json_file).write_text(text, encoding="utf-8")
    print("\n".join(board.lines()))
