"""`perfmodel validate runs`: measured training runs beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.collective_tables import Limit, show
from perfmodel.cli.options import ExecutorChoice, ExecutorOption, JsonFile, RayAddress, Workers

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
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
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
