"""`perfmodel validate`: predictions beside tables of measurements, one command a kind of table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.collective_tables import Limit, show, validate_collectives_command
from perfmodel.cli.options import (
    ExecutorChoice,
    ExecutorOption,
    JsonFile,
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
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
    report_file: ReportFile = None,
) -> None:
    """Compare predicted with measured training iterations, one line per framework and GPU."""
    from perfmodel import api

    board = api.validate_runs(
        table,
        source=source,
        executor=executor.value,
        workers=workers,
        ray_address=ray_address,
    )
    show(board, json_file, limit, report_file)


Table = Annotated[Path, typer.Argument(metavar="FILE", help="A table of measured kernels.")]


def validate_gemm(
    table: Table,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
) -> None:
    """Compare predicted with measured matrix products."""
    from perfmodel import api

    show(api.validate("gemm", [table]), json_file, limit, report_file)


def validate_attention(
    table: Table,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
) -> None:
    """Compare predicted with measured attention."""
    from perfmodel import api

    show(api.validate("attention", [table]), json_file, limit, report_file)


def validate_experts(
    table: Table,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
) -> None:
    """Compare predicted with measured layers of experts."""
    from perfmodel import api

    show(api.validate("experts", [table]), json_file, limit, report_file)


def validate_memory(
    table: Table,
    limit: Limit = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
) -> None:
    """Compare predicted with measured memory-bound kernels."""
    from perfmodel import api

    show(api.validate("memory", [table]), json_file, limit, report_file)


def validate_fits(
    tables: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Tables of runs; rows without a time failed."),
    ],
    json_file: JsonFile = None,
) -> None:
    """Compare the memory verdict with runs that failed and those of their source that ran."""
    import orjson

    from perfmodel import api
    from perfmodel.base.writing import STDOUT, write_output

    board = api.validate_fits(tables)
    if json_file is not None:
        content = orjson.dumps(board.to_json(), option=orjson.OPT_INDENT_2)
        write_output(json_file, content.decode() + "\n")
    if json_file != STDOUT:
        print("\n".join(board.lines()))


app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def validate() -> None:
    """Compare predictions with measurements; exit 1 beyond the limit."""


app.command("collectives")(validate_collectives_command)
app.command("gemm")(validate_gemm)
app.command("attention")(validate_attention)
app.command("experts")(validate_experts)
app.command("memory")(validate_memory)
app.command("runs")(validate_runs)
app.command("fits")(validate_fits)
