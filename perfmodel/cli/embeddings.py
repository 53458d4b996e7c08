"""`perfmodel embeddings`: look into files of real indices."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from perfmodel import api
from perfmodel.base.writing import STDOUT, write_file, write_json
from perfmodel.cli.options import JsonFile
from perfmodel.cli.outputs import Outputs

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

SCHEMA_VERSION = 1


@app.callback()
def embeddings() -> None:
    """Look into files of real indices."""


@app.command()
def describe(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="npz, npy, parquet, pt or pth.")],
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Samples of a batch.")] = 4096,
    json_file: JsonFile = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw reuse and pooling.")
    ] = None,
) -> None:
    """Show pooling and reuse of the indices in FILE, over the whole set and within batches."""
    Outputs(json_file=json_file, plot_file=plot_file).check()
    found = api.describe_indices(file, batch=batch)
    if plot_file is not None:
        from perfmodel.reports.listings import draw_statistics

        write_file(plot_file, draw_statistics(found))
    document = {
        "schema_version": SCHEMA_VERSION,
        "source": found.source,
        "samples": found.sample_count,
        "batch": found.batch_size,
        "tables": [asdict(table) for table in found.tables],
        "set_reuse_lookup_shares": found.set_reuse.of_lookups.tolist(),
        "batch_reuse_lookup_shares": found.batch_reuse.of_lookups.tolist(),
    }
    write_json(json_file, document)
    if json_file != STDOUT:
        from perfmodel.reports.listings import report_statistics
        from perfmodel.reports.terminal import print_report

        print_report(report_statistics(found))
