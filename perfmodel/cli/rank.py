"""`perfmodel rank`: order sharding plans, given, named, enumerated or searched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import PlanError
from perfmodel.cli.options import (
    CalibrationFiles,
    CsvFile,
    IndicesFile,
    Isolated,
    JsonFile,
    Machine,
    NearExecutorOption,
    Overrides,
    Quiet,
    RanksPerHost,
    RayAddress,
    ReportFile,
    Samples,
    Seed,
    Stack,
    TablesFile,
    Workers,
    executor_word,
)
from perfmodel.cli.outputs import Outputs
from perfmodel.prediction.scenario import DEFAULT_SAMPLES, DEFAULT_WORKLOAD, Mode

if TYPE_CHECKING:
    from perfmodel.planning.question import RankBy, RankQuestion
    from perfmodel.planning.ranking import Ranking

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
    topology: Machine,
    workload: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Recommendation model to train.")
    ] = DEFAULT_WORKLOAD,
    tables: TablesFile = None,
    indices: IndicesFile = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples an iteration, all ranks.")
    ] = None,
    hosts: Annotated[int, typer.Option(metavar="N", min=1, help="Number of hosts.")] = 1,
    ranks_per_host: RanksPerHost = None,
    overrides: Overrides = None,
    stack: Stack = None,
    calibration: CalibrationFiles = None,
    isolated: Isolated = False,
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
    samples: Samples = DEFAULT_SAMPLES,
    seed: Seed = 0,
    executor: NearExecutorOption = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    json_file: JsonFile = None,
    csv_file: CsvFile = None,
    report_file: ReportFile = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan-out", metavar="FILE.json", help="Write the first plan as JSON."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Order sharding plans of a recommendation model, fastest first; exit 1 if none fits."""
    from perfmodel import api
    from perfmodel.planning.question import RankQuestion
    from perfmodel.reports.progress import show_progress

    files = Outputs(
        json_file=json_file, csv_file=csv_file, report_file=report_file, plan_file=plan_file
    )
    files.check()
    question = RankQuestion(
        topology=topology,
        workload=workload,
        overrides=(*(overrides or ()), *(() if batch is None else (f"batch={batch}",))),
        tables=None if tables is None else str(tables),
        indices=None if indices is None else str(indices),
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        stack=stack,
        mode=Mode.ISOLATED if isolated else Mode.PERIOD,
        sharders=_name_sharders(sharder),
        plan_files=tuple(plan or ()),
        enumerate_limit=enumerate_limit,
        search_seconds=search,
        searches=workers or 1,
        samples=samples,
        batches=batches,
        rank_by=_read_order(by),
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
    _write(files, ranking, question)


def _name_sharders(words: list[str] | None) -> tuple[str, ...]:
    from embeddings.sharders import SHARDERS

    return tuple(word for word in words if word != "none") if words else tuple(SHARDERS)


def _read_order(by: str) -> RankBy:
    from perfmodel.planning.question import RankBy

    words = [known.value for known in RankBy]
    if by not in words:
        raise typer.BadParameter(f"must be one of {', '.join(words)}", param_hint="--by")
    return RankBy(by)


def _write(files: Outputs, ranking: Ranking, question: RankQuestion) -> None:
    """Write and print *ranking* where it was asked for; an error if no plan fits."""
    from perfmodel.reports.rank import report_ranking, to_plan_lines, to_ranking_document

    files.write(report_ranking(ranking, question), lambda: to_ranking_document(ranking, question))
    if files.plan_file is not None:
        ranking.save_plan(files.plan_file)
        if files.is_printed:
            print("\n".join(to_plan_lines(ranking, files.plan_file)))
    if not ranking.fits:
        raise PlanError(ranking.verdict)
