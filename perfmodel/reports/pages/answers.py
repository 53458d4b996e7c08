"""Pages of answers to more than one question: comparisons, rankings, searches, what-ifs, scores."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.planning.layouts.search import LayoutQuestion, LayoutRanking
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking
from perfmodel.prediction.answer import Answer, Interval
from perfmodel.prediction.changing import WhatIf
from perfmodel.prediction.comparing import Comparison
from perfmodel.reports.comparing import describe_fastest, to_cells, to_headings
from perfmodel.reports.pages.page import (
    Bars,
    Block,
    Command,
    Grid,
    Headline,
    Legend,
    Lines,
    Matrix,
    Page,
    Range,
    Ranges,
    Section,
)
from perfmodel.reports.pages.prediction import PART_COLOURS, build_pieces, iter_sections
from perfmodel.reports.search import (
    HEADINGS,
    build_flags,
    to_front_lines,
    to_layout_cells,
    to_tally_line,
)
from perfmodel.reports.text import to_command
from perfmodel.reports.whatif import change_pct, iter_touched
from perfmodel.validation.fits import FitBoard
from perfmodel.validation.scoreboard import Scoreboard

MAX_ROWS = 200
FEWEST_INSIDE_PCT = 80.0
"""Of a 90 % interval: fewer rows inside are no luck of the draw."""
MOST_RANKS, MOST_TABLES = 32, 60
SCORE_HEADINGS = ("group", "rows", "mean error", "median", "bias", "inside interval")
LEGEND = Legend(list(PART_COLOURS.values()))
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
    bars = [
        (name, build_pieces(found.explanation.time), format_duration(found.iteration_ns))
        for name, found in entries
    ]
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
            Section("Times", [_ranges([(name, found) for name, found in entries])]),
            Section("The numbers", [Grid(headings, cells, numeric=range(1, len(headings)))]),
            Section("Where the time goes", [Bars(bars, is_spelt_out=False), LEGEND]),
            Section("No answer", [Lines(faults)] if faults else []),
            Section("To ask again", commands),
        ),
    ).render()


def _ranges(answers: Sequence[tuple[str, Answer]]) -> Ranges:
    return _interval_ranges([(name, found.iteration_ns, found.interval) for name, found in answers])


def _interval_ranges(rows: Sequence[tuple[str, int, Interval]]) -> Ranges:
    most_ns = max([interval.high_ns for _, _, interval in rows] + [ns for _, ns, _ in rows] + [1])
    least_ns = min(ns for _, ns, _ in rows)
    return Ranges(
        [
            Range(
                name,
                format_duration(time_ns),
                time_ns / most_ns,
                interval.low_ns / most_ns,
                interval.high_ns / most_ns,
                is_best=time_ns == least_ns,
            )
            for name, time_ns, interval in rows
        ],
        INTERVAL_NOTE,
    )


def build_rank_page(ranking: Ranking, question: RankQuestion | None = None) -> str:
    """Sharding plans, fastest first; *question* is what was asked, where it is known."""
    best = ranking.plans[0]
    headings = ("", "plan", "time ms", "90 % interval ms", "beats next", "bound by", "straggler",
                "memory GiB")  # fmt: skip
    gains = [
        f"A tenth less {bound.value} would save {format_duration(gain)}."
        for bound, gain in best.gains_ns.items()
        if gain
    ]
    rows = [_plan_cells(plan) for plan in ranking.plans]
    return Page(
        title="Sharding plans, fastest first",
        headline=Headline(
            verdict=f"{best.plan.name} fits" if ranking.fits else "No plan fits in memory",
            is_good=ranking.fits,
            answer=format_duration(best.answer.iteration_ns),
            beside=f"per iteration, {_interval_words(best.answer.interval)}",
            facts=(
                ranking.verdict,
                f"{ranking.plans_judged} plans judged by their {ranking.mode.value}",
            ),
        ),
        sections=(
            Section("The question", [Lines(ranking.facts), *_rank_question(question)]),
            Section("Times", [_ranges([(plan.plan.name, plan.answer) for plan in ranking.plans])]),
            Section("Plans", [Grid(headings, rows, numeric=(0, 2, 3, 4, 7), code=(1,))]),
            Section(f"Load per rank under {best.plan.name}", [_load_matrix(best)]),
            Section(f"Where {best.plan.name} puts the tables", [_table_matrix(best)]),
            Section(f"What would make {best.plan.name} faster", [Lines(gains)]),
            Section("Not ranked", [Lines(ranking.refusals)] if ranking.refused else []),
            Section("Assumptions", [Lines(ranking.assumptions)]),
        ),
    ).render()


def _interval_words(interval: Interval) -> str:
    low, high = format_duration(interval.low_ns), format_duration(interval.high_ns)
    return f"90 % interval {low} to {high}"


def _rank_question(question: RankQuestion | None) -> list[Block]:
    if question is None:
        return []
    defaults = {one.name: one.default for one in fields(question)}
    given = {
        name: getattr(question, name)
        for name in (
            "workload",
            "topology",
            "hosts",
            "ranks_per_host",
            "tables",
            "indices",
            "stack",
        )
    }
    rows = [(key.replace("_", " "), str(value)) for key, value in given.items() if value]
    words = [
        f"--{key.replace('_', '-')} {shlex.quote(str(value))}"
        for key, value in given.items()
        if value is not None and value != defaults[key]
    ]
    words += [f"--set {shlex.quote(change)}" for change in question.overrides]
    words += [f"--plan {shlex.quote(file)}" for file in question.plan_files]
    words += [f"--calibration {shlex.quote(file)}" for file in question.calibration]
    if question.sharders != defaults["sharders"]:
        words += [f"--sharder {name}" for name in question.sharders or ("none",)]
    for option, value in (("search", question.search_seconds), ("batches", question.batches)):
        words += [f"--{option} {value:g}"] if value else []
    if question.overrides:
        rows.append(("set", ", ".join(question.overrides)))
    return [Grid((), rows, code=(1,)), Command(f"perfmodel rank {' '.join(words)}")]


def _plan_cells(plan: RankedPlan) -> list[str]:
    interval = plan.answer.interval
    return [
        str(plan.place),
        plan.plan.name,
        f"{plan.answer.iteration_ns / NS_PER_MS:.3f}",
        f"{interval.low_ns / NS_PER_MS:.2f} to {interval.high_ns / NS_PER_MS:.2f}",
        "" if plan.beats_next is None else f"{100 * plan.beats_next:.0f} %",
        plan.bound.value,
        f"rank {plan.straggler.rank}: {', '.join(plan.straggler.tables) or 'no table'}",
        f"{plan.loads.peak_bytes / BYTES_PER_GIB:.1f}{'' if plan.fits else ' (too much)'}",
    ]


def _load_matrix(ranked: RankedPlan) -> Matrix:
    """Lookups, bytes sent and memory, a column a rank, each shaded by its largest."""
    loads = ranked.loads
    rows = []
    for words, values, unit, form in (
        ("rows looked up, thousand", loads.lookups, 1e3, ",.0f"),
        ("vectors sent, MB", loads.sent_bytes, 1e6, ",.1f"),
        ("memory, GiB", loads.memory_bytes, BYTES_PER_GIB, ".1f"),
    ):
        most = max(*values, 1)
        cells = [(format(value / unit, form), 0.7 * value / most) for value in values[:MOST_RANKS]]
        rows.append((words, cells))
    return Matrix("", _rank_columns(ranked), rows, _left_out(ranked.plan.rank_count, "ranks"))


def _table_matrix(ranked: RankedPlan) -> Matrix:
    """The share of each table that each rank holds, largest tables first."""
    plan = ranked.plan
    held = np.zeros((len(plan.tables), plan.rank_count))
    for shard in plan.shards:
        held[shard.table, shard.rank] += shard.rows * shard.width
    order = sorted(range(len(plan.tables)), key=lambda place: (-plan.tables[place].rows, place))
    rows = []
    for place in order[:MOST_TABLES]:
        table, kind = plan.tables[place], plan.kinds[place].value.replace("_", " ")
        shares = held[place] / (table.rows * table.width)
        if place in plan.copied_places:
            shares = np.ones(plan.rank_count)
        cells = [(f"{share:.0%}" if share else "", 0.7 * share) for share in shares[:MOST_RANKS]]
        rows.append((f"{table.name}: {table.rows:,} x {table.width}, {kind}", cells))
    note = " ".join(
        part
        for part in (
            _left_out(plan.rank_count, "ranks"),
            f"{len(order) - MOST_TABLES} smaller tables are in the JSON."
            if len(order) > MOST_TABLES
            else "",
            f"Vectors of {len(plan.summed_in_host)} tables are summed inside a host first."
            if plan.summed_in_host
            else "",
        )
        if part
    )
    return Matrix("table \\ rank", _rank_columns(ranked), rows, note)


def _rank_columns(ranked: RankedPlan) -> list[str]:
    return [str(rank) for rank in range(min(ranked.plan.rank_count, MOST_RANKS))]


def _left_out(rank_count: int, word: str) -> str:
    return (
        f"{rank_count - MOST_RANKS} more {word} are in the JSON." if rank_count > MOST_RANKS else ""
    )


def build_search_page(rankings: Sequence[LayoutRanking]) -> str:
    """The fastest layouts for every number of hosts."""
    best = min(rankings, key=lambda one: one.best.time_ns)
    question = best.question
    flags = [Command(f"{trainer}: {text}") for trainer, text in build_flags(best.best).items()]
    changes = " ".join(
        f"--set {key}={value}" for key, value in best.best.candidate.overrides.items()
    )
    again = (
        f"perfmodel predict --workload {question.workload} --topology {question.topology} "
        f"--hosts {best.hosts} {changes}"
    )
    return Page(
        title=f"Layouts of {question.workload} on {question.topology}",
        headline=Headline(
            verdict=f"{best.best.name} fits and is "
            + ("fastest" if best.tally.is_proven else "the fastest found"),
            is_good=True,
            answer=format_duration(best.best.time_ns),
            beside=f"per iteration on {best.rank_count} GPUs, "
            f"{_interval_words(best.best.interval)}",
            facts=best.reasons,
        ),
        sections=(
            Section("The question", _search_question(question)),
            *(Section(f"On {one.rank_count} GPUs", _layouts(one)) for one in rankings),
            Section(
                "More GPUs that pay", [Lines(to_front_lines(rankings))] if len(rankings) > 1 else []
            ),
            Section("To run it", flags),
            Section("To ask for the fastest again", [Command(again)]),
        ),
    ).render()


def _search_question(question: LayoutQuestion) -> list[Block]:
    hosts = ",".join(str(one) for one in question.hosts)
    rows = [("workload", question.workload), ("topology", question.topology), ("hosts", hosts)]
    rows += [("stack", question.stack)] if question.stack else []
    words = [f"--{key} {shlex.quote(value)}" for key, value in rows]
    rows += [("fixed", ", ".join(question.overrides))] if question.overrides else []
    words += [f"--set {shlex.quote(change)}" for change in question.overrides]
    words += [f"--calibration {shlex.quote(file)}" for file in question.calibration]
    words.append(f"--seconds {question.seconds:g}")
    return [Grid((), rows, code=(1,)), Command(f"perfmodel search {' '.join(words)}")]


def _layouts(ranking: LayoutRanking) -> list[Block]:
    rows = [to_layout_cells(ranking, one, place) for place, one in enumerate(ranking.layouts, 1)]
    has_price = ranking.question.price_per_gpu_hour is not None
    headings = [*HEADINGS, *(["per M tokens"] if has_price else [])]
    names = [f"{place}. {one.name}" for place, one in enumerate(ranking.layouts, 1)]
    times = [
        (name, one.time_ns, one.interval) for name, one in zip(names, ranking.layouts, strict=True)
    ]
    return [
        Lines([f"{to_tally_line(ranking)}."]),
        _interval_ranges(times),
        Grid(headings, rows, numeric=range(len(headings))),
    ]


def build_whatif_page(whatif: WhatIf) -> str:
    """A job before and after its changes, and the changed one in full."""
    before, after = whatif.before, whatif.after
    change = change_pct(before, after)
    steps = [("before", before), *((step.text, step.outcome) for step in whatif.steps)]
    swept = [] if whatif.sweep is None else [(s.text, s.outcome) for s in whatif.sweep.steps]
    bars = [
        (name, build_pieces(found.explanation.time), format_duration(found.iteration_ns))
        for name, found in (*steps, *swept)
    ]
    return Page(
        title=f"What if: {whatif.job}",
        headline=Headline(
            verdict="no change" if not change else f"{change:+.1f} %",
            is_good=change <= 0,
            answer=format_duration(after.iteration_ns),
            beside=f"per iteration, before {format_duration(before.iteration_ns)}",
            facts=(f"bound by {after.bound.name}, {after.bound_ratio:.0%} of the critical path",),
        ),
        sections=(
            Section("Step by step", [_ranges(steps)]),
            Section("Over the sweep", [_ranges(swept)] if swept else []),
            Section("Where the time goes", [Bars(bars, is_spelt_out=False), LEGEND]),
            Section("What the changes touched", [Lines(tuple(iter_touched(whatif)))]),
            Section("What the changes assume", [Lines(whatif.assumptions)]),
            *iter_sections(after, [step.text for step in whatif.steps]),
        ),
    ).render()


def build_score_page(board: Scoreboard) -> str:
    """Predictions beside measurements: by group, then the rows that are furthest off."""
    overall = board.overall
    rows = [
        (
            name,
            str(score.rows),
            f"{score.mape_pct:.1f} %",
            f"{score.median_pct:.1f} %",
            f"{score.bias_pct:+.1f} %",
            f"{score.inside_interval_pct:.0f} %",
        )
        for name, score in board.groups.items()
    ]
    worst = sorted(board.deviations, key=lambda one: -abs(one.error_pct))[:MAX_ROWS]
    far = [
        (one.group, str(one.row), _number(one.measured), _number(one.predicted),
         f"{one.error_pct:+.1f} %")
        for one in worst
    ]  # fmt: skip
    left_out = [f"{one.row}: {one.reason}" for one in board.unsupported[:MAX_ROWS]]
    unit = {"collectives": "us", "runs": "s"}.get(board.kind, "ms")
    return Page(
        title=f"Predicted and measured: {board.kind}",
        headline=Headline(
            verdict=""
            if overall is None
            else f"{overall.inside_interval_pct:.0f} % of the rows lie in their 90 % interval",
            is_good=overall is not None and overall.inside_interval_pct >= FEWEST_INSIDE_PCT,
            answer="no row" if overall is None else f"{overall.mape_pct:.1f} %",
            beside="mean absolute error",
            facts=(f"{len(board.deviations)} rows, {len(board.unsupported)} left out",),
        ),
        sections=(
            Section("By group", [Grid(SCORE_HEADINGS, rows, range(1, len(SCORE_HEADINGS)))]),
            Section(
                "Furthest off",
                [
                    Grid(
                        ("group", "row", f"measured {unit}", f"predicted {unit}", "error"),
                        far,
                        (2, 3, 4),
                        (1,),
                    )
                ],
            ),
            Section("Left out", [Lines(left_out)] if left_out else []),
        ),
    ).render()


def build_fit_page(board: FitBoard) -> str:
    """The memory verdict beside what ran and what failed."""
    headings = ("group", "failed", "caught", "ran", "false alarms", "balanced accuracy")
    rows = [
        (
            score.group,
            str(score.failed),
            str(score.caught),
            str(score.ran),
            str(score.false_alarms),
            _percent(score.balanced_accuracy_pct),
        )
        for score in board.scores
    ]
    wrong = [one for one in board.verdicts if one.ran != one.fits][:MAX_ROWS]
    misses = [
        (one.group, one.row, "ran" if one.ran else "failed", one.reason or "said to fit")
        for one in wrong
    ]
    overall = board.scores[-1] if board.scores else None
    accuracy = None if overall is None else overall.balanced_accuracy_pct
    return Page(
        title="Fits or not, said and seen",
        headline=Headline(
            verdict="",
            is_good=True,
            answer=_percent(accuracy) or "one half is empty",
            beside="balanced accuracy",
            facts=(f"{len(board.verdicts)} configurations that ran or failed",),
        ),
        sections=(
            Section("By group", [Grid(headings, rows, range(1, len(headings)))]),
            Section("Told wrongly", [Grid(("group", "row", "it", "because"), misses, (), (1,))])
            if misses
            else Section("Told wrongly", []),
        ),
    ).render()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
