"""`perfmodel replay`: the times of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from perfmodel import api
from perfmodel.cli.commands import command
from perfmodel.cli.options import LocalRun, Outputs, argument
from perfmodel.prediction.scenario import JobScenario

EPILOG = """\b
Examples:
  perfmodel replay job --json -
  perfmodel replay built_job --topology dgx_h100 --executor ray
"""


@command(epilog=EPILOG)
def replay(
    job: Annotated[
        str,
        argument("JOB", "A job that `import` or `save_job` wrote."),
    ],
    asked: Annotated[dict[str, Any], JobScenario, "topology", "hosts", "stack"],
    run: LocalRun,
    files: Annotated[Outputs, "json_file", "report_file", "is_strict"],
) -> None:
    """Replay a job; a recorded job is compared with its recording."""
    from perfmodel.reports.replay import report_replay, to_replay_document

    scenario = JobScenario(job, samples=0, **asked)
    with run.open() as where:
        found = api.replay(scenario, is_explained=files.report_file is not None, **where)
    document = to_replay_document(found, Path(job))
    files.write(report_replay(found, document.get("faults", ())), lambda: document)
