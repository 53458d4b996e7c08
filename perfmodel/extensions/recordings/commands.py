"""`perfmodel import` and `trace`: recorded traces as jobs, and what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.base.extensions import load_extension
from perfmodel.base.options import Option, Overwrite
from perfmodel.cli.commands import command, command_group
from perfmodel.cli.options import JobOut, Outputs, Quiet, argument

if TYPE_CHECKING:
    from perfmodel.extensions.recordings.import_files import ImportOptions
    from perfmodel.reports.blocks import Report

IMPORT_EPILOG = """\b
Examples:
  perfmodel import traces/ --out job
  perfmodel import rank0.json.gz rank1.json.gz --out job --strict
  perfmodel import runs/ --out jobs        a folder of folders: one job each
  perfmodel import pytorch_et/ --out shapes
      execution traces alone: a job of shapes, priced by
      `perfmodel predict --job shapes --topology dgx1_v100`
"""
STATS_EPILOG = """\b
Examples:
  perfmodel trace stats traces/
  perfmodel trace stats rank0.json.gz --json -
"""
DIFF_EPILOG = """\b
Example:
  perfmodel trace diff before.json.gz after.json.gz --top 5
"""
EXTRACT_EPILOG = """\b
Example:
  perfmodel trace extract traces/ --topology dgx_a100 --out tables/
"""
KinetoFiles = Annotated[
    tuple[str, ...],
    argument("PATH...", "Kineto files, or folders with one file per rank."),
]
trace = command_group(help="Inspect recorded traces.")


@dataclass(frozen=True)
class ImportQuestion:
    """The traces to import, where to, and what is accepted."""

    paths: Annotated[
        tuple[str, ...],
        argument(
            "PATH...",
            "Kineto, Nsight Systems (SQLite), PyTorch execution trace or Chakra files of one job, "
            "a folder of them, or a folder of such folders. The format is detected by content.",
        ),
    ]
    out: JobOut
    strict: Annotated[bool, Option(help="Refuse traces with any fault.")] = False
    overwrite: Overwrite = False
    limits_factor: Annotated[
        float,
        Option(metavar="FACTOR", help="Raise the limit on the unpacked size of files."),
    ] = 1.0

    @property
    def options(self) -> ImportOptions:
        """What is accepted, as `perfmodel.api` takes it."""
        from perfmodel.extensions.recordings.import_files import ImportOptions
        from traces.file_stream import DEFAULT_LIMITS

        factor = self.limits_factor
        if not 0 < factor <= 1e6:
            raise InputError(f"--limits-factor: must be above 0 and at most 1000000, got {factor}.")
        return ImportOptions(self.strict, self.overwrite, DEFAULT_LIMITS.scaled(factor))


@command(epilog=IMPORT_EPILOG, name="import")
def import_traces(
    question: ImportQuestion, files: Annotated[Outputs, "json_file"], quiet: Quiet = False
) -> None:
    """Turn recorded traces of all ranks into a job, and replay it once to score it."""
    from perfmodel.extensions.recordings.report import report_import
    from perfmodel.reports.terminal import show_files

    with show_files(is_quiet=quiet) as progress:
        found = api.import_traces(question.paths, question.out, question.options, progress)
    _write_jobs(files, [one.document() for one in found], "imports", report_import)


def _write_jobs(
    files: Outputs,
    documents: list[dict[str, Any]],
    kind: str,
    report: Callable[[dict[str, Any]], Report],
) -> None:
    """Write the answers about several jobs: one after the other, or as JSON of this *kind*."""
    document = documents[0] if len(documents) == 1 else {"kind": kind, "jobs": documents}
    files.write([report(found) for found in documents], lambda: document)


@command(trace, epilog=STATS_EPILOG)
def stats(
    paths: KinetoFiles,
    files: Annotated[Outputs, "json_file"],
) -> None:
    """What every stream of every rank spends its time on."""
    from perfmodel.extensions.recordings.report import report_streams
    from perfmodel.reports.terminal import show_files

    with show_files() as progress:
        documents = api.trace_stats(paths, progress)
    _write_jobs(files, documents, "trace_stats", report_streams)


@command(trace, epilog=DIFF_EPILOG)
def diff(
    *,
    before: Annotated[str, argument("A", "Kineto file, or folder of a job.")],
    after: Annotated[str, argument("B", "The same job, recorded later.")],
    top: Annotated[int, Option(min=1, help="Lines per table.")] = 10,
    files: Annotated[Outputs, "json_file"],
) -> None:
    """What is slower in B than in A: by operator, kernel, profiler range, and wait."""
    from perfmodel.extensions.recordings.report import report_diff

    document = api.trace_diff(before, after)
    files.write(report_diff(document, top=top), lambda: document)


@command(trace, epilog=EXTRACT_EPILOG)
def extract(
    paths: KinetoFiles,
    out: Annotated[str, Option(metavar="FOLDER", help="Folder to write the tables to.")],
    topology: Annotated[
        str, Option(metavar="NAME", help="Machine of the recording, for the tables.")
    ] = "unknown",
) -> None:
    """Write tables for `calibrate` and `validate`: host overheads, GEMMs, collectives."""
    from perfmodel.base.writing import printable

    written = api.trace_extract(paths, out, topology=topology)
    for path in written:
        print(printable(str(path)))
    for name, reason in load_extension("measurements", "extraction").MISSING.items():
        if name not in {path.stem for path in written}:
            print(f"no {name}.csv: {reason}")
