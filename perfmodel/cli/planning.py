"""`perfmodel rank` and `perfmodel search`: the fastest sharding plan, the fastest layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from perfmodel import api
from perfmodel.base.errors import PlanError
from perfmodel.base.options import Option
from perfmodel.base.writing import printable_lines
from perfmodel.cli.commands import command
from perfmodel.cli.options import LocalRun, Outputs, argument
from perfmodel.planning.question import LayoutQuestion, RankQuestion
from perfmodel.prediction.scenario import Scenario

RANK_EPILOG = """\b
Examples:
  perfmodel rank --topology dgx_a100
  perfmodel rank --topology quad_a100 --tables tables.yaml --batch 4096 --search 30
  perfmodel rank --topology dgx_h100 --hosts 4 --plan mine.json --sharder balanced --json -
"""
SEARCH_EPILOG = """\b
Examples:
  perfmodel search --workload llama3_70b --topology dgx_h100 --hosts 8
  perfmodel search --workload llama3_70b --topology gb200_nvl72 --ranks-per-host 64
  perfmodel search --workload llama3_8b --topology dgx_a100 --hosts 1,2,4,8 --price 1.8
  perfmodel search --workload llama3_8b --topology dgx_h100 --hosts 4,8 --tokens 1T --finish-in 30d
  perfmodel search --workload my_gpt.yaml --topology dgx_h100 --hosts 8 --set parallel.tp=8
"""


FITS_EPILOG = """\b
Examples:
  perfmodel fits llama3_8b --topology dgx_h100 --set parallel.tp=8
  perfmodel fits llama3_70b --topology dgx_h100 --hosts 8
  perfmodel fits --workload my_gpt.yaml --topology dgx_a100 --json -
"""


@command(epilog=FITS_EPILOG)
def fits(
    *,
    model: Annotated[str | None, argument("WORKLOAD", "Model, as with --workload.")] = None,
    asked: Annotated[dict[str, Any], Scenario],
    files: Annotated[Outputs, "json_file", "is_strict"],
) -> None:
    """Say whether a stated layout fits in memory, or which layouts do; exit 1 if none."""
    from perfmodel.reports.fits import report_fits, to_fits_document

    if model is not None and asked.setdefault("workload", model) != model:
        raise typer.BadParameter(
            f"{model} and --workload {asked['workload']} are different. Leave one of them out",
            param_hint="WORKLOAD",
        )
    found = api.fits(Scenario(**asked))
    files.write(report_fits(found), lambda: to_fits_document(found))
    if not found.fits:
        raise typer.Exit(1)


@command(epilog=RANK_EPILOG)
def rank(
    *,
    question: RankQuestion,
    batch: Annotated[
        int | None, Option(metavar="N", min=1, help="Samples per iteration, all ranks.")
    ] = None,
    run: LocalRun,
    files: Annotated[Outputs, "json_file", "csv_file", "report_file", "plan_file", "is_strict"],
) -> None:
    """Rank sharding plans of a recommendation model, fastest first; exit 1 if none fits."""
    from perfmodel.reports.rank import report_ranking, to_plan_lines, to_ranking_document

    if batch is not None:
        question = replace(question, overrides=(*question.overrides, f"batch={batch}"))
    question = replace(question, searches=run.workers or 1)
    with run.open() as where:
        ranking = api.rank(question, **where)
    files.write(report_ranking(ranking, question), lambda: to_ranking_document(ranking, question))
    if files.plan_file is not None:
        ranking.save_plan(files.plan_file)
        if files.is_printed:
            print(printable_lines("\n".join(to_plan_lines(ranking, files.plan_file))))
    if not ranking.fits:
        raise PlanError(ranking.verdict)


@command(epilog=SEARCH_EPILOG)
def search(
    question: LayoutQuestion,
    run: LocalRun,
    files: Annotated[Outputs, "json_file", "csv_file", "report_file", "is_strict"],
) -> None:
    """Find the fastest layout that fits in memory.

    Searched: tp, pp, cp, ep, sequence parallelism, micro-batch, sharding, recomputation,
    interleaving, and what the stack has several of: dispatchers, overlap of experts, schedules.
    The values tried are in the JSON, under `space`.
    """
    from perfmodel.reports.search import report_search, to_search_document

    with run.open() as where:
        found = api.search(question, **where)
    files.write(report_search(found), lambda: to_search_document(found))
