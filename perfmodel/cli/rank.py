"""`perfmodel rank`: order sharding plans, given, named, enumerated or searched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.base.errors import PlanError
from perfmodel.base.writing import STDOUT
from perfmodel.cli.options import (
    CalibrationFiles,
    JsonFile,
    NearExecutorOption,
    Quiet,
    RayAddress,
    Workers,
    executor_word,
)
from perfmodel.cli.outputs import Outputs, name_files
from perfmodel.prediction.scenario import DEFAULT_SAMPLES, DEFAULT_WORKLOAD, Mode

app = typer.Typer(rich_markup_mode=None)

EPILOG = """\b
Examples:
  perfmodel rank --topology dgx_a100
  perfmodel rank --topology quad_a100 --tables tables.yaml --batch 4096 --search 30
  perfmodel rank --topology dgx_h100 --hosts 4 --plan mine.json --sharder balanced --json -
  perfmodel rank --topology dgx_a100 --batches 200 --by p95 --report plans.html
"""


@app.command(epilog=EPILOG)
def rank(
    topology: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Machine: a file or a catalog name.")
    ],
    workload: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Recommendation model to train.")
    ] = DEFAULT_WORKLOAD,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Tables instead of the model's: YAML, CSV or JSON."),
    ] = None,
    indices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Real indices of those tables: npz, parquet or pt."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples an iteration, all ranks.")
    ] = None,
    hosts: Annotated[int, typer.Option(metavar="N", min=1, help="Number of hosts.")] = 1,
    ranks_per_host: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Ranks on each host.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a workload field; repeatable."),
    ] = None,
    stack: Annotated[str | None, typer.Option(metavar="NAME", help="Software stack.")] = None,
    calibration: CalibrationFiles = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Judge one iteration that starts at a barrier.")
    ] = False,
    sharder: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A sharder; repeatable; default: all; `none` for none."),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A plan as JSON, as --plan-out writes it; repeatable."),
    ] = None,
    enumerate_limit: Annotated[
        int,
        typer.Option("--enumerate", metavar="N", min=0, help="Try all plans if at most N."),
    ] = 0,
    search: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Search plans for so long.")
    ] = 0.0,
    batches: Annotated[
        int, typer.Option(metavar="N", min=0, help="Sampled batches, for the spread over them.")
    ] = 0,
    by: Annotated[
        str, typer.Option(metavar="nominal|mean|p95", help="What the order is by.")
    ] = "nominal",
    samples: Annotated[
        int,
        typer.Option(
            metavar="N", min=2, help="How often uncertain costs are drawn for the interval."
        ),
    ] = DEFAULT_SAMPLES,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all draws.")] = 0,
    executor: NearExecutorOption = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write CSV.")
    ] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a web page.")
    ] = None,
    best_file: Annotated[
        Path | None,
        typer.Option("--plan-out", metavar="FILE.json", help="Write the first plan as JSON."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Order sharding plans of a recommendation model, fastest first; exit 1 if none fits."""
    from embeddings.sharders import SHARDERS
    from perfmodel import api
    from perfmodel.planning.question import RankQuestion
    from perfmodel.planning.ranking import RankBy
    from perfmodel.reports.progress import show_progress

    Outputs(
        json_file=json_file, csv_file=csv_file, report_file=report_file, plan_file=best_file
    ).check()
    words = [known.value for known in RankBy]
    if by not in words:
        raise typer.BadParameter(f"must be one of {', '.join(words)}", param_hint="--by")
    changes = tuple(overrides or ()) + (() if batch is None else (f"batch={batch}",))
    named = tuple(SHARDERS) if not sharder else tuple(name for name in sharder if name != "none")
    question = RankQuestion(
        topology=topology,
        workload=workload,
        overrides=changes,
        tables=None if tables is None else str(tables),
        indices=None if indices is None else str(indices),
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        stack=stack,
        mode=Mode.ISOLATED if isolated else Mode.PERIOD,
        sharders=named,
        plan_files=tuple(plan or ()),
        enumerate_limit=enumerate_limit,
        search_seconds=search,
        searches=workers or 1,
        samples=samples,
        batches=batches,
        rank_by=RankBy(by),
        seed=seed,
        calibration=tuple(calibration or ()),
    )
    with show_progress(is_quiet=quiet) as progress:
        ranking = api.rank(
            question,
            executor=executor_word(executor),
            workers=workers,
            ray_address=ray_address,
            on_phase=progress,
        )
    from perfmodel.reports.rank.page import RankFiles

    RankFiles(json_file, csv_file, report_file, best_file).write(ranking, question)
    if json_file != STDOUT:
        from rich.console import Console

        from perfmodel.reports.rank.table import print_ranking

        print_ranking(ranking, Console(width=None if sys.stdout.isatty() else 140, highlight=False))
        name_files(json_file, csv_file, report_file)
        if best_file is not None and ranking.fits:
            from perfmodel.reports.rank.page import to_plan_lines

            print("\n".join(to_plan_lines(ranking, best_file)))
    if not ranking.fits:
        raise PlanError(
            ranking.verdict + ("" if best_file is None else f" {best_file} was not written.")
        )
