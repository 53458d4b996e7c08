"""`perfmodel trace`: a look into recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.base.writing import STDOUT
from perfmodel.cli.recorded_outputs import (
    FileProgress,
    print_diff,
    print_stream_parts,
    write_json,
)
from perfmodel.reports.text import printable

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

EPILOG = """\b
Examples:
  perfmodel trace stats traces/ --plot streams.png
  perfmodel trace stats rank0.json.gz --json -
"""
EXTRACT_EPILOG = """\b
Example:
  perfmodel trace extract traces/ --topology dgx_a100 --out tables/
"""
DIFF_EPILOG = """\b
Example:
  perfmodel trace diff before.json.gz after.json.gz --top 5
"""
CHAKRA_EPILOG = """\b
Example:
  perfmodel trace chakra job/ --out chakra/
"""


@app.callback()
def trace() -> None:
    """Look into recorded traces."""


@app.command(epilog=EPILOG)
def stats(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Kineto files, or folders with one file per rank."),
    ],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture of the parts, e.g. streams.png.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the parts as JSON; - is stdout."),
    ] = None,
) -> None:
    """What every stream of every rank spent its time on."""
    from perfmodel.recordings.documents import stream_parts_document
    from perfmodel.recordings.known_work import known_share_of_trace
    from perfmodel.recordings.stream_parts import split_streams
    from traces.job_trace import load_job_traces

    with FileProgress() as progress:
        recordings = load_job_traces(paths, on_file=progress.tell)
    documents = [
        stream_parts_document(one.name, split_streams(one), known_share_of_trace(one))
        for one in recordings
    ]
    document = documents[0] if len(documents) == 1 else {"kind": "trace_stats", "jobs": documents}
    write_json(json_file, document)
    if plot is not None:
        from perfmodel.reports.streams import plot_stream_parts

        plot_stream_parts(documents, plot)
    if json_file != STDOUT:
        for found in documents:
            print_stream_parts(found)


@app.command(epilog=DIFF_EPILOG)
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="Kineto file, or folder of a job.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The same job, recorded later.")],
    top: Annotated[int, typer.Option(min=1, help="Lines of each table.")] = 10,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all lines as JSON; - is stdout."),
    ] = None,
) -> None:
    """What got slower from A to B: by operator, kernel, range of the profiler, and wait."""
    from perfmodel.recordings.documents import diff_document
    from perfmodel.recordings.trace_diff import diff_traces
    from traces.job_trace import load_job_trace

    document = diff_document(diff_traces(load_job_trace([before]), load_job_trace([after])))
    write_json(json_file, document)
    if json_file != STDOUT:
        print_diff(document, top=top)


@app.command(epilog=EXTRACT_EPILOG)
def extract(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Kineto files, or a folder with one file per rank."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where tables go.")],
    topology: Annotated[
        str, typer.Option(metavar="NAME", help="Machine of the recording, for the tables.")
    ] = "unknown",
) -> None:
    """Tables for `calibrate` and `validate`: host overheads, matrix products, collectives."""
    from perfmodel.recordings.extraction import MISSING, extract_tables, write_tables
    from traces.job_trace import load_job_trace

    tables = extract_tables(load_job_trace(paths), topology=topology)
    for path in write_tables(tables, out):
        print(printable(str(path)))
    for name, lines in tables.items():
        if not lines:
            print(f"no {name}.csv: {MISSING[name]}")


@app.command(epilog=CHAKRA_EPILOG)
def chakra(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A job that `import` wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where files go.")],
) -> None:
    """Write a recorded job as Chakra execution traces, one file per rank."""
    from perfmodel.recordings.chakra_jobs import write_chakra_job
    from perfmodel.recordings.storage import load_recorded_job

    for path in write_chakra_job(load_recorded_job(job), out):
        print(printable(str(path)))
