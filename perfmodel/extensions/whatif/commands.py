"""`perfmodel whatif`: change a job and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel import api
from perfmodel.base.options import Option
from perfmodel.cli.commands import command
from perfmodel.cli.options import LocalRun, Outputs, argument
from perfmodel.prediction.scenario import JobScenario

EPILOG = """\b
Examples:
  perfmodel whatif --list
  perfmodel whatif job/ --apply scale:match=gemm,factor=0.5
  perfmodel whatif job/ --apply "gap:before=SendRecv,rank=2,to=20.5ms" --apply host_overhead
  perfmodel whatif job/ --sweep scale:match=gemm,factor=0.25:1:x2 --report factors.html
  perfmodel whatif built_job/ --topology dgx_h100 --apply bucket:size=100MB
\b
JOB is a folder that `perfmodel import` or `save_job` wrote. A what-if is NAME, or
NAME:key=value,key=value. Patterns are found anywhere in a label, `*` is anything, `|` is or.
"""


ADVISE_EPILOG = """\b
Examples:
  perfmodel advise job/
  perfmodel advise built_job/ --topology dgx_h100
  perfmodel advise question.yaml --report advice.html
"""


@command(epilog=EPILOG)
def whatif(
    *,
    job: Annotated[str | None, argument("JOB", "Folder of a job.")] = None,
    apply: Annotated[
        tuple[str, ...],
        Option(metavar="NAME[:key=value,...]", help="A change; repeatable, in order."),
    ] = (),
    sweep: Annotated[
        str | None,
        Option(metavar="NAME:key=a,b,c", help="A change with several values of one parameter."),
    ] = None,
    list_names: Annotated[
        bool, Option(name="--list", help="List the changes with their parameters.")
    ] = False,
    asked: Annotated[dict[str, Any], JobScenario, "topology", "hosts", "stack", "mode"],
    force: Annotated[bool, Option(help="Also answer for recordings that replay badly.")] = False,
    run: LocalRun,
    files: Annotated[Outputs, "json_file", "csv_file", "report_file", "is_strict"],
) -> None:
    """Change a job and compare: time, critical path, stragglers."""
    if list_names:
        _print_list()
        return
    if job is None or not (apply or sweep):
        raise typer.BadParameter("name the job and the change: JOB --apply NAME, or --list")
    from perfmodel.extensions.whatif.report import report_whatif

    scenario = JobScenario(job, samples=0, **asked)
    with run.open() as where:
        answer = api.whatif(scenario, apply, sweep=sweep, force=force, **where)
    files.write(report_whatif(answer), answer.to_dict)


@command(epilog=ADVISE_EPILOG)
def advise(
    *,
    job: Annotated[str, argument("JOB", "Folder of a job, or a scenario file.")],
    asked: Annotated[dict[str, Any], JobScenario, "topology", "hosts", "stack"],
    force: Annotated[bool, Option(help="Also answer for recordings that replay badly.")] = False,
    files: Annotated[Outputs, "json_file", "csv_file", "report_file"],
) -> None:
    """Say what to do first: every what-if with a reason, ranked by what it saves."""
    from perfmodel.extensions.whatif.advising import report_advice

    is_file = Path(job).is_file()
    if is_file and any(value is not None for value in asked.values()):
        raise typer.BadParameter(f"{job} is a scenario: its machine and stack are said in it")
    answer = api.advise(job if is_file else JobScenario(job, **asked), force=force)
    files.write(report_advice(answer), answer.to_dict)


def _print_list() -> None:
    from perfmodel.extensions.whatif import load_recipes
    from perfmodel.reports.blocks import Report, Section, Sentences
    from perfmodel.reports.terminal import print_report

    print_report(
        Report(
            sections=[
                Section(name, [Sentences([one.does]), Sentences([one.usage])])
                for name, one in load_recipes().items()
            ]
        )
    )
