"""`perfmodel validate runs`: measured training runs beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.collective_tables import JsonFile, Limit, show
from perfmodel.cli.predict import ExecutorChoice

Table = Annotated[
    Path, typer.Argument(metavar="FILE", help="A table of measured runs, .csv or .csv.gz.")
]


def validate_runs(
    table: Table,
    limit: Limit = None,
    json_file: JsonFile = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only rows whose source contains this, e.g. BLOOM."),
    ] = None,
    executor: Annotated[
        ExecutorChoice, typer.Option(help="Where rows are worked on; auto takes Ray if it pays.")
    ] = ExecutorChoice.AUTO,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Ray workers; default: one a CPU core.")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Join this Ray cluster, e.g. host:6379.")
    ] = None,
) -> None:
    """Compare predicted with measured training iterations, one line a source and GPU."""
    from perfmodel import api

    board = api.validate_runs(
        table,
        source=source,
        executor=executor.value,
        workers=workers,
        ray_address=ray_address,
    )
    show(board, json_file, limit)
