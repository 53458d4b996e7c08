"""An answer in a few lines, for the local page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.base.units import format_duration
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.question import Question
from perfmodel.reports.runs import format_days
from perfmodel.reports.text import describe_fit, describe_interval

if TYPE_CHECKING:
    from perfmodel.prediction.whole_run import TrainingRun


def summarise(
    found: Prediction,
    question: Question,
    *,
    price_per_gpu_hour: float | None,
    run: TrainingRun | None,
) -> dict[str, Any]:
    """Time, memory and a list of facts of *found*, the answer to *question*."""
    memory = question.memory_fit
    figures = found.yardsticks
    return {
        "time_ns": found.iteration_ns,
        "per_s": None if figures is None else figures.per_s,
        "unit": None if figures is None else figures.unit,
        "time": format_duration(found.iteration_ns),
        "fits": memory is None or memory.fits,
        "verdict": "" if memory is None else describe_fit(memory),
        "facts": [*_list_facts(found, price_per_gpu_hour, run), *question.chosen],
    }


def _list_facts(found: Prediction, price: float | None, run: TrainingRun | None) -> list[str]:
    interval = found.interval
    # Without samples an interval is a point, which says nothing.
    is_wide = interval.is_known and interval.low_ns < interval.high_ns
    facts = [describe_interval(interval)] if is_wide else []
    figures = found.yardsticks
    if figures is not None:
        facts.append(f"{figures.per_s:,.0f} {figures.unit}/s")
        if figures.model_utilisation is not None:
            facts.append(f"MFU {figures.model_utilisation:.1%}")
        if price is not None:
            facts.append(f"{figures.cost_per_million(price):.4g} per million {figures.unit}")
    if run is not None:
        money = "" if run.cost is None else f", {run.cost:,.0f} {run.currency}"
        facts.append(f"whole run: {format_days(run.expected_days)}{money}")
    return facts
