"""A comparison, shown: one line per scenario as table, CSV, JSON and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import perfmodel
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration, format_size
from perfmodel.prediction.answer import Part, Prediction
from perfmodel.prediction.comparing import Compared, Comparison
from perfmodel.reports.document import to_scenario_document
from perfmodel.reports.pictures import as_written, build_figure
from perfmodel.reports.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

SCHEMA_VERSION = 1
SAME = 0.01
"""Times closer than this are told as equal."""
_SHORT = {
    Part.COMPUTE: "compute",
    Part.EXPOSED_COMMUNICATION: "comm.",
    Part.EXPOSED_COPIES: "copies",
    Part.WAITING_FOR_OTHER_RANKS: "waiting",
    Part.HOST_BOUND_IDLE: "idle",
}
_COLOURS = ("#3f9a54", "#3b74c4", "#8d63b5", "#e0b43a", "#c8553d")


def to_comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat row per scenario; what is not known is None."""
    rows = [_row(entry) for entry in comparison.entries]
    if comparison.price_per_gpu_hour is not None:
        for row, entry in zip(rows, comparison.entries, strict=True):
            row["cost_per_thousand_iterations"] = comparison.cost_of(entry)
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
            {**row, "scenario": to_scenario_document(entry.scenario)}
            for row, entry in zip(rows, comparison.entries, strict=True)
        ],
        "findings": list(comparison.findings),
    }


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The table, what is fastest, and where a curve bends."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for number, heading in enumerate(to_headings(comparison)):
        table.add_column(Text(heading), justify="left" if number == 0 else "right", no_wrap=True)
    for entry in comparison.answered:
        table.add_row(*(Text(cell) for cell in to_cells(entry, comparison)))
    console.print(table)
    for entry in comparison.entries:
        if entry.prediction is None:
            console.print(Text(f"no answer for {entry.name}: {printable(entry.fault)}"))
    for sentence in (describe_fastest(comparison), *comparison.findings):
        console.print(Text(printable(sentence)), soft_wrap=True)


def to_headings(comparison: Comparison) -> list[str]:
    """What stands above the columns; parts that nobody has are left out."""
    units = {row["per_s_unit"] for row in to_comparison_rows(comparison) if row["per_s_unit"]}
    return [
        ", ".join(axis.key for axis in comparison.axes) or "scenario",
        "time",
        "90 % interval",
        *([f"{'/'.join(sorted(units))}/s"] if units else []),
        *(["MFU"] if _has_mfu(comparison) else []),
        *([] if comparison.price_per_gpu_hour is None else ["per 1,000"]),
        *(_SHORT[part] for part in _shown_parts(comparison)),
        "memory",
        "bound by",
    ]


def to_cells(entry: Compared, comparison: Comparison) -> list[str]:
    """One line of the table."""
    found = entry.prediction
    assert found is not None
    row, memory = _row(entry), found.memory
    low, high = format_duration(found.interval.low_ns), format_duration(found.interval.high_ns)
    total_ns = max(found.explanation.time.total_ns, 1)
    has_rate = any(one["per_s"] is not None for one in to_comparison_rows(comparison))
    rate = "" if row["per_s"] is None else f"{row['per_s']:,.0f}"
    mfu = "" if row["model_utilisation"] is None else f"{row['model_utilisation']:.1%}"
    size = "" if memory is None else format_size(memory.peak_bytes)
    return [
        printable(_name(entry, comparison)),
        format_duration(found.iteration_ns),
        f"{low} to {high}",
        *([rate] if has_rate else []),
        *([mfu] if _has_mfu(comparison) else []),
        *([] if (cost := comparison.cost_of(entry)) is None else [f"{cost:.4g}"]),
        *(f"{_parts(found)[part] / total_ns:.0%}" for part in _shown_parts(comparison)),
        size if memory is None or memory.fits else f"{size} TOO MUCH",
        f"{found.bound.name} {found.bound_ratio:.0%}",
    ]


def _name(entry: Compared, comparison: Comparison) -> str:
    if len(comparison.axes) == 1:
        return entry.name.partition("=")[2]
    return entry.name


