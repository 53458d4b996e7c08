"""Whole runs in reports: days, GPU-hours, money, energy and goodput."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel.reports.blocks import Report, Section, Sentences, Table

if TYPE_CHECKING:
    from perfmodel.prediction.whole_run import TrainingRun

HOURS_PER_DAY = 24
TITLE = "The whole run"
_SHORT_ROW = (
    "days_without_failures",
    "expected_days",
    "gpu_hours",
    "cost",
    "energy_mwh",
    "goodput",
)


def run_section(run: TrainingRun) -> Section:
    """The whole run, and what it rests on."""
    good = run.goodput
    rows = [
        (f"{run.unit}", f"{run.count:,.0f} in {run.iterations:,.0f} iterations"),
        ("training alone", format_days(run.days)),
        ("expected", f"{format_days(run.expected_days)}{_interval(run)}"),
        ("GPU-hours", f"{run.gpu_hours:,.0f}"),
        *([("cost", _money(run))] if run.cost is not None else []),
        *([("energy", f"{run.energy_mwh:,.4g} MWh")] if run.energy_mwh is not None else []),
        ("goodput", f"{good.ratio:.1%}"),
    ]
    if math.isfinite(good.failure_every_s):
        rows += [
            ("failures", f"{run.failures:,.3g}, one every {format_hours(good.failure_every_s)}"),
            ("best checkpoints", f"every {format_hours(good.checkpoint_every_s)}"),
        ]
    return Section(TITLE, [Table((), rows), Sentences(list(missing_price(run)))])


def shorten(report: Report) -> Report:
    """*report* without its reasons: the headline, and the whole run if one was asked for."""
    return replace(report, sections=[one for one in report.sections if one.title == TITLE])


def missing_price(run: TrainingRun, name: str = "") -> Iterator[str]:
    """A sentence where no price is listed."""
    if run.cost is None:
        of = f"{name}: " if name else ""
        yield (
            f"{of}no price is listed for this machine; give --price, or add it to the file that "
            f"`perfmodel init prices` writes and pass it with --prices"
        )


def run_cells(run: TrainingRun | None) -> dict[str, str]:
    """Cells of a table, by heading; none without a run."""
    if run is None:
        return {}
    return {
        "days": f"{run.expected_days:,.4g}",
        "GPU-hours": _count(run.gpu_hours),
        "cost": _cost(run),
        "energy": "" if run.energy_mwh is None else f"{run.energy_mwh:,.4g} MWh",
        "goodput": f"{run.goodput.ratio:.1%}",
    }


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def run_row(run: TrainingRun) -> dict[str, Any]:
    """The figures of a flat row."""
    document = run.document()
    return {name: document[name] for name in _SHORT_ROW}


def format_days(days: float) -> str:
    """*days* for people; a short run in hours."""
    number, unit = (f"{days:,.4g}", "day") if days >= 1 else (f"{days * HOURS_PER_DAY:.3g}", "hour")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def format_hours(seconds: float) -> str:
    """*seconds* for people, from minutes to days."""
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} minutes"
    hours = seconds / 3600
    return (
        f"{hours:.3g} hours" if hours < 2 * HOURS_PER_DAY else f"{hours / HOURS_PER_DAY:,.4g} days"
    )


def _interval(run: TrainingRun) -> str:
    if run.interval_days is None:
        return ""
    low, high = run.interval_days
    return f" (90 %: {low:,.4g} to {high:,.4g} days)"


def _money(run: TrainingRun) -> str:
    """What it costs, within the interval of its days, and since when the price is known."""
    read_on = f", listed on {run.price_date}" if run.price_date else ""
    return f"{_cost(run)}, at {run.price_per_gpu_hour:g} per GPU and hour{read_on}"


def _cost(run: TrainingRun) -> str:
    if run.cost is None:
        return ""
    ends = run.cost_interval
    between = "" if ends is None else f" ({_count(ends[0])} to {_count(ends[1])})"
    return f"{_count(run.cost)}{between} {run.currency}"
