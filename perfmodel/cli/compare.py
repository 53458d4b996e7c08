"""`perfmodel compare`: several scenarios, jobs or machines side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli.options import (
    CalibrationFiles,
    CsvFile,
    ExecutorChoice,
    ExecutorOption,
    JsonFile,
    Overrides,
    PlotFile,
    Quiet,
    RayAddress,
    ReportFile,
    Workers,
)
from perfmodel.cli.outputs import Outputs
from perfmodel.prediction.scenario import Scenario

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel compare a.yaml b.yaml
  perfmodel compare job_before/ job_after/ --csv jobs.csv
  perfmodel compare jobs/*/ --topology dgx_h100 --price 2.5
  perfmodel compare --topology dgx_a100,dgx_h100 --workload llama3_8b --hosts 2
  perfmodel compare --topology dgx_h100 --workload llama3_8b,gpt2_xl --plot models.png
\b
`perfmodel init scenario --out a.yaml` writes a file to start from.
"""


@app.command(epilog=EPILOG)
def compare(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|JOB...", help="Scenario files or folders of jobs."),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME...]", help="Machines instead of files, or that of jobs."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="NAME[,NAME...]", help="Models on those machines.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Hosts of those machines.")
    ] = None,
    overrides: Overrides = None,
    stack: Annotated[
        str | None, typer.Option(metavar="NAME[,NAME...]", help="Software stacks.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="MONEY", min=0, help="Price of a GPU for an hour; orders by time."),
    ] = None,
    calibration: CalibrationFiles = None,
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    plot_file: PlotFile = None,
    report_file: ReportFile = None,
    quiet: Quiet = False,
) -> None:
    """Set scenarios side by side: time, throughput, memory, what bounds them."""
    named = {"topology": topology, "workload": workload, "hosts": hosts, "stack": stack}
    given = {key: value for key, value in named.items() if value is not None}
    machine = {key: given.pop(key) for key in ("topology", "stack") if files and key in given}
    if bool(files) == bool(given):
        raise typer.BadParameter("name scenario files or jobs, or machines with --topology a,b")
    outputs = Outputs(
        json_file=json_file, csv_file=csv_file, plot_file=plot_file, report_file=report_file
    )
    outputs.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    place: dict[str, Any] = {
        "executor": executor.value,
        "workers": workers,
        "ray_address": ray_address,
    }
    with show_progress(is_quiet=quiet) as progress:
        if files:
            jobs = api.name_jobs(files, **machine) if machine else files
            found = api.compare(jobs, on_phase=progress, **place)
        else:
            base, axes = _split(given, tuple(overrides or ()), tuple(calibration or ()))
            found = api.sweep(base, axes, on_phase=progress, **place)
    outputs.write_comparison(found if price is None else found.priced(price))


def _split(
    given: dict[str, str], overrides: tuple[str, ...], calibration: tuple[str, ...]
) -> tuple[Scenario, list[str]]:
    """A scenario of the first values, and what has several of them."""
    from perfmodel.base.value_lists import expand_values

    values = {key: expand_values(text) for key, text in given.items()}
    axes = [f"{key}={','.join(several)}" for key, several in values.items() if len(several) > 1]
    if not axes or "topology" not in values:
        raise typer.BadParameter(
            "give two or more of something, such as --topology dgx_a100,dgx_h100"
        )
    first = {key: several[0] for key, several in values.items() if key != "hosts"}
    hosts = values.get("hosts", ("1",))[0]
    if not hosts.isdecimal():
        raise typer.BadParameter("must be numbers like 8 or 1,2,4", param_hint="--hosts")
    words: dict[str, Any] = {**first, "hosts": int(hosts), "overrides": overrides}
    words["calibration"] = calibration
    return Scenario(**words), axes
