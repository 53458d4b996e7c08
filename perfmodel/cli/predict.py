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
    JsonFile,
    PlotFile,
    Quiet,
    RayAddress,
    ReportFile,
    Workers,
)
from perfmodel.cli.outputs import ComparisonOutputs, Outputs
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
    scenario_file: Annotated[
        Path | None,
        typer.Option("--scenario", metavar="FILE", help="The whole question from a file."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Ask over several values, e.g. batch=4096:65536:x2; repeatable.",
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
        typer.Option(metavar="N", min=1, help="Ranks on each host, e.g. 4; default: one per GPU."),
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
    was: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="With --job and --topology: the machine of a recording; default: by its GPUs.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --job and --topology: answer doubtful ones, too.")
    ] = False,
    calibration: CalibrationFiles = None,
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
    trace_ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="N[,N...]", help="Ranks of that timeline, e.g. 0,8-15."),
    ] = None,
    report_file: ReportFile = None,
    csv_file: CsvFile = None,
    plot_file: PlotFile = None,
    price: Annotated[
        float | None, typer.Option(metavar="MONEY", min=0, help="Price of a GPU for an hour.")
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Exit 1 if it does not fit in memory.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Predict how long one training iteration takes, and why."""
    if list_workloads:
        from perfmodel.cli.workload import list_models

        list_models()
        return
    mode = Mode.ISOLATED if isolated else Mode.PERIOD
    interference = Interference.LEFT_OUT if no_interference else Interference.COUNTED
    constants = tuple(calibration or ())
    scenario: Scenario | JobScenario
    if scenario_file is not None:
        _check_alone("--scenario", "the file is the question", topology=topology, job=job)
        _check_alone("--scenario", "the file is the question", workload=workload, set=overrides)
        _check_alone("--scenario", "the file is the question", hosts=hosts, stack=stack)
        _check_alone("--scenario", "the file is the question", calibration=calibration)
        from perfmodel.prediction.scenario_file import load_scenario

        scenario = load_scenario(scenario_file)
    elif job is not None:
        told = {"workload": workload, "set": overrides, "ranks_per_host": ranks_per_host}
        _check_alone("--job", "the job says what runs", **told)
        _check_alone("--job", "the job says what runs", tables=tables, indices=indices, plan=plan)
        scenario = JobScenario(
            job, topology, hosts, stack, mode, seed, samples, interference, constants, was, force
        )
    else:
        _check_alone("a model", "they are about recorded jobs", was=was, force=force)
        scenario = Scenario(
            topology=_first(topology, sweep),
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
            calibration=constants,
        )
    place: dict[str, Any] = {
        "executor": executor.value,
        "workers": workers,
        "ray_address": ray_address,
    }
    if sweep:
        _check_alone("--sweep", "it has several answers", trace_out=trace_file, price=price)
        files = ComparisonOutputs(json_file, csv_file, plot_file, report_file)
        _sweep(scenario, sweep, files, quiet, place)
        return
    outputs = Outputs(
        json_file=json_file,
        trace_file=trace_file,
        report_file=report_file,
        csv_file=csv_file,
        plot_file=plot_file,
        price_per_gpu_hour=price,
        trace_ranks=_read_ranks(trace_ranks),
    )
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
    outputs.write(prediction)
    if require_fit and prediction.memory is not None and not prediction.memory.fits:
        raise typer.Exit(1)


def _sweep(
    scenario: Scenario | JobScenario,
    sweep: list[str],
    files: ComparisonOutputs,
    quiet: bool,
    place: dict[str, Any],
) -> None:
    files.check()
    from perfmodel import api
    from perfmodel.reports.progress import show_progress

    with show_progress(is_quiet=quiet) as progress:
        comparison = api.sweep(scenario, sweep, on_phase=progress, **place)
    files.write(comparison)


def _first(topology: str | None, sweep: list[str] | None) -> str:
    """The machine; where machines are swept, the first of them stands for it."""
    for text in sweep or ():
        key, _, values = text.partition("=")
        if key.strip() == "topology" and topology is None:
            return values.split(",")[0]
    return _check_machine(topology)


def _read_ranks(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    ranks: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise typer.BadParameter("must be like 0,8-15", param_hint="--ranks")
        ranks += range(int(first), int(last or first) + 1)
    return tuple(ranks)


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


def _check_alone(beside: str, why: str, **options: object) -> None:
    """Refuse *options* that cannot stand *beside* another one."""
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"cannot stand beside {beside}: {why}. Leave one of them out",
                param_hint=option,
            )
