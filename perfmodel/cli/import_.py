"""`perfmodel import`: recorded traces of all ranks become a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import JobOut, JsonFile, Overwrite, Quiet

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel import traces/ --out job
  perfmodel import rank0.json.gz rank1.json.gz --out job --strict
  perfmodel import runs/ --out jobs        a folder of folders: one job each
  perfmodel import pytorch_et/ --out shapes
      execution traces alone: a job of shapes, priced by
      `perfmodel predict --job shapes --topology dgx1_v100`
"""


@app.command("import", epilog=EPILOG)
def import_traces(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Kineto, PyTorch execution trace or Chakra files of one job, a folder of them, or "
            "a folder of such. What a file is, is told by its content.",
        ),
    ],
    out: JobOut,
    strict: Annotated[
        bool, typer.Option("--strict", help="Any fault of the traces is an error.")
    ] = False,
    overwrite: Overwrite = False,
    limits_factor: Annotated[
        float,
        typer.Option(metavar="FACTOR", help="Times as much as usual that a file may unpack to."),
    ] = 1.0,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Turn recorded traces of all ranks into a job, and replay it once to score it."""
    from perfmodel import api
    from perfmodel.recordings.import_files import ImportWishes
    from perfmodel.reports.progress import FileProgress
    from perfmodel.reports.recordings import report_import
    from perfmodel.reports.terminal import print_report
    from traces.packed import DEFAULT_LIMITS

    if not 0 < limits_factor <= 1e6:
        raise InputError(
            f"--limits-factor: must be above 0 and at most 1000000, got {limits_factor}."
        )
    wishes = ImportWishes(strict, overwrite, DEFAULT_LIMITS.scaled(limits_factor))
    with FileProgress(is_quiet=quiet) as progress:
        found = api.import_traces(paths, out, wishes, progress.tell)
    documents = [one.document() for one in found]
    document: dict[str, Any] = (
        documents[0] if len(documents) == 1 else {"kind": "imports", "jobs": documents}
    )
    write_json(json_file, document)
    if json_file != STDOUT:
        for imported in documents:
            print_report(report_import(imported))
