"""`perfmodel predict`: one scenario or job, its answer on the screen and in files.

Files that cannot be written are found out before the work, not after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli.options import (
    CalibrationFiles,
    CsvFile,
    ExecutorChoice,
    ExecutorOption,
    IndicesFile,
    Isolated,
    JsonFile,
    Overrides,
    PlotFile,
    Price,
    Quiet,
    RanksPerHost,
    RayAddress,
    ReportFile,
    Samples,
    Seed,
    Stack,
    TablesFile,
    Workers,
    parse_ranks,
)
from perfmodel.cli.outputs import Outputs
from perfmodel.prediction.scenario import (
    DEFAULT_SAMPLES,
    DEFAULT_WORKLOAD,
    Interference,
    JobScenario,
    Mode,
    Scenario,
)

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel predict --topology dgx_h100.yaml
  perfmodel predict --workload llama3_70b --topology dgx_h100 --hosts 16 --json -
  perfmodel predict --workload my_model.yaml --topology my_machine.yaml
  perfmodel predict --topology dgx_a100 --set batch=16384 --report report.html
  perfmodel predict --topology quad_a100 --tables tables.yaml --plan plan.json
  perfmodel predict --topology dgx_a100 --sweep batch=4096:65536:x2 --plot batches.png
  perfmodel predict --sweep topology=dgx_a100,dgx_h100 --workload llama3_8b
  perfmodel predict --scenario question.yaml --require-fit
  perfmodel predict --job job/
  perfmodel predict --job job/ --topology dgx_h100
  perfmodel predict --list
\b
--debug, anywhere on the line, shows the traceback of an error.
"""


AnyMachine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", help="Machine: a file or a name from `perfmodel topology list`."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help=f"Model: a file or a name from --list; default: {DEFAULT_WORKLOAD}.",
    ),
]
JobFolder = Annotated[
    str | None,
    typer.Option(
        metavar="JOB", help="Instead of a model: a folder that `import` or `save_job` wrote."
    ),
]
ScenarioFile = Annotated[
    Path | None,
    typer.Option("--scenario", metavar="FILE", help="The whole question from a file."),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Ask over several values, e.g. batch=4096:65536:x2; repeatable.",
    ),
]
ListModels = Annotated[
    bool, typer.Option("--list", help="List the workloads and stacks that come along.")
]
Hosts = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of hosts, e.g. 16; default: 1.")
]
PlanFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Sharding plan as JSON, e.g. from `rank --plan-out`."),
]
OldMachine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="With --job and --topology: the machine of a recording; default: by its GPUs.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="With --job and --topology: answer doubtful ones, too.")
]
NoInterference = Annotated[
    bool,
    typer.Option("--no-interference", help="Let what overlaps take as long as alone."),
]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace-out", metavar="FILE", help="Write a timeline for Perfetto."),
]
TraceRanks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="N[,N...]", help="Ranks of that timeline, e.g. 0,8-15."),
]
RequireFit = Annotated[
    bool, typer.Option("--require-fit", help="Exit 1 if it does not fit in memory.")
]


