"""`perfmodel whatif`: change a job and compare it with what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import (
    CsvFile,
    JobHosts,
    JobMachine,
    JobStack,
    JsonFile,
    NearExecutorOption,
    PlotFile,
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
  perfmodel whatif --list
  perfmodel whatif job/ --apply scale:match=gemm,factor=0.5
  perfmodel whatif job/ --apply "gap:before=SendRecv,rank=2,to=20.5ms" --apply host_overhead
  perfmodel whatif job/ --apply overlap --sweep compress:ratio=0.25:1:x2 --plot ratios.png
  perfmodel whatif built_job/ --topology dgx_h100 --apply bucket:size=100MB
\b
JOB is a folder that `perfmodel import` or `save_job` wrote. A what-if is NAME, or
NAME:key=value,key=value. Patterns are found anywhere in a label, `*` is anything, `|` is or.
"""


@app.command(epilog=EPILOG)
def whatif(
    job: Annotated[
        Path | None, typer.Argument(metavar="JOB", help="Folder of a job.", show_default=False)
    ] = None,
    apply: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:key=value,...]", help="A change; repeatable, in order."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:key=a,b,c", help="A change with one parameter over several values."
        ),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="List the changes with their parameters.")
    ] = False,
    topology: JobMachine = None,
    hosts: JobHosts = None,
    stack: JobStack = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Built jobs: one iteration from a barrier.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Answer for recordings that replay badly, too.")
    ] = False,
    executor: NearExecutorOption = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    plot_file: PlotFile = None,
    report_file: ReportFile = None,
    quiet: Quiet = False,
) -> None:
    """Change a job and compare: time, critical path, who waits for whom."""
    if list_names:
        _print_list()
        return
    if job is None or not (apply or sweep):
        raise typer.BadParameter("say which job to change and how: JOB --apply NAME, or --list")
    outputs = Outputs(
        json_file=json_file, report_file=report_file, csv_file=csv_file, plot_file=plot_file
    )
    outputs.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress
    from perfmodel.reports.whatif import report_whatif

    mode = api.Mode.ISOLATED if isolated else api.Mode.PERIOD
    with show_progress(is_quiet=quiet) as progress:
        answer = api.whatif(
            api.JobScenario(str(job), topology, hosts, stack, mode, samples=0),
            apply or (),
            sweep=sweep,
            force=force,
            executor=executor_word(executor),
            workers=workers,
            ray_address=ray_address,
            on_phase=progress,
        )
    outputs.write(report_whatif(answer), answer.to_dict, answer.plot)


def _print_list() -> None:
    from inspect import getdoc

    from perfmodel.reports.listings import report_whatifs
    from perfmodel.reports.terminal import print_report
    from perfmodel.whatif import TRANSFORMATIONS
    from perfmodel.whatif.parsing import list_parameters

    listed = []
    for name, kind in TRANSFORMATIONS.items():
        words = ", ".join(parameter.words for parameter in list_parameters(name))
        listed.append((name, (getdoc(kind) or "").splitlines()[0], words))
    print_report(report_whatifs(listed))
