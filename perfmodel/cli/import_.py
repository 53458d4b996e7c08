"""`perfmodel import`: recorded traces of all ranks become a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.base.writing import STDOUT
from perfmodel.cli.recorded_outputs import print_import, write_json

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel import traces/ --out job
  perfmodel import rank0.json.gz rank1.json.gz --out job
  perfmodel import runs/ --out jobs        a folder of folders: one job each
"""


@app.command("import", epilog=EPILOG)
def import_traces(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Kineto or Chakra files of one job, a folder of them, or a folder of such.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="JOB", help="Folder to write the job to.")],
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write what was found as JSON; - is stdout."),
    ] = None,
) -> None:
    """Turn recorded traces of all ranks into a job, and replay it once to score it."""
    from perfmodel import api
    from perfmodel.recordings.documents import import_document
    from perfmodel.recordings.import_files import are_chakra

    read = api.import_chakra if are_chakra(paths) else api.import_kineto
    documents = [
        import_document(found.job, found.score) | {"folder": str(found.folder)}
        for found in read(paths, out)
    ]
    document = documents[0] if len(documents) == 1 else {"kind": "imports", "jobs": documents}
    write_json(json_file, document)
    if json_file != STDOUT:
        for told in documents:
            print_import(told)
