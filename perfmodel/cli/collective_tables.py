"""`perfmodel validate collectives` and `perfmodel calibrate collectives`: tables in, scores out."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_file, write_output
from perfmodel.cli.options import JsonFile

if TYPE_CHECKING:
    from perfmodel.calibration.collectives.rows import HeldOut
    from perfmodel.validation.scoreboard import Scoreboard

DEFAULT_FOLDS = 5

Tables = Annotated[
    list[Path],
    typer.Argument(metavar="TABLE...", help="CSV tables of measured collectives."),
]
Limit = Annotated[
    float | None,
    typer.Option(
        metavar="PCT", min=0.0, help="Exit 1 when the mean error is beyond this, e.g. 10."
    ),
]


class FoldColumn(Enum):
    """The columns whose values can be dealt into folds."""

    SIZE_BYTES = "size_bytes"
    HOSTS = "hosts"
    NRANKS = "nranks"


def validate_collectives_command(
    tables: Tables, limit: Limit = None, json_file: JsonFile = None
) -> None:
    """Compare predicted with measured collectives, one line per group."""
    from perfmodel import api

    show(api.validate("collectives", tables), json_file, limit)


def calibrate_collectives_command(
    tables: Tables,
    cross_validate: Annotated[
        int | None,
        typer.Option(metavar="K", min=2, help="Fit on K - 1 of K folds, score the other, e.g. 5."),
    ] = None,
    by: Annotated[
        FoldColumn, typer.Option(help="Column whose values are dealt into folds.")
    ] = FoldColumn.SIZE_BYTES,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:HOSTS]",
            help="Fit without a machine and score it, e.g. dgx_h100:10; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the constants here."),
    ] = None,
    licence: Annotated[
        str, typer.Option(metavar="TEXT", help="Licence of the measurements, for the file.")
    ] = "that of the sources",
    limit: Limit = None,
    json_file: JsonFile = None,
) -> None:
    """Fit the constants of collectives, or check a fit on rows it has not seen."""
    from collectives.measurements import load_measurements
    from perfmodel.calibration.collectives import command as fitting
    from perfmodel.calibration.collectives.rows import parse_left_out

    measurements = load_measurements(tables)
    if leave_out:
        left_out = [parse_left_out(text) for text in leave_out]
        show(_board(fitting.predict_left_out(measurements, left_out)), json_file, limit)
    if cross_validate is not None:
        held = fitting.cross_validate(measurements, folds=cross_validate, by=by.value)
        show(_board(held), json_file, limit)
    if output is not None:
        _fit_and_write(tables, output, licence)
    elif cross_validate is None and not leave_out:
        raise InputError(
            "calibrate collectives: nothing to do. Give --out FILE to write the constants, "
            "or --cross-validate or --leave-out to check a fit."
        )


def _fit_and_write(tables: list[Path], output: Path, licence: str) -> None:
    import datetime

    from collectives.measurements import load_measurements
    from perfmodel.calibration.collectives.command import fit_with_uncertainty
    from perfmodel.calibration.collectives.rows import about_tables, write_calibration

    measurements = load_measurements(tables)
    fitted = fit_with_uncertainty(measurements, folds=DEFAULT_FOLDS)
    names = " ".join(str(table) for table in tables)
    command = f"perfmodel calibrate collectives {names} --out {output}"
    day = datetime.datetime.now(tz=datetime.UTC).date()
    about = about_tables(measurements, command=command, licence=licence, day=day)
    write_calibration(fitted, output, about=about)
    print(f"wrote {output}: {len(fitted.hosts)} host and {len(fitted.fabrics)} fabric blocks")


def _board(held: list[HeldOut]) -> Scoreboard:
    from perfmodel.validation.collectives import deviation_of
    from perfmodel.validation.scoreboard import Scoreboard

    deviations = tuple(
        deviation_of(one.measurement, one.predicted_ns, one.relative_sigma) for one in held
    )
    return Scoreboard("collectives", deviations)


def show(
    board: Scoreboard, json_file: str | None, limit: float | None, report_file: Path | None = None
) -> None:
    """Print *board*, write it where asked, and exit 1 beyond the limit."""
    if json_file is not None:
        import orjson

        content = orjson.dumps(board.to_json(), option=orjson.OPT_INDENT_2)
        write_output(json_file, content.decode() + "\n")
    if report_file is not None:
        from perfmodel.reports.pages.answers import build_score_page

        write_file(report_file, build_score_page(board))
    if json_file != STDOUT:
        print("\n".join(board.lines()))
    if limit is not None and board.exceeds(limit):
        overall = board.overall
        found = "nothing could be predicted" if overall is None else f"{overall.mape_pct:.1f} %"
        print(f"perfmodel: mean error beyond the limit of {limit} %: {found}", file=sys.stderr)
        raise typer.Exit(1)
