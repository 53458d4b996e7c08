"""`perfmodel search`: the fastest parallel layout of a Transformer that fits."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.options import (
    CalibrationFiles,
    CsvFile,
    JsonFile,
    Machine,
    NearExecutorOption,
    Price,
    Quiet,
    RanksPerHost,
    RayAddress,
    ReportFile,
    Seed,
    Stack,
    Workers,
    executor_word,
)
from perfmodel.cli.outputs import Outputs

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel search --workload llama3_70b --topology dgx_h100 --hosts 8
  perfmodel search --workload llama3_70b --topology gb200_nvl72 --ranks-per-host 64
  perfmodel search --workload llama3_8b --topology dgx_a100 --hosts 1,2,4,8 --price 1.8
  perfmodel search --workload my_gpt.yaml --topology dgx_h100 --hosts 8 --set parallel.tp=8
"""


@app.command(epilog=EPILOG)
def search(
    workload: Annotated[str, typer.Option(metavar="NAME|FILE", help="Transformer to train.")],
    topology: Machine,
    hosts: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Hosts; several for time against GPUs.")
    ] = "1",
    ranks_per_host: RanksPerHost = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Fix a field; what is fixed is not searched."
        ),
    ] = None,
    stack: Stack = None,
    calibration: CalibrationFiles = None,
    price: Price = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Layouts to show.")] = 10,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.1, help="Time to search.")] = 60.0,
    seed: Seed = 0,
    executor: NearExecutorOption = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    report_file: ReportFile = None,
    quiet: Quiet = False,
) -> None:
    """Find the fastest layout: tp, sp, pp, cp, ep, dp, micro-batch, sharding, recompute, runs."""
    from perfmodel import api
    from perfmodel.planning.question import LayoutQuestion
    from perfmodel.reports.progress import show_progress
    from perfmodel.reports.search import report_search, to_search_document

    outputs = Outputs(json_file=json_file, csv_file=csv_file, report_file=report_file)
    outputs.check()
    question = LayoutQuestion(
        topology=topology,
        workload=workload,
        overrides=tuple(overrides or ()),
        hosts=_read_hosts(hosts),
        ranks_per_host=ranks_per_host,
        stack=stack,
        price_per_gpu_hour=price,
        top=top,
        seconds=seconds,
        seed=seed,
        calibration=tuple(calibration or ()),
    )
    with show_progress(is_quiet=quiet) as progress:
        found = api.search(
            question,
            executor=executor_word(executor),
            workers=workers,
            ray_address=ray_address,
            on_phase=progress,
        )
    outputs.write(report_search(found), lambda: to_search_document(found))


def _read_hosts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter("must be numbers like 8 or 1,2,4", param_hint="--hosts")
    return tuple(int(part) for part in parts)
