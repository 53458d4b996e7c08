"""A ranking as files: JSON, CSV, a page, a plan, and a picture of times and what bounds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embeddings.plan import ShardingPlan
from embeddings.plan_document import list_unrunnable, to_plan_document
from perfmodel.base.units import NS_PER_MS
from perfmodel.base.writing import write_file, write_output
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import Ranking
from perfmodel.reports.pictures import as_written
from perfmodel.reports.rank.document import to_ranking_csv, to_ranking_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files that were asked for; `-` for JSON is standard output."""

    json_file: str | None = None
    csv_file: Path | None = None
    report_file: Path | None = None
    plan_file: Path | None = None

    def write(self, ranking: Ranking, question: RankQuestion) -> None:
        """Write *ranking* everywhere it was asked for; a plan only if one fits."""
        if self.json_file is not None:
            write_output(self.json_file, to_ranking_json(ranking, question))
        if self.csv_file is not None:
            write_file(self.csv_file, to_ranking_csv(ranking))
        if self.report_file is not None:
            from perfmodel.reports.pages.plans import build_rank_page

            write_file(self.report_file, build_rank_page(ranking, question))
        if self.plan_file is not None and ranking.fits:
            text = json.dumps(to_plan_document(plan_to_write(ranking)), indent=1)
            write_file(self.plan_file, text + "\n")


def plan_to_write(ranking: Ranking) -> ShardingPlan:
    """Of the plans in the first place one that TorchRec can run, if there is any."""
    first = [one.plan for one in ranking.plans if one.place == ranking.plans[0].place and one.fits]
    return next((plan for plan in first if not list_unrunnable(plan)), first[0])


def to_plan_lines(ranking: Ranking, plan_file: Path) -> list[str]:
    """What was written to *plan_file*, and whether TorchRec can run it."""
    best, written = ranking.plans[0].plan, plan_to_write(ranking)
    lines = [f"Wrote {plan_file}: {written.name}, in TorchRec's JSON"]
    refused = list_unrunnable(best)
    if written is not best:
        lines.append(f"  as fast as {best.name}, which TorchRec cannot run: {_limits(refused)}")
    elif refused:
        able = [one.plan.name for one in ranking.plans if not list_unrunnable(one.plan)]
        others = f"; it can run {', '.join(able[:MOST_NAMED])}" if able else ""
        lines.append(f"  TorchRec cannot run it: {_limits(refused)}{others}")
    lines.append(
        "  in a script of yours: perfmodel schema plan; explained: perfmodel predict --plan"
    )
    return lines


def _limits(tables: Sequence[str]) -> str:
    more = f" and {len(tables) - MOST_NAMED} more" if len(tables) > MOST_NAMED else ""
    return (
        "it divides rows over all ranks or all of a host, and copies whole tables; not so "
        f"{', '.join(tables[:MOST_NAMED])}{more}"
    )


def draw_ranking(ranking: Ranking) -> Figure:
    """Times with intervals, and what a tenth less of each part would save."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [as_written(plan.plan.name) for plan in ranking.plans]
    figure = Figure(figsize=(11, 0.42 * len(names) + 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(names))
    times = [plan.answer.iteration_ns / NS_PER_MS for plan in ranking.plans]
    below = [
        time - plan.answer.interval.low_ns / NS_PER_MS
        for time, plan in zip(times, ranking.plans, strict=True)
    ]
    above = [
        plan.answer.interval.high_ns / NS_PER_MS - time
        for time, plan in zip(times, ranking.plans, strict=True)
    ]
    left.barh(places, times, color="#7aa6c2", xerr=[below, above], ecolor="#444", capsize=3)
    left.set_yticks(list(places), names)
    left.invert_yaxis()
    left.set_xlabel("iteration ms, with 90 % interval")
    start = [0.0] * len(names)
    for bound in ranking.plans[0].gains_ns:
        gains = [max(plan.gains_ns[bound], 0.0) / NS_PER_MS for plan in ranking.plans]
        right.barh(places, gains, left=start, label=bound.value)
        start = [done + gain for done, gain in zip(start, gains, strict=True)]
    right.set_xlabel("saved by a tenth less of each, ms")
    right.legend(fontsize=8)
    return figure
