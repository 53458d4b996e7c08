"""`perfmodel replay`: a job replayed, and beside its recording where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import (
    JobHosts,
    JobMachine,
    JobStack,
    JsonFile,
    NearExecutorOption,
    Quiet,
    RayAddress,
    ReportFile,
    Workers,
    executor_word,
)
from perfmodel.cli.outputs import Outputs
from perfmodel.cli.recorded_outputs import print_replay

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Answer

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel replay job --json -
  perfmodel replay built_job --topology dgx_h100 --executor ray
"""


@app.command(epilog=EPILOG)
def replay(
    job: Annotated[
        Path, typer.Argument(metavar="JOB", help="A job that `import` or `save_job` wrote.")
    ],
    topology: JobMachine = None,
    hosts: JobHosts = None,
    stack: JobStack = None,
    executor: NearExecutorOption = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    report_file: ReportFile = None,
    quiet: Quiet = False,
) -> None:
    """Replay a job; one that was recorded is compared with its recording."""
    Outputs(json_file=json_file, report_file=report_file).check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=quiet) as progress:
        found = api.replay(
            api.JobScenario(str(job), topology, hosts, stack, samples=0),
            executor=executor_word(executor),
            workers=workers,
            ray_address=ray_address,
            is_explained=report_file is not None,
            on_phase=progress,
        )
    if report_file is not None:
        found.save_report(report_file)
    document = _to_document(found, job)
    write_json(json_file, document)
    if json_file != STDOUT:
        print_replay(document)
        if report_file is not None:
            print(f"Wrote {report_file}")


def _to_document(found: Answer, folder: Path) -> dict[str, Any]:
    from perfmodel.recordings.documents import SCHEMA_VERSION, self_replay_document
    from perfmodel.recordings.storage import is_recorded_job, load_report

    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "replay",
        "job": found.facts.job,
        "ranks": found.facts.rank_count,
        "tasks": found.facts.task_count,
        "iteration_time_ms": found.iteration_ns / 1e6,
        "span_ms": found.span_ns / 1e6,
        "assumptions": list(found.assumptions),
    }
    if found.score is not None:
        document["self_replay"] = self_replay_document(found.score)
    if is_recorded_job(folder):
        report = load_report(folder)
        document["recorded_starts"] = report.recorded_starts
        document["faults"] = list(report.all_faults)
    return document
