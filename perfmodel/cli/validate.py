"""`perfmodel validate`: predictions beside tables of measurements, one command a kind of table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.api.measured import KernelKind
from perfmodel.cli.options import (
    CalibrationFiles,
    CsvFile,
    ExecutorChoice,
    ExecutorOption,
    JsonFile,
    Quiet,
    RayAddress,
    ReportFile,
    Workers,
)
from perfmodel.cli.scores import (
    CollectiveTables,
    Limit,
    RunHosts,
    RunKind,
    RunMachine,
    ScoreFiles,
    scoring,
    show,
)

VALIDATE_EPILOG = """\b
Examples:
  perfmodel validate collectives table.csv --limit 15 --csv rows.csv
  perfmodel validate collectives all_reduce.log --topology dgx_h100 --calibration my.yaml
"""


def validate_collectives(
    tables: CollectiveTables,
    topology: RunMachine = None,
    hosts: RunHosts = None,
    kind: RunKind = None,
    calibration: CalibrationFiles = None,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
    csv_file: CsvFile = None,
    quiet: Quiet = False,
) -> None:
    """Compare predicted with measured collectives, one line per group."""
    from collectives.nccl_tests import RunPlace
    from perfmodel import api

    place = RunPlace(topology, hosts, kind)
    files = ScoreFiles(json_file, limit, report_file, csv_file)
    files.outputs.check()
    with scoring(quiet):
        board = api.validate("collectives", tables, place=place, calibration=calibration or ())
    show(board, files)


RunsTable = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A table of measured runs, .csv or .csv.gz; without one, those of the repository.",
    ),
]


def validate_runs(
    table: RunsTable = None,
    limit: Limit = None,
    json_file: JsonFile = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only rows whose source contains this."),
    ] = None,
    calibration: CalibrationFiles = None,
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
    report_file: ReportFile = None,
    csv_file: CsvFile = None,
    quiet: Quiet = False,
) -> None:
    """Compare predicted with measured training iterations, one line per framework and GPU."""
    from perfmodel import api

    files = ScoreFiles(json_file, limit, report_file, csv_file)
    files.outputs.check()
    with scoring(quiet) as progress:
        board = api.validate_runs(
            table,
            source=source,
            calibration=calibration or (),
            executor=executor.value,
            workers=workers,
            ray_address=ray_address,
            on_phase=progress,
        )
    show(board, files)


Table = Annotated[Path, typer.Argument(metavar="FILE", help="A table of measured kernels.")]


KERNELS: dict[KernelKind, str] = {
    "gemm": "matrix products",
    "attention": "attention",
    "experts": "layers of experts",
    "memory": "memory-bound kernels",
}


def _kernel_command(kind: KernelKind) -> Callable[..., None]:
    def command(
        table: Table,
        calibration: CalibrationFiles = None,
        limit: Limit = None,
        json_file: JsonFile = None,
        report_file: ReportFile = None,
        csv_file: CsvFile = None,
        quiet: Quiet = False,
    ) -> None:
        from perfmodel import api

        files = ScoreFiles(json_file, limit, report_file, csv_file)
        files.outputs.check()
        with scoring(quiet):
            board = api.validate(kind, [table], calibration=calibration or ())
        show(board, files)

    return command


def validate_fits(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Tables of runs; rows without a time failed."),
    ],
    json_file: JsonFile = None,
    report_file: ReportFile = None,
    csv_file: CsvFile = None,
    quiet: Quiet = False,
) -> None:
    """Compare the memory verdict with runs that failed and those of their source that ran."""
    from perfmodel import api
    from perfmodel.reports.scores import report_fits

    files = ScoreFiles(json_file, report_file=report_file, csv_file=csv_file)
    files.outputs.check()
    with scoring(quiet):
        board = api.validate_fits(tables)
    files.outputs.write(report_fits(board), board.to_json)


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def validate() -> None:
    """Compare predictions with measurements; exit 1 beyond the limit."""


app.command("collectives", epilog=VALIDATE_EPILOG)(validate_collectives)
for _kind, _what in KERNELS.items():
    app.command(_kind, help=f"Compare predicted with measured {_what}.")(_kernel_command(_kind))
app.command("runs")(validate_runs)
app.command("fits")(validate_fits)
