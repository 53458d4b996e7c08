"""`perfmodel replay`: a job replayed, and beside its recording where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.base.writing import STDOUT
from perfmodel.cli.options import (
    ExecutorChoice,
    ExecutorOption,
    JobHosts,
    JobMachine,
    JobStack,
    JsonFile,
    RayAddress,
    Workers,
    read_machine,
)
from perfmodel.cli.outputs import Outputs
from perfmodel.cli.recorded_outputs import print_replay, write_json

if TYPE_CHECKING:
    from perfmodel.prediction.replaying import ReplayedJob

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
    executor: ExecutorOption = ExecutorChoice.SERIAL,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
) -> None:
    """Replay a job; one that was recorded is compared with its recording."""
    Outputs(json_file=json_file).check()
    from perfmodel import api

    found = api.replay(
        job,
        machine=read_machine(topology, hosts, stack),
        executor=executor.value,
        workers=workers,
        ray_address=ray_address,
    )
    document = _to_document(found)
    write_json(json_file, document)
    if json_file != STDOUT:
        print_replay(document)


def _to_document(found: ReplayedJob) -> dict[str, Any]:
    from perfmodel.recordings.documents import SCHEMA_VERSION, self_replay_document

    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "replay",
        "job": found.graph.facts.name,
        "ranks": found.graph.rank_count,
        "tasks": found.graph.task_count,
        "iteration_time_ms": found.iteration_ns / 1e6,
        "span_ms": found.span_ns / 1e6,
        "assumptions": list(found.graph.facts.assumptions),
    }
    if found.score is not None:
        document["self_replay"] = self_replay_document(found.score)
    if found.report is not None:
        document["recorded_starts"] = found.report.recorded_starts
        document["faults"] = list(found.report.faults)
    return document