def _has_mfu(comparison: Comparison) -> bool:
    return any(row["model_utilisation"] is not None for row in to_comparison_rows(comparison))


def _shown_parts(comparison: Comparison) -> list[Part]:
    return [
        part
        for part in Part
        if any(entry.prediction and _parts(entry.prediction)[part] for entry in comparison.answered)
    ]


def describe_fastest(comparison: Comparison) -> str:
    """Which scenario is fastest, by how much, and whether it fits."""
    best = comparison.fastest
    assert best.prediction is not None
    others = [entry for entry in comparison.answered if entry is not best]
    time = format_duration(best.prediction.iteration_ns)
    if not others:
        return f"Only {best.name} has an answer: {time}."
    slowest = max(entry.prediction.iteration_ns for entry in others if entry.prediction)
    factor = slowest / max(best.prediction.iteration_ns, 1)
    if factor < 1 + SAME:
        return f"All take {time}, to {100 * SAME:g} %.{_most_done(comparison)}"
    memory = best.prediction.memory
    fits = "" if memory is None or memory.fits else ", and does not fit in memory"
    shortest = (
        f"Shortest iteration: {best.name}, {time}, {factor:.3g} times as fast as the slowest{fits}."
    )
    return f"{shortest}{_most_done(comparison)}"


def _most_done(comparison: Comparison) -> str:
    """Which scenario gets most done per second, where iterations do different amounts of work."""
    rows = [row for row in to_comparison_rows(comparison) if row["per_s"] is not None]
    works = {entry.prediction.facts.work for entry in comparison.answered if entry.prediction}
    units = {row["per_s_unit"] for row in rows}
    if len(rows) < len(comparison.answered) or len(works) < 2 or len(units) != 1:
        return ""
    most = max(rows, key=lambda row: row["per_s"])
    return f" Most per second: {most['name']}, {most['per_s']:,.0f} {most['per_s_unit']}/s."


def draw_comparison(comparison: Comparison) -> Figure:
    """Times with intervals, cut into parts; a curve of throughput beside a sweep of numbers."""
    entries = comparison.answered
    figure = build_figure(11, 1.8 + 0.42 * len(entries))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_parts(left, comparison)
    rates = [_row(entry)["per_s"] for entry in entries]
    places = range(len(entries))
    names = [as_written(_name(entry, comparison)) for entry in entries]
    if all(rate is not None for rate in rates):
        right.plot(places, rates, marker="o", color="#3b74c4")
        right.set_ylabel(f"{_row(entries[0])['per_s_unit']} per second")
        right.set_xticks(list(places), names, rotation=30, ha="right", fontsize=8)
        right.set_ylim(0, 1.08 * max(rates))
        right.set_xlabel(to_headings(comparison)[0])
        right.yaxis.set_major_formatter("{x:,.0f}")
    else:
        right.set_axis_off()
    return figure


def _draw_parts(axis: Any, comparison: Comparison) -> None:
    entries = comparison.answered
    places = list(range(len(entries)))
    done = [0.0] * len(entries)
    for part, colour in zip(Part, _COLOURS, strict=True):
        widths = [
            _parts(entry.prediction)[part] / NS_PER_MS for entry in entries if entry.prediction
        ]
        if any(widths):
            axis.barh(places, widths, left=done, color=colour, label=part.value.replace("_", " "))
        done = [start + width for start, width in zip(done, widths, strict=True)]
    rows = [_row(entry) for entry in entries]
    below = [max(row["iteration_time_ms"] - row["low_ms"], 0) for row in rows]
    above = [max(row["high_ms"] - row["iteration_time_ms"], 0) for row in rows]
    times = [row["iteration_time_ms"] for row in rows]
    axis.errorbar(times, places, xerr=[below, above], fmt="none", ecolor="#333", capsize=3)
    names = [as_written(_name(entry, comparison)) for entry in entries]
    axis.set_yticks(places, names, fontsize=8)
    axis.invert_yaxis()
    axis.set_ylabel(to_headings(comparison)[0])
    axis.set_xlabel("iteration ms, with 90 % interval")
    axis.legend(fontsize=7)
