"""`perfmodel predict` and `perfmodel compare`: one scenario, or several of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel import api
from perfmodel.base.extensions import load_extension
from perfmodel.base.options import Option, options_of
from perfmodel.cli.commands import command
from perfmodel.cli.options import Outputs, RunOptions, argument, parse_measured
from perfmodel.prediction.scenario import JobScenario, RunQuestion, Scenario

if TYPE_CHECKING:
    from perfmodel.prediction.comparing import Comparison

PREDICT_EPILOG = """\b
Examples:
  perfmodel predict --topology dgx_h100.yaml
  perfmodel predict llama3_70b --topology dgx_h100 --hosts 16 --json -
  perfmodel predict my_model.yaml --topology my_machine.yaml
  perfmodel predict --topology dgx_a100 --set batch=16384 --report report.html
  perfmodel predict --topology quad_a100 --tables tables.yaml --plan plan.json
  perfmodel predict --topology dgx_a100 --sweep batch=4096:65536:x2 --report batches.html
  perfmodel predict llama3_8b --sweep topology=dgx_a100,dgx_h100
  perfmodel predict llama3_70b --topology dgx_h100 --hosts 64 --tokens 300B
  perfmodel predict --scenario question.yaml --require-fit
  perfmodel predict --job job/
  perfmodel predict --job job/ --topology dgx_h100
