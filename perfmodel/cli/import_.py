"""`perfmodel import`: recorded traces of all ranks become a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.recorded_outputs import STDOUT, print_import, write_json

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
    from perfmodel.recordings.chakra_jobs import load_chakra_job
    from perfmodel.recordings.documents import import_document
    from perfmodel.recordings.importing import import_job
    from perfmodel.recordings.self_replay import self_replay
    from perfmodel.recordings.storage import save_recorded_job
    from traces.job_trace import load_job_traces

    chakra = _chakra_files(paths)
    jobs = [load_chakra_job(chakra)] if chakra else [import_job(t) for t in load_job_traces(paths)]
    documents = []
    for job in jobs:
        score = self_replay(job)
        folder = out if len(jobs) == 1 else out / job.graph.facts.name
        save_recorded_job(job, folder)
        documents.append(import_document(job, score) | {"folder": str(folder)})
    document = documents[0] if len(documents) == 1 else {"kind": "imports", "jobs": documents}
    write_json(json_file, document)
    if json_file != STDOUT:
        for found in documents:
            print_import(found)


def _chakra_files(paths: list[Path]) -> list[Path]:
    """The Chakra files among *paths*, if they are nothing else."""
    from traces.job_trace import TraceFormat, detect_format

    files = [
        file
        for path in paths
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if file.is_file()
    ]
    formats = {detect_format(file) for file in files}
    return files if formats == {TraceFormat.CHAKRA} else []
