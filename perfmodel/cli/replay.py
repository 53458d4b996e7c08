"""`perfmodel replay`: a job replayed, and beside its recording where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    outputs = Outputs(json_file=json_file, report_file=report_file)
    outputs.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress
    from perfmodel.reports.recordings import report_replay, to_replay_document

    with show_progress(is_quiet=quiet) as progress:
        found = api.replay(
            api.JobScenario(str(job), topology, hosts, stack, samples=0),
            executor=executor_word(executor),
            workers=workers,
            ray_address=ray_address,
            is_explained=report_file is not None,
            on_phase=progress,
        )
    document = to_replay_document(found, job)
    outputs.write(report_replay(found, document.get("faults", ())), lambda: document)
