"""`perfmodel trace`: a look into recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel import api
from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import JsonFile
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
    json_file: JsonFile = None,
) -> None:
    """What every stream of every rank spent its time on."""
    from perfmodel.reports.progress import show_files
    from perfmodel.reports.recordings import draw_streams, report_streams
    from perfmodel.reports.terminal import print_report

    with show_files() as progress:
        documents = api.trace_stats(paths, progress)
    document = documents[0] if len(documents) == 1 else {"kind": "trace_stats", "jobs": documents}
    write_json(json_file, document)
    if plot is not None:
        draw_streams(documents, plot)
    if json_file != STDOUT:
        for found in documents:
            print_report(report_streams(found))


@app.command(epilog=DIFF_EPILOG)
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="Kineto file, or folder of a job.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The same job, recorded later.")],
    top: Annotated[int, typer.Option(min=1, help="Lines of each table.")] = 10,
    json_file: JsonFile = None,
) -> None:
    """What got slower from A to B: by operator, kernel, range of the profiler, and wait."""
    from perfmodel.reports.recordings import report_diff
    from perfmodel.reports.terminal import print_report

    document = api.trace_diff(before, after)
    write_json(json_file, document)
    if json_file != STDOUT:
        print_report(report_diff(document, top=top))


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
    from perfmodel.recordings.extraction import MISSING

    written = api.trace_extract(paths, out, topology=topology)
    for path in written:
        print(printable(str(path)))
    for name, reason in MISSING.items():
        if name not in {path.stem for path in written}:
            print(f"no {name}.csv: {reason}")


@app.command(epilog=CHAKRA_EPILOG)
def chakra(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A job that `import` wrote.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where files go.")],
) -> None:
    """Write a recorded job as Chakra execution traces, one file per rank."""
    for path in api.trace_chakra(job, out):
        print(printable(str(path)))
