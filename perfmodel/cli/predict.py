"""`perfmodel predict`: one scenario or job, its answer on the screen and in files.

Files that cannot be written are found out before the work, not after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.cli.options import ExecutorChoice, ExecutorOption, JsonFile, RayAddress, Workers
from perfmodel.cli.outputs import Outputs
from perfmodel.prediction.scenario import (
    DEFAULT_SAMPLES,
    DEFAULT_WORKLOAD,
    Interference,
    JobScenario,
    Mode,
    Scenario,
)
from perfmodel.stacks.profiles import list_stacks, load_stack
from perfmodel.workloads.catalog import list_workloads


def print_workloads() -> None:
    """Print the workloads and the software stacks that come with perfmodel."""
    console = Console(width=80, highlight=False)
    workloads = [(title.name, title.description) for title in list_workloads()]
    console.print(_table("Workloads (--workload)", workloads))
    stacks = [(name, load_stack(name).description) for name in list_stacks()]
    console.print(_table("Software stacks (--stack)", stacks))
    console.print(f"Without --workload it is {DEFAULT_WORKLOAD}. Own YAML files work the same way.")


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for name, description in rows:
        table.add_row(Text(name), Text(" ".join(description.split())))
    return table


app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel predict --topology dgx_h100.yaml
  perfmodel predict --workload llama3_70b --topology dgx_h100 --hosts 16 --json -
  perfmodel predict --workload my_model.yaml --topology my_machine.yaml
  perfmodel predict --topology dgx_a100 --set batch=16384 --report report.html
  perfmodel predict --topology quad_a100 --tables tables.yaml --plan plan.json
  perfmodel predict --job job/
  perfmodel predict --list
\b
--debug, anywhere on the line, shows the traceback of an error.
"""


@app.command(epilog=EPILOG)
def predict(
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Machine: a file or a name from `perfmodel topology list`."
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"Model: a file or a name from --list; default: {DEFAULT_WORKLOAD}.",
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="JOB", help="Instead of a model: a folder that `import` or `save_job` wrote."
        ),
    ] = None,
    list_workloads: Annotated[
        bool, typer.Option("--list", help="List the workloads and stacks that come along.")
    ] = False,
    hosts: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of hosts, e.g. 16; default: 1.")
    ] = None,
    ranks_per_host: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Ranks on each host, e.g. 4; default: one a GPU."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a workload field, e.g. batch=4096; repeatable.",
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tables instead of the model's: YAML, CSV or JSON."),
    ] = None,
    indices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Real indices of those tables: npz, parquet or pt."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sharding plan as JSON, e.g. from `rank --plan-out`."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Software stack, e.g. pytorch_eager; default: the workload's."
        ),
    ] = None,
    isolated: Annotated[
        bool,
        typer.Option("--isolated", help="Answer with one iteration that starts at a barrier."),
    ] = False,
    no_interference: Annotated[
        bool,
        typer.Option("--no-interference", help="Let what overlaps take as long as alone."),
    ] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the interval's samples.")
    ] = 0,
    samples: Annotated[
        int,
        typer.Option(
            metavar="N", min=2, help="How often uncertain costs are drawn for the interval."
        ),
    ] = DEFAULT_SAMPLES,
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace-out", metavar="FILE", help="Write a timeline for Perfetto."),
    ] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a web page.")
    ] = None,
) -> None:
    """Predict how long one training iteration takes, and why."""
    if list_workloads:
        print_workloads()
        return
    mode = Mode.ISOLATED if isolated else Mode.PERIOD
    interference = Interference.LEFT_OUT if no_interference else Interference.COUNTED
    scenario: Scenario | JobScenario
    if job is not None:
        _check_alone(workload=workload, set=overrides, ranks_per_host=ranks_per_host)
        _check_alone(tables=tables, indices=indices, plan=plan)
        scenario = JobScenario(job, topology, hosts, stack, mode, seed, samples, interference)
    else:
        scenario = Scenario(
            topology=_check_machine(topology),
            workload=workload or DEFAULT_WORKLOAD,
            overrides=tuple(overrides or ()),
            hosts=hosts or 1,
            ranks_per_host=ranks_per_host,
            stack=stack,
            mode=mode,
            seed=seed,
            samples=samples,
            tables=_text(tables),
            indices=_text(indices),
            plan=_text(plan),
            interference=interference,
        )
    outputs = Outputs(json_file=json_file, trace_file=trace_file, report_file=report_file)
    outputs.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    with show_progress() as progress:
        prediction = api.predict(
            scenario,
            executor=executor.value,
            workers=workers,
            ray_address=ray_address,
            on_phase=progress,
        )
    outputs.write(prediction)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _check_machine(topology: str | None) -> str:
    if topology is None:
        raise typer.BadParameter(
            "say which machine, for example --topology dgx_h100.yaml; "
            "`perfmodel topology list` shows them",
            param_hint="--topology",
        )
    return topology


def _check_alone(**options: object) -> None:
    """Refuse *options* that describe a model, which a job already is."""
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                "cannot stand beside --job: the job says what runs. Leave one of them out",
                param_hint=option,
            )