@app.command(epilog=EPILOG)
def predict(
    topology: AnyMachine = None,
    workload: Model = None,
    job: JobFolder = None,
    scenario_file: ScenarioFile = None,
    sweep: Sweeps = None,
    list_workloads: ListModels = False,
    hosts: Hosts = None,
    ranks_per_host: RanksPerHost = None,
    overrides: Overrides = None,
    tables: TablesFile = None,
    indices: IndicesFile = None,
    plan: PlanFile = None,
    stack: Stack = None,
    was: OldMachine = None,
    force: Force = False,
    calibration: CalibrationFiles = None,
    isolated: Isolated = False,
    no_interference: NoInterference = False,
    seed: Seed = 0,
    samples: Samples = DEFAULT_SAMPLES,
    executor: ExecutorOption = ExecutorChoice.AUTO,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    trace_file: TraceFile = None,
    trace_ranks: TraceRanks = None,
    report_file: ReportFile = None,
    csv_file: CsvFile = None,
    plot_file: PlotFile = None,
    price: Price = None,
    require_fit: RequireFit = False,
    quiet: Quiet = False,
) -> None:
    """Predict how long one training iteration takes, and why."""
    if list_workloads:
        from perfmodel.cli.workload import list_models

        list_models()
        return
    of_model = {
        "workload": workload,
        "set": overrides,
        "ranks_per_host": ranks_per_host,
        "tables": tables,
        "indices": indices,
        "plan": plan,
    }
    how: dict[str, Any] = {
        "stack": stack,
        "mode": Mode.ISOLATED if isolated else Mode.PERIOD,
        "seed": seed,
        "samples": samples,
        "interference": Interference.LEFT_OUT if no_interference else Interference.COUNTED,
        "calibration": tuple(calibration or ()),
    }
    scenario: Scenario | JobScenario
    if scenario_file is not None:
        from perfmodel.prediction.scenario_file import load_scenario

        why = "the file is the question"
        _check_alone("--scenario", why, topology=topology, job=job, hosts=hosts, **of_model)
        _check_alone("--scenario", why, stack=stack, calibration=calibration, isolated=isolated)
        _check_alone("--scenario", why, no_interference=no_interference, was=was, force=force)
        _check_alone("--scenario", why, seed=seed, samples=samples != DEFAULT_SAMPLES)
        scenario = load_scenario(scenario_file)
    elif job is not None:
        _check_alone("--job", "the job says what runs", **of_model)
        scenario = JobScenario(job, topology, hosts, was=was, force=force, **how)
    else:
        _check_alone("a model", "they are about recorded jobs", was=was, force=force)
        scenario = Scenario(
            topology=_first_machine(topology, sweep),
            workload=workload or DEFAULT_WORKLOAD,
            overrides=tuple(overrides or ()),
            hosts=hosts or 1,
            ranks_per_host=ranks_per_host,
            tables=_text(tables),
            indices=_text(indices),
            plan=_text(plan),
            **how,
        )
    place: dict[str, Any] = {
        "executor": executor.value,
        "workers": workers,
        "ray_address": ray_address,
    }
    if sweep:
        why = "it has several answers"
        _check_alone("--sweep", why, trace_out=trace_file, ranks=trace_ranks, price=price)
        _check_alone("--sweep", why, require_fit=require_fit)
        files = Outputs(
            json_file=json_file, csv_file=csv_file, plot_file=plot_file, report_file=report_file
        )
        _sweep(scenario, sweep, files, quiet, place)
        return
    outputs = Outputs(
        json_file=json_file,
        trace_file=trace_file,
        report_file=report_file,
        csv_file=csv_file,
        plot_file=plot_file,
        price_per_gpu_hour=price,
        trace_ranks=None if trace_ranks is None else parse_ranks(trace_ranks),
    )
    _predict(scenario, outputs, require_fit, quiet, place)


def _predict(
    scenario: Scenario | JobScenario,
    outputs: Outputs,
    require_fit: bool,
    quiet: bool,
    place: dict[str, Any],
) -> None:
    outputs.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=quiet) as progress:
        prediction = api.predict(
            scenario,
            on_phase=progress,
            require_fit=require_fit,
            keep_timelines=outputs.has_timelines,
            **place,
        )
    outputs.write_prediction(prediction)
    if require_fit and prediction.memory is not None and not prediction.memory.fits:
        raise typer.Exit(1)


def _sweep(
    scenario: Scenario | JobScenario,
    sweep: list[str],
    files: Outputs,
    quiet: bool,
    place: dict[str, Any],
) -> None:
    files.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=quiet) as progress:
        comparison = api.sweep(scenario, sweep, on_phase=progress, **place)
    files.write_comparison(comparison)


def _first_machine(topology: str | None, sweep: list[str] | None) -> str:
    """The machine; where machines are swept, the first of them stands for it."""
    if topology is not None:
        return topology
    for text in sweep or ():
        key, _, values = text.partition("=")
        if key.strip() == "topology":
            return values.split(",")[0]
    raise typer.BadParameter(
        "say which machine, for example --topology dgx_h100.yaml; "
        "`perfmodel topology list` shows them",
        param_hint="--topology",
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _check_alone(beside: str, why: str, **options: object) -> None:
    """Refuse *options* that cannot stand *beside* another one."""
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"cannot stand beside {beside}: {why}. Leave one of them out",
                param_hint=option,
            )
