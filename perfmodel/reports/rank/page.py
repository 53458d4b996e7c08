"""A ranking beside its table: words about the plan written, and a picture of times and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embeddings.plan_document import list_unrunnable
from perfmodel.base.units import NS_PER_MS
from perfmodel.planning.ranking import Ranking
from perfmodel.reports.pictures import as_written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 3


def to_plan_lines(ranking: Ranking, plan_file: Path) -> list[str]:
    """What was written to *plan_file*, and whether TorchRec can run it."""
    best, written = ranking.plans[0].plan, ranking.plan_to_write
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
