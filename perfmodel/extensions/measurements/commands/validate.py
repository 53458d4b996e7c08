"""`perfmodel validate`: compare predictions with tables of measurements, one command per kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel import api
from perfmodel.base.errors import MeasurementError
from perfmodel.base.options import Option
from perfmodel.cli.commands import command, command_group
from perfmodel.cli.options import Outputs, RunOptions, argument
from perfmodel.prediction.scenario import CalibrationFiles

if TYPE_CHECKING:
    from collectives.measurements import RunPlace
    from perfmodel.api.details import KernelKind
    from perfmodel.extensions.measurements.validation.scoreboard import Scoreboard

EPILOG = """\b
Examples:
  perfmodel validate collectives table.csv --limit 15 --csv rows.csv
  perfmodel validate collectives all_reduce.log --topology dgx_h100 --calibration my.yaml
"""
KERNELS: dict[KernelKind, str] = {
    "gemm": "GEMMs",
    "attention": "attention",
    "experts": "layers of experts",
    "memory": "memory-bound kernels",
}
Limit = Annotated[
    float | None,
    Option(metavar="PCT", min=0.0, help="Exit 1 if the mean error is above this, e.g. 10."),
]
ScoreFiles = Annotated[Outputs, "json_file", "report_file", "csv_file", "is_strict"]
QuietRun = Annotated[RunOptions, "quiet"]
validate = command_group(help="Compare predictions with measurements; exit 1 beyond the limit.")


@dataclass(frozen=True)
class MeasuredCollectives:
    """Tables of measured collectives, and what the output of nccl-tests does not say."""

    tables: Annotated[
        tuple[str, ...],
        argument(
            "TABLE...",
            "Output of nccl-tests (text or JSON), or CSV tables (`perfmodel schema collectives`).",
        ),
    ]
    topology: Annotated[
        str | None, Option(metavar="NAME|FILE", help="Machine that nccl-tests ran on.")
    ] = None
    hosts: Annotated[
        int | None, Option(metavar="N", min=1, help="Hosts it ran on; default: as stated there.")
    ] = None
    kind: Annotated[
        str | None, Option(metavar="KIND", help="Collective it ran; default: as stated there.")
    ] = None

    @property
    def place(self) -> RunPlace:
        """Where nccl-tests ran."""
        from collectives.measurements import RunPlace

        return RunPlace(topology=self.topology, hosts=self.hosts, kind=self.kind)


@dataclass(frozen=True)
class CollectiveScores(MeasuredCollectives):
    """Measured collectives to compare with, and the limit on the error."""

    calibration: CalibrationFiles = ()
    limit: Limit = None


@command(validate, epilog=EPILOG)
def collectives(question: CollectiveScores, files: ScoreFiles, run: QuietRun) -> None:
    """Compare predicted with measured collectives, one line per group."""
    with run.open("predicting"):
        board = api.validate(
            "collectives",
            question.tables,
            place=question.place,
            calibration=question.calibration,
        )
    show_scores(board, files, question.limit)


@dataclass(frozen=True)
class KernelScores:
    """Measured kernels to compare with, and the limit on the error."""

    table: Annotated[str, argument("FILE", "A table of measured kernels.")]
    calibration: CalibrationFiles = ()
    limit: Limit = None


def _kernel_command(kind: KernelKind) -> Callable[..., None]:
    def kernels(question: KernelScores, files: ScoreFiles, run: QuietRun) -> None:
        with run.open("predicting"):
            board = api.validate(kind, [question.table], calibration=question.calibration)
        show_scores(board, files, question.limit)

    return kernels


for _kind, _what in KERNELS.items():
    command(validate, name=_kind, help=f"Compare predicted with measured {_what}.")(
        _kernel_command(_kind)
    )


@dataclass(frozen=True)
class LookupScores:
    """Measured lookups and updates to compare with, and the limit on the error."""

    cases: Annotated[str, argument("CASES.yaml", "Cases as `calibrate embedding` reads them.")]
    data: Annotated[str, Option(metavar="FOLDER", help="Folder of the files that cases name.")] = (
        "."
    )
    limit: Limit = None


@command(validate)
def embeddings(question: LookupScores, files: ScoreFiles, run: QuietRun) -> None:
    """Compare predicted with measured lookups in embedding tables and their updates."""
    with run.open("predicting"):
        board = api.validate_embeddings(question.cases, data=question.data)
    show_scores(board, files, question.limit)


@dataclass(frozen=True)
class RunScores:
    """Measured training runs to compare with, and the limit on the error."""

    table: Annotated[
        str | None,
        argument(
            "FILE", "A table of measured runs, .csv or .csv.gz; default: those of the repository."
        ),
    ] = None
    limit: Limit = None
    source: Annotated[
        str | None, Option(metavar="TEXT", help="Only rows whose source contains this.")
    ] = None
    calibration: CalibrationFiles = ()


@command(validate)
def runs(question: RunScores, run: RunOptions, files: ScoreFiles) -> None:
    """Compare predicted with measured training iterations, one line per framework and GPU."""
    asked = {name: value for name, value in vars(question).items() if name != "limit"}
    with run.open("predicting") as where:
        board = api.validate_runs(**asked, **where)
    show_scores(board, files, question.limit)


@command(validate)
def fits(
    tables: Annotated[
        tuple[str, ...],
        argument("FILE...", "Tables of runs; rows without a time failed."),
    ],
    files: ScoreFiles,
    run: QuietRun,
) -> None:
    """Compare the memory verdict with runs that failed and those of their source that ran."""
    from perfmodel.extensions.measurements.report import report_fits

    with run.open("predicting"):
        board = api.validate_fits(tables)
    files.write(report_fits(board), board.to_json)


def show_scores(board: Scoreboard, files: Outputs, limit: float | None) -> None:
    """Print *board* and write its files; exit 1 if the mean error is above the *limit*."""
    from perfmodel.extensions.measurements.report import report_scores

    files.write(report_scores(board), board.to_json)
    if board.overall is None and not files.is_printed and limit is None:
        return  # the reasons are in the JSON
    if board.overall is None:
        raise MeasurementError(f"{board.kind}: no row could be predicted; each row states why.")
    if limit is not None and board.exceeds(limit):
        found = f"{board.overall.mape_pct:.1f} %"
        print(f"perfmodel: mean error beyond the limit of {limit} %: {found}", file=sys.stderr)
        raise typer.Exit(1)
