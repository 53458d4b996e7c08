"""`perfmodel validate`: predictions beside tables of measurements, one command a kind of table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.api.measured import KernelKind
from perfmodel.base.writing import STDOUT, write_file, write_output
from perfmodel.cli.collective_tables import (
    VALIDATE_EPILOG,
    Limit,
    ScoreFiles,
    scoring,
    show,
    validate_collectives_command,
)
from perfmodel.cli.options import (
    CalibrationFiles,
    ExecutorChoice,
    ExecutorOption,
    JsonFile,
    Quiet,
    RayAddress,
    ReportFile,
    Workers,
)

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
    quiet: Quiet = False,
) -> None:
    """Compare predicted with measured training iterations, one line per framework and GPU."""
    from perfmodel import api

    files = ScoreFiles(json_file, limit, report_file)
    files.check()
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
        quiet: Quiet = False,
    ) -> None:
        from perfmodel import api

        files = ScoreFiles(json_file, limit, report_file)
        files.check()
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
    quiet: Quiet = False,
) -> None:
    """Compare the memory verdict with runs that failed and those of their source that ran."""
    import orjson

    from perfmodel import api

    ScoreFiles(json_file, report_file=report_file).check()
    with scoring(quiet):
        board = api.validate_fits(tables)
    if json_file is not None:
        content = orjson.dumps(board.to_json(), option=orjson.OPT_INDENT_2)
        write_output(json_file, content.decode() + "\n")
    if report_file is not None:
        from perfmodel.reports.pages.scores import build_fit_page

        write_file(report_file, build_fit_page(board))
    if json_file != STDOUT:
        print("\n".join(board.lines()))


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def validate() -> None:
    """Compare predictions with measurements; exit 1 beyond the limit."""


app.command("collectives", epilog=VALIDATE_EPILOG)(validate_collectives_command)
for _kind, _what in KERNELS.items():
    app.command(_kind, help=f"Compare predicted with measured {_what}.")(_kernel_command(_kind))
app.command("runs")(validate_runs)
app.command("fits")(validate_fits)
