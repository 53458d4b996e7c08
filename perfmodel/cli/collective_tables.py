"""`perfmodel validate collectives` and `perfmodel calibrate collectives`: tables in, scores out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.base.writing import STDOUT, check_writable, write_file, write_output
from perfmodel.cli.options import CalibrationFiles, JsonFile, Quiet, ReportFile
from perfmodel.cli.outputs import Outputs

if TYPE_CHECKING:
    from collectives.measurements import CollectiveMeasurement
    from perfmodel.calibration.collectives.rows import HeldOut
    from perfmodel.prediction.phases import OnPhase
    from perfmodel.validation.scoreboard import Scoreboard

DEFAULT_FOLDS = 5

Tables = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE...",
        help="What nccl-tests printed or wrote as JSON, or CSV tables (`perfmodel schema "
        "collectives`).",
    ),
]
Machine = Annotated[
    str | None,
    typer.Option("--topology", metavar="NAME|FILE", help="Machine that nccl-tests ran on."),
]
Hosts = Annotated[
    int | None,
    typer.Option("--hosts", metavar="N", min=1, help="Hosts it ran on; default: as it says."),
]
Kind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Collective it ran; default: as it says."),
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


VALIDATE_EPILOG = """\b
Examples:
  perfmodel validate collectives table.csv --limit 15
  perfmodel validate collectives all_reduce.log --topology dgx_h100 --calibration my.yaml
"""

CALIBRATE_EPILOG = """\b
Examples:
  perfmodel calibrate collectives all_reduce.log --topology dgx_h100 --out my.yaml
  perfmodel predict --topology dgx_h100 --hosts 4 --calibration my.yaml
  perfmodel calibrate collectives table.csv --cross-validate 5
\b
Few rows (six will do, small and large sizes) shift the constants that perfmodel has
for such a machine; 200 or more of machines that it knows are fitted from scratch.
"""


def validate_collectives_command(
    tables: Tables,
    topology: Machine = None,
    hosts: Hosts = None,
    kind: Kind = None,
    calibration: CalibrationFiles = None,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
    quiet: Quiet = False,
) -> None:
    """Compare predicted with measured collectives, one line per group."""
    from collectives.nccl_tests import RunPlace
    from perfmodel import api

    place = RunPlace(topology, hosts, kind)
    files = ScoreFiles(json_file, limit, report_file)
    files.check()
    with scoring(quiet):
        board = api.validate("collectives", tables, place=place, calibration=calibration or ())
    show(board, files)


def calibrate_collectives_command(
    tables: Tables,
    topology: Machine = None,
    hosts: Hosts = None,
    kind: Kind = None,
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
    quiet: Quiet = False,
) -> None:
    """Fit the constants of collectives, or check a fit on rows it has not seen."""
    from collectives.measurements import load_measurements
    from collectives.nccl_tests import RunPlace
    from perfmodel.calibration.collectives import command as fitting
    from perfmodel.calibration.collectives.rows import parse_left_out
    from perfmodel.reports.progress import show_progress

    files = ScoreFiles(json_file, limit)
    files.check()
    if output is not None:
        check_writable("--out", output)
    measurements = load_measurements(tables, place=RunPlace(topology, hosts, kind))
    if leave_out:
        left_out = [parse_left_out(text) for text in leave_out]
        show(_board(fitting.predict_left_out(measurements, left_out)), files)
    if cross_validate is not None:
        with show_progress(is_quiet=quiet) as progress:
            held = fitting.cross_validate(
                measurements, folds=cross_validate, by=by.value, on_phase=progress
            )
        show(_board(held), files)
    if output is not None:
        words = [("--topology", topology), ("--hosts", hosts), ("--kind", kind)]
        said = [f"{option} {value}" for option, value in words if value is not None]
        names = " ".join([*map(str, tables), *said])
        command = f"perfmodel calibrate collectives {names} --out {output}"
        with show_progress(is_quiet=quiet) as progress:
            lines = _fit_and_write(measurements, output, licence, command, progress)
        print("\n".join(lines))
    elif cross_validate is None and not leave_out:
        raise InputError(
            "calibrate collectives: nothing to do. Give --out FILE to write the constants, "
            "or --cross-validate or --leave-out to check a fit."
        )


def _fit_and_write(
    measurements: tuple[CollectiveMeasurement, ...],
    output: Path,
    licence: str,
    command: str,
    progress: OnPhase,
) -> list[str]:
    """Write the constants to *output* and say what they are."""
    import datetime

    from collectives.calibration import load_default_calibration
    from perfmodel.calibration.collectives.command import fit_with_uncertainty, is_enough
    from perfmodel.calibration.collectives.rows import about_tables, write_calibration
    from perfmodel.calibration.collectives.shift import shift_collectives

    day = datetime.datetime.now(tz=datetime.UTC).date()
    about = about_tables(measurements, command=command, licence=licence, day=day)
    if is_enough(measurements):
        fitted = fit_with_uncertainty(measurements, folds=DEFAULT_FOLDS, on_phase=progress)
        blocks = f"{len(fitted.hosts)} host and {len(fitted.fabrics)} fabric blocks"
        lines = [f"Fitted {blocks} from {len(measurements)} rows."]
    else:
        shifted = shift_collectives(measurements, load_default_calibration())
        fitted = shifted.calibration
        lines = [*shifted.sentences]
    write_calibration(fitted, output, about=about)
    [name, *_] = sorted({row.topology for row in measurements})
    return [
        *lines,
        f"Wrote {output}",
        f"Use it: perfmodel predict --topology {name} --calibration {output}",
    ]


def _board(held: list[HeldOut]) -> Scoreboard:
    from perfmodel.validation.collectives import deviation_of
    from perfmodel.validation.scoreboard import Scoreboard

    deviations = tuple(
        deviation_of(one.measurement, one.predicted_ns, one.relative_sigma) for one in held
    )
    return Scoreboard("collectives", deviations)


@dataclass(frozen=True, slots=True)
class ScoreFiles:
    """Where a scoreboard goes besides the screen, and how large its mean error may be."""

    json_file: str | None = None
    limit_pct: float | None = None
    report_file: Path | None = None

    def check(self) -> None:
        """Raise unless every file can be written, before any work is done for it."""
        Outputs(json_file=self.json_file, report_file=self.report_file).check()


@contextmanager
def scoring(is_quiet: bool) -> Iterator[OnPhase]:
    """Progress of a comparison with measurements."""
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=is_quiet) as progress:
        progress("predicting", 0.0)
        yield progress


def show(board: Scoreboard, files: ScoreFiles) -> None:
    """Print *board*, write it where asked, and exit 1 beyond the limit."""
    if files.json_file is not None:
        import orjson

        content = orjson.dumps(board.to_json(), option=orjson.OPT_INDENT_2)
        write_output(files.json_file, content.decode() + "\n")
    if files.report_file is not None:
        from perfmodel.reports.pages.scores import build_score_page

        write_file(files.report_file, build_score_page(board))
    if files.json_file != STDOUT:
        print("\n".join(board.lines()))
    limit = files.limit_pct
    if board.overall is None and files.json_file == STDOUT and limit is None:
        return  # whoever reads JSON finds the reasons there
    if board.overall is None:
        raise MeasurementError(f"{board.kind}: no row could be predicted; each says why.")
    if limit is not None and board.exceeds(limit):
        found = f"{board.overall.mape_pct:.1f} %"
        print(f"perfmodel: mean error beyond the limit of {limit} %: {found}", file=sys.stderr)
        raise typer.Exit(1)