\b
--debug, anywhere on the line, shows the traceback of an error.
"""
COMPARE_EPILOG = """\b
Examples:
  perfmodel compare a.yaml b.yaml
  perfmodel compare job_before/ job_after/ --csv jobs.csv
  perfmodel compare jobs/*/ --topology dgx_h100 --price 2.5
  perfmodel compare --topology dgx_a100,dgx_h100 --workload llama3_8b --hosts 2
  perfmodel compare --topology dgx_h100 --workload llama3_8b,gpt2_xl --report models.html
  perfmodel compare --topology dgx_a100,dgx_h100 --workload llama3_70b --hosts 16 --tokens 300B
  perfmodel compare --topology dgx_h100 --hosts 4 --fault "host:1 gpu:3 nvlink"
\b
`perfmodel init scenario --out a.yaml` writes a file to start from.
"""


@command(epilog=PREDICT_EPILOG)
def predict(
    *,
    asked: Annotated[dict[str, Any], Scenario, JobScenario],
    model: Annotated[
        str | None,
        argument("WORKLOAD", "Model, as with --workload."),
    ] = None,
    scenario_file: Annotated[
        str | None,
        Option(name="--scenario", metavar="FILE", help="Read the whole question from a file."),
    ] = None,
    sweep: Annotated[
        tuple[str, ...],
        Option(
            metavar="KEY=VALUES",
            help="Predict for several values, e.g. batch=4096:65536:x2; repeatable.",
        ),
    ] = (),
    require_fit: Annotated[bool, Option(help="Exit 1 if it does not fit in memory.")] = False,
    measured: Annotated[
        float | None,
        Option(metavar="TIME", parse=parse_measured, help="What an iteration took, e.g. 5.2s."),
    ] = None,
    anchor_out: Annotated[
        str | None, Option(metavar="FILE", help="Write what --measured says as a calibration.")
    ] = None,
    whole: RunQuestion,
    run: RunOptions,
    files: Annotated[
        Outputs,
        "json_file",
        "trace_file",
        "trace_ranks",
        "report_file",
        "csv_file",
        "price_per_gpu_hour",
        "is_brief",
        "is_strict",
    ],
) -> None:
    """Predict how long one training iteration takes, and why."""
    if model is not None and asked.setdefault("workload", model) != model:
        raise typer.BadParameter(
            f"{model} and --workload {asked['workload']} are different. Leave one of them out",
            param_hint="WORKLOAD",
        )
    if (measured is None) != (anchor_out is None):
        raise typer.BadParameter("give --measured TIME and --anchor-out FILE together")
    scenario = read_scenario(asked, scenario_file, sweep)
    whole.check()
    if sweep:
        single = {"--trace-out": files.trace_file, "--price": files.price_per_gpu_hour}
        single["--require-fit"] = require_fit
        _refuse([name for name in single if single[name]], "--sweep", "it has several answers")
        with run.open() as where:
            comparison = api.sweep(scenario, sweep, **where)
        files.write_comparison(_of_whole_runs(comparison, whole))
        return
    with run.open() as where:
        prediction = api.predict(
            scenario, require_fit=require_fit, keep_timelines=files.has_timelines, **where
        )
    files.write_prediction(prediction, whole)
    if measured is not None and anchor_out is not None:
        anchor_run = load_extension("measurements", "api").anchor_run
        anchor_run(scenario, measured, anchor_out)
    if require_fit and prediction.memory is not None and not prediction.memory.fits:
        raise typer.Exit(1)


def _of_whole_runs(comparison: Comparison, whole: RunQuestion) -> Comparison:
    """*comparison*, of whole runs if they were asked for."""
    return replace(comparison, whole=whole) if whole.is_asked else comparison


def read_scenario(
    asked: dict[str, Any], scenario_file: str | None, sweep: tuple[str, ...]
) -> Scenario | JobScenario:
    """The scenario of the options *asked*, a file's or a job's where one is named."""
    if scenario_file is not None:
        _refuse(_options(asked), "--scenario", "the file is the question")
        return api.load_scenario(scenario_file)
    kind, other, why = (
        (JobScenario, "--job", "the job says what runs")
        if "job" in asked
        else (Scenario, "a model", "they are about recorded jobs")
    )
    known = {one.name for one in fields(kind)}
    _refuse(_options(name for name in asked if name not in known), other, why)
    if kind is Scenario and "topology" not in asked:
        asked["topology"] = _first_machine(sweep)
    return kind(**asked)


def _options(names: Iterable[str]) -> list[str]:
    """The options for fields called *names*."""
    known = options_of(Scenario) | options_of(JobScenario)
    return [known[name][1].name or f"--{name.replace('_', '-')}" for name in names]


def _refuse(options: list[str], other: str, why: str) -> None:
    """Refuse *options* that cannot be combined with *other*."""
    for option in options:
        raise typer.BadParameter(
            f"cannot be combined with {other}: {why}. Leave one of them out", param_hint=option
        )


def _first_machine(sweep: tuple[str, ...]) -> str:
    """The first of the machines to *sweep* over."""
    for text in sweep:
        key, _, values = text.partition("=")
        if key.strip() == "topology":
            return values.split(",")[0]
    raise typer.BadParameter(
        "name a machine, for example --topology dgx_h100.yaml; "
        "`perfmodel topology list` shows them",
        param_hint="--topology",
    )


@command(epilog=COMPARE_EPILOG)
def compare(
    *,
    files: Annotated[
        tuple[str, ...],
        argument("FILE|JOB...", "Scenario files or folders of jobs."),
    ] = (),
    topology: Annotated[
        str | None,
        Option(metavar="NAME[,NAME...]", help="Machines to compare, or the machine of the jobs."),
    ] = None,
    workload: Annotated[
        str | None, Option(metavar="NAME[,NAME...]", help="Models on those machines.")
    ] = None,
    hosts: Annotated[
        str | None, Option(metavar="N[,N...]", help="Hosts of those machines.")
    ] = None,
    stack: Annotated[str | None, Option(metavar="NAME[,NAME...]", help="Software stacks.")] = None,
    price: Annotated[
        float | None,
        Option(metavar="MONEY", min=0, help="Price per GPU and hour; orders by time."),
    ] = None,
    asked: Annotated[dict[str, Any], Scenario, "overrides", "calibration", "faults"],
    whole: RunQuestion,
    run: RunOptions,
    outputs: Annotated[Outputs, "json_file", "csv_file", "report_file", "is_strict"],
) -> None:
    """Compare scenarios: time, throughput, memory, what bounds them."""
    named = {"topology": topology, "workload": workload, "hosts": hosts, "stack": stack}
    given = {key: value for key, value in named.items() if value is not None}
    machine = {key: given.pop(key) for key in ("topology", "stack") if files and key in given}
    if bool(files) == bool(given):
        raise typer.BadParameter("name scenario files or jobs, or machines with --topology a,b")
    if files:
        _refuse(_options(asked), "files", "each file is a question of its own")
    with run.open() as where:
        if files:
            jobs = api.name_jobs(files, **machine) if machine else files
            found = api.compare(jobs, **where)
        else:
            axes = _split(given, asked)
            found = api.sweep(Scenario(**asked), axes, **where)
    found = _of_whole_runs(found, whole)
    # What is compared by name is ordered by the answer; a sweep over numbers keeps its order.
    found = found if found.goes_over_numbers else found.ordered()
    outputs.write_comparison(replace(found, price_per_gpu_hour=price))


def _split(given: dict[str, str], asked: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Add the first of the values *given* to *asked*; returns what has several values.

    A machine is compared with each of its faults, and with all of them.
    """
    from perfmodel.base.options import expand_values
    from perfmodel.prediction.comparing import FAULT, SOUND

    values = {key: expand_values(text) for key, text in given.items()}
    axes = {key: several for key, several in values.items() if len(several) > 1}
    if faults := asked.pop("faults", ()):
        together = ("; ".join(faults),) if len(faults) > 1 else ()
        axes[FAULT] = (SOUND, *faults, *together)
    if not axes or "topology" not in values:
        raise typer.BadParameter(
            "give two or more of something, such as --topology dgx_a100,dgx_h100"
        )
    asked |= {key: several[0] for key, several in values.items()}
    hosts = asked.get("hosts", "1")
    if not hosts.isdecimal():
        raise typer.BadParameter("must be numbers like 8, 1,2,4 or 1:8:x2", param_hint="--hosts")
    asked["hosts"] = int(hosts)
    return axes
