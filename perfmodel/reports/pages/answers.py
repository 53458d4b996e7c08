"""Pages of answers to more than one question: comparisons and what-ifs."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.units import format_duration
from perfmodel.prediction.answer import Answer, Interval, Prediction
from perfmodel.prediction.changing import WhatIf
from perfmodel.prediction.comparing import Comparison
from perfmodel.prediction.scenario import JobScenario
from perfmodel.reports.comparing import describe_fastest, to_cells, to_headings
from perfmodel.reports.pages.page import (
    Bars,
    Block,
    Command,
    Grid,
    Headline,
    Legend,
    Lines,
    Page,
    Range,
    Ranges,
    Section,
)
from perfmodel.reports.pages.prediction import PART_COLOURS, build_pieces, iter_sections
from perfmodel.reports.text import to_command, to_whatif_command
from perfmodel.reports.whatif import SMALLEST_PCT, change_pct, iter_touched

MAX_ROWS = 200
INTERVAL_NOTE = "The thin line is the 90 % interval."


def build_comparison_page(comparison: Comparison) -> str:
    """Scenarios side by side."""
    best = comparison.fastest
    entries = [(entry.name, entry.prediction) for entry in comparison.answered if entry.prediction]
    assert best.prediction is not None
    memory = best.prediction.memory
    is_good = memory is None or memory.fits
    headings = to_headings(comparison)
    cells = [to_cells(entry, comparison) for entry in comparison.answered]
    faults = [f"{e.name}: {e.fault}" for e in comparison.entries if e.prediction is None]
    commands = [Command(to_command(entry.scenario)) for entry in comparison.answered[:MAX_ROWS]]
    return Page(
        title=f"{len(comparison.entries)} scenarios side by side",
        headline=Headline(
            verdict=f"{best.name} is fastest" if is_good else "None of them fits in memory",
            is_good=is_good,
            answer=format_duration(best.prediction.iteration_ns),
            beside="per iteration",
            facts=(describe_fastest(comparison), *comparison.findings),
        ),
        sections=(
            Section("Times", [ranges(entries, best.prediction)]),
            Section("The numbers", [Grid(headings, cells, numeric=range(1, len(headings)))]),
            Section("Where the time goes", _parts(entries)),
            Section("No answer", [Lines(faults)] if faults else []),
            Section("To ask again", commands),
        ),
    ).render()


def _parts(answers: Sequence[tuple[str, Prediction]]) -> list[Block]:
    """Bars of where the time goes, and what their colours mean."""
    bars = [
        (name, build_pieces(found.explanation.time), format_duration(found.iteration_ns))
        for name, found in answers
    ]
    seen = {piece.colour for _, pieces, _ in bars for piece in pieces}
    entries = [entry for entry in PART_COLOURS.values() if entry[0] in seen]
    return [Bars(bars, is_spelt_out=False), Legend(entries)]


def ranges(answers: Sequence[tuple[str, Answer]], best: Answer) -> Ranges:
    """The times of *answers* with their intervals; those like the *best* are marked."""
    rows = [(name, found.iteration_ns, found.interval) for name, found in answers]
    return interval_ranges(rows, best.iteration_ns)


def interval_ranges(rows: Sequence[tuple[str, int, Interval]], best_ns: int) -> Ranges:
    """Times with their intervals; those of *best_ns* are marked."""
    most_ns = max([interval.high_ns for _, _, interval in rows] + [ns for _, ns, _ in rows] + [1])
    has_width = any(interval.high_ns > interval.low_ns for _, _, interval in rows)
    return Ranges(
        [
            Range(
                name,
                format_duration(time_ns),
                time_ns / most_ns,
                interval.low_ns / most_ns,
                interval.high_ns / most_ns,
                is_best=time_ns == best_ns,
            )
            for name, time_ns, interval in rows
        ],
        INTERVAL_NOTE if has_width else "",
    )


def build_whatif_page(whatif: WhatIf) -> str:
    """A job before and after its changes, and the changed one in full."""
    before, after = whatif.before, whatif.after
    change = change_pct(before, after)
    steps = [("before", before), *((step.text, step.outcome) for step in whatif.steps)]
    swept = [] if whatif.sweep is None else [(s.text, s.outcome) for s in whatif.sweep.steps]
    fastest = min((found for _, found in (*steps, *swept)), key=lambda one: one.iteration_ns)
    return Page(
        title=f"What if: {whatif.job}",
        headline=Headline(
            verdict=_verdict(change),
            is_good=change <= 0,
            answer=format_duration(after.iteration_ns),
            beside=f"per iteration, before {format_duration(before.iteration_ns)}",
            facts=(f"bound by {after.bound.name}, {after.bound_ratio:.0%} of the critical path",),
        ),
        sections=(
            Section("Step by step", [ranges(steps, fastest)]),
            Section("Over the sweep", [ranges(swept, fastest)] if swept else []),
            Section("Where the time goes, before and after", _parts([*steps, *swept])),
            Section("What the changes touched", [Lines(tuple(iter_touched(whatif)))]),
            Section("What the changes assume", [Lines(whatif.assumptions)]),
            *iter_sections(after, _command(whatif)),
        ),
    ).render()


def _verdict(change: float) -> str:
    if abs(change) < SMALLEST_PCT:
        return "hardly a change" if change else "no change"
    return f"{abs(change):.1f} % {'longer' if change > 0 else 'shorter'}"


def _command(whatif: WhatIf) -> str | None:
    scenario = whatif.after.scenario
    if not isinstance(scenario, JobScenario):
        return None
    swept = None if whatif.sweep is None else whatif.sweep.text
    return to_whatif_command(scenario, [step.text for step in whatif.steps], swept)
