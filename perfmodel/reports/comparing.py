"""The report of a comparison and its JSON: one line per scenario."""

from __future__ import annotations

from typing import Any

import perfmodel
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration, format_size
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.comparing import Compared, Comparison
from perfmodel.reports.blocks import (
    Command,
    Headline,
    Plot,
    Point,
    Report,
    Section,
    Sentences,
    Table,
    time_bars,
)
from perfmodel.reports.prediction import compare_parts, draw_timelines
from perfmodel.reports.runs import missing_price, run_cells, run_row
from perfmodel.reports.text import (
    describe_interval,
    format_range,
    to_command,
    to_question_document,
)

SCHEMA_VERSION = 1
SAME = 0.01
"""Times closer than this count as equal."""
_SHORT = {
    Part.COMPUTE: "compute",
    Part.EXPOSED_COMMUNICATION: "comm.",
    Part.EXPOSED_COPIES: "copies",
    Part.WAITING_FOR_OTHER_RANKS: "waiting",
    Part.HOST_BOUND_IDLE: "idle",
}
MOST_ROWS = 200
MOST_TIMELINES = 4
"""More are a sweep, which has a curve; they would also make a page of hundreds of megabytes."""


def to_comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat row per scenario; what is not known is None."""
    rows = [_row(entry) for entry in comparison.entries]
    if comparison.price_per_gpu_hour is not None:
        for row, entry in zip(rows, comparison.entries, strict=True):
            row["cost_per_million"] = comparison.cost_of(entry)
    if comparison.whole is not None:
        for row, entry in zip(rows, comparison.entries, strict=True):
            run = comparison.run_of(entry)
            row.update({} if run is None else run_row(run))
    return rows


def _row(entry: Compared) -> dict[str, Any]:
    found = entry.prediction
    if found is None:
        empty = dict.fromkeys([*_numbers_of(None), *(f"{part.value}_ms" for part in Part)])
        return {"name": entry.name, **empty, "fault": entry.fault}
    parts = {f"{part.value}_ms": ns / NS_PER_MS for part, ns in _parts(found).items()}
    return {"name": entry.name, **_numbers_of(found), **parts, "fault": None}


def _parts(found: Prediction) -> dict[Part, int]:
    return {part: found.explanation.time.of_part_ns.get(part, 0) for part in Part}


def _numbers_of(found: Prediction | None) -> dict[str, Any]:
    figures = None if found is None else found.yardsticks
    memory = None if found is None else found.memory
    return {
        "iteration_time_ms": found and found.iteration_ns / NS_PER_MS,
        "low_ms": found and found.interval.low_ns / NS_PER_MS,
        "high_ms": found and found.interval.high_ns / NS_PER_MS,
        "ranks": found and found.facts.rank_count,
        "per_s": figures and figures.per_s,
        "per_s_unit": figures and figures.unit,
        "per_s_per_gpu": figures and figures.per_s_per_gpu,
        "model_utilisation": figures and figures.model_utilisation,
        "memory_gib": memory and memory.peak_bytes / BYTES_PER_GIB,
        "fits": memory and memory.fits,
        "bound": found and found.bound.name,
        "bound_share": found and found.bound_ratio,
    }


def to_comparison_document(comparison: Comparison) -> dict[str, Any]:
    """*comparison* as plain values."""
    rows = to_comparison_rows(comparison)
    return {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "kind": "comparison",
        "sweep": {axis.key: list(axis.values) for axis in comparison.axes},
        "fastest": comparison.fastest.name,
        "scenarios": [
            {**row, "scenario": to_question_document(entry.scenario)}
            for row, entry in zip(rows, comparison.entries, strict=True)
        ],
        "findings": list(comparison.findings),
        **comparison.cautions.document(),
    }


def report_comparison(comparison: Comparison) -> Report:
    """Scenarios side by side."""
    best, price = comparison.fastest, comparison.price_per_gpu_hour
    entries = [(entry.name, entry.prediction) for entry in comparison.answered if entry.prediction]
    assert best.prediction is not None
    memory = best.prediction.memory
    is_good = memory is None or memory.fits
    verdict = _verdict(best, comparison)
    best_ns = best.prediction.iteration_ns
    times = [(name, found.iteration_ns, found.interval) for name, found in entries]
    faults = [f"{e.name}: {e.fault}" for e in comparison.entries if e.prediction is None]
    commands = [
        Command(to_command("predict", entry.scenario, run=comparison.whole, price=price))
        for entry in comparison.answered[:MOST_ROWS]
    ]
    return Report(
        title=f"{len(comparison.entries)} scenarios side by side",
        headline=Headline(
            verdict=verdict if is_good else f"none fits in memory; {verdict}",
            is_good=is_good,
            answer=format_duration(best_ns),
            caption="per iteration",
            facts=(*_cautions(comparison), *comparison.findings),
        ),
        sections=(
            Section("Times", more=lambda: [time_bars(times, best_ns)]),
            Section("Throughput", more=lambda: _curves(comparison)),
            Section("The numbers", [_table(comparison)]),
            Section("Where the time goes", more=lambda: [compare_parts(entries)]),
            Section(
                "Timelines",
                more=lambda: draw_timelines(entries) if len(entries) <= MOST_TIMELINES else [],
            ),
            Section("No answer", [Sentences(faults)]),
            Section("To ask again", more=lambda: commands),
        ),
        rows=to_comparison_rows(comparison),
        columns=160,
    ).warned(comparison.cautions)


def _curves(comparison: Comparison) -> list[Plot]:
    """Work per second over the numbers that a sweep goes over; per GPU, too, where these differ."""
    found = []
    for entry in comparison.answered:
        rate, value = _row(entry)["per_s"], _name(entry, comparison)
        if entry.prediction is None or rate is None or not value.replace(".", "", 1).isdigit():
            return []
        found.append((float(value), rate, entry.prediction))
    if len(comparison.axes) != 1:
        return []
    found.sort(key=lambda one: one[0])
    counts = [one.facts.rank_count for _, _, one in found]
    units = {_row(entry)["per_s_unit"] for entry in comparison.answered}
    per_s = f"{'/'.join(sorted(units))} per second"
    ways = [(per_s, [1] * len(counts))]
    ways += [(f"{per_s} and GPU", counts)] if len(set(counts)) > 1 else []
    return [
        Plot(
            [_point(*one, gpus) for one, gpus in zip(found, shared_by, strict=True)],
            _axis_names(comparison),
            words,
            note="The thin line is the 90 % interval.",
            are_joined=True,
        )
        for words, shared_by in ways
    ]


def _point(value: float, per_s: float, found: Prediction, gpus: int) -> Point:
    rate = per_s / gpus
    work = rate * found.iteration_ns
    ends = (work / max(found.interval.high_ns, 1), work / max(found.interval.low_ns, 1))
    return Point(value, rate, f"{value:g}: {rate:,.4g}, {describe_interval(found.interval)}", ends)


def _table(comparison: Comparison) -> Table:
    """One line per scenario; columns that are empty everywhere are left out."""
    columns: dict[str, list[str]] = {}
    units = {row["per_s_unit"] for row in to_comparison_rows(comparison) if row["per_s_unit"]}
    for entry in comparison.answered:
        assert entry.prediction is not None
        found, row, cost = entry.prediction, _row(entry), comparison.cost_of(entry)
        total_ns, memory = max(found.explanation.time.total_ns, 1), found.memory
        mfu = row["model_utilisation"]
        size = "" if memory is None else format_size(memory.peak_bytes)
        cells = {
            _axis_names(comparison): _name(entry, comparison),
            "time": format_duration(found.iteration_ns),
            "90 % interval": format_range(found.interval.low_ns, found.interval.high_ns),
            f"{'/'.join(sorted(units))}/s": "" if row["per_s"] is None else f"{row['per_s']:,.0f}",
            "MFU": "" if mfu is None else f"{mfu:.1%}",
            f"cost per M {'/'.join(sorted(units))}": "" if cost is None else f"{cost:.4g}",
            **run_cells(comparison.run_of(entry)),
            **{
                _SHORT[part]: f"{ns / total_ns:.0%}" if ns else ""
                for part, ns in _parts(found).items()
            },
            "memory": size if memory is None or memory.fits else f"{size} TOO MUCH",
            "limited by": f"{found.bound.name} {found.bound_ratio:.0%}",
        }
        for heading, cell in cells.items():
            columns.setdefault(heading, []).append(cell)
    shown = [heading for heading, cells in columns.items() if any(cells)]
    optional = ["90 % interval", "MFU", "energy", "goodput", "limited by", *_SHORT.values()]
    return Table(
        shown,
        list(zip(*(columns[heading] for heading in shown), strict=True)),
        numeric=range(1, len(shown)),
        optional=[shown.index(heading) for heading in optional if heading in shown],
    )


def _axis_names(comparison: Comparison) -> str:
    return ", ".join(axis.key for axis in comparison.axes) or "scenario"


def _name(entry: Compared, comparison: Comparison) -> str:
    return entry.name.partition("=")[2] if len(comparison.axes) == 1 else entry.name


def _verdict(best: Compared, comparison: Comparison) -> str:
    """Which scenario is fastest and by how much."""
    found = [entry.prediction for entry in comparison.answered if entry.prediction]
    assert best.prediction is not None
    if len(found) == 1:
        return f"only {best.name} has an answer"
    if comparison.differs_in_work:
        rates = [one.yardsticks.per_s for one in found if one.yardsticks]
        factor = max(rates) / max(min(rates), 1e-12)
        words = f"{best.name} has the highest throughput, {factor:.3g} times the lowest"
    else:
        times_ns = [one.iteration_ns for one in found]
        factor = max(times_ns) / max(best.prediction.iteration_ns, 1)
        words = f"{best.name} is fastest, {factor:.3g} times as fast as the slowest"
    return f"all are equally fast, to {100 * SAME:g} %" if factor < 1 + SAME else words


def _cautions(comparison: Comparison) -> list[str]:
    """What an iteration is, where that may differ, and prices that are missing."""
    found = [entry.prediction for entry in comparison.answered if entry.prediction]
    cautions = []
    if any(one.yardsticks is None for one in found):
        cautions.append("jobs that do not state their samples are compared by iteration time")
    for entry in comparison.answered:
        run = comparison.run_of(entry)
        if run is not None:
            cautions += missing_price(run, entry.name)
    return cautions
