"""`perfmodel replay`: a recorded job replayed with its own durations, beside the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.recorded_outputs import STDOUT, print_self_replay, write_json

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Example:
  perfmodel replay job --json -
"""


@app.command(epilog=EPILOG)
def replay(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A job that `import` wrote.")],
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the answer as JSON; - is stdout."),
    ] = None,
) -> None:
    """Replay a recorded job and compare it with the recording."""
    from perfmodel.recordings.documents import SCHEMA_VERSION, self_replay_document
    from perfmodel.recordings.self_replay import self_replay
    from perfmodel.recordings.storage import load_recorded_job

    recorded = load_recorded_job(job)
    score = self_replay(recorded)
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "replay",
        "job": recorded.graph.facts.name,
        "ranks": recorded.graph.rank_count,
        "tasks": recorded.graph.task_count,
        "iteration_time_ms": score.iteration.replayed_ns / 1e6,
        "self_replay": self_replay_document(score),
        "recorded_starts": recorded.report.recorded_starts,
        "faults": list(recorded.report.faults),
        "assumptions": list(recorded.graph.facts.assumptions),
    }
    write_json(json_file, document)
    if json_file != STDOUT:
        print_self_replay(document)
