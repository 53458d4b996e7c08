"""Pages of plans and layouts: a ranking of sharding plans, a search of parallel layouts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.planning.layouts.ranking import LayoutRanking, RankedLayout
from perfmodel.planning.question import LayoutQuestion, RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking
from perfmodel.reports.pages.answers import interval_ranges, ranges
from perfmodel.reports.pages.page import (
    Block,
    Command,
    Grid,
    Headline,
    Lines,
    Matrix,
    Page,
    Section,
)
from perfmodel.reports.search import (
    HEADINGS,
    build_flags,
    to_front_lines,
    to_layout_cells,
    to_tally_line,
)
from perfmodel.reports.text import describe_interval

MOST_RANKS, MOST_TABLES = 32, 60
OFTEN_ONE = ("cp", "ep", "runs")
"""Columns that are left out where they say nothing."""


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
    times = [(plan.plan.name, plan.answer) for plan in ranking.plans]
    return Page(
        title="Sharding plans, fastest first",
        headline=Headline(
            verdict=f"{best.plan.name} fits" if ranking.fits else "No plan fits in memory",
            is_good=ranking.fits,
            answer=format_duration(best.answer.iteration_ns),
            beside=f"per iteration, {describe_interval(best.answer.interval)}",
            facts=(
                ranking.verdict,
                f"{ranking.plans_judged} plans judged by their {ranking.mode.value}",
            ),
        ),
        sections=(
            Section("The question", [Lines(ranking.facts), *_rank_question(question)]),
            Section(
                "Times",
                [ranges(times, best.answer)],
            ),
            Section("Plans", [Grid(headings, rows, numeric=(0, 2, 3, 4, 7), code=(1,))]),
            Section(f"Load per rank under {best.plan.name}", [_load_matrix(best)]),
            Section(f"Where {best.plan.name} puts the tables", [_table_matrix(best)]),
            Section(f"What would make {best.plan.name} faster", [Lines(gains)]),
            Section("Not ranked", [Lines(ranking.refusals)] if ranking.refused else []),
            Section("Assumptions", [Lines(ranking.assumptions)]),
        ),
    ).render()


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
    if question.ranks_per_host is not None:
        again += f" --ranks-per-host {question.ranks_per_host}"
    return Page(
        title=f"Layouts of {question.workload} on {question.topology}",
        headline=Headline(
            verdict=f"{best.best.name} fits and is "
            + ("fastest" if best.tally.is_proven else "the fastest found"),
            is_good=True,
            answer=format_duration(best.best.time_ns),
            beside=f"per iteration on {best.rank_count} GPUs, "
            + describe_interval(best.best.interval),
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
    per_host = question.ranks_per_host
    rows += [("ranks per host", str(per_host))] if per_host else []
    rows += [("stack", question.stack)] if question.stack else []
    words = [f"--{key.replace(' ', '-')} {shlex.quote(value)}" for key, value in rows]
    rows += [("fixed", ", ".join(question.overrides))] if question.overrides else []
    words += [f"--set {shlex.quote(change)}" for change in question.overrides]
    words += [f"--calibration {shlex.quote(file)}" for file in question.calibration]
    words.append(f"--seconds {question.seconds:g}")
    return [Grid((), rows, code=(1,)), Command(f"perfmodel search {' '.join(words)}")]


def _names(layouts: Sequence[RankedLayout]) -> list[str]:
    """A name each: the split, and of the rest what is not the same in all of them."""
    further = []
    for one in layouts:
        spread, spec = one.candidate.chosen.layout, one.candidate.spec
        sharding, recompute = spec.parallel.sharding.value, spec.training.recompute.value
        further.append(
            (
                "sp" if spread.is_sequence_parallel else "",
                f"runs={spread.interleaving}" if spread.interleaving > 1 else "",
                "" if sharding == "none" else sharding,
                "" if recompute == "none" else f"recompute {recompute}",
            )
        )
    told = [len(set(words)) > 1 for words in zip(*further, strict=True)]
    return [
        " ".join([one.name, *(word for word, one in zip(words, told, strict=True) if word and one)])
        for one, words in zip(layouts, further, strict=True)
    ]


def _layouts(ranking: LayoutRanking) -> list[Block]:
    rows = [to_layout_cells(ranking, one, place) for place, one in enumerate(ranking.layouts, 1)]
    has_price = ranking.question.price_per_gpu_hour is not None
    headings = [*HEADINGS, *(["per M tokens"] if has_price else [])]
    shown = [
        column
        for column, heading in enumerate(headings)
        if heading not in OFTEN_ONE or any(row[column] != "1" for row in rows)
    ]
    times = [
        (f"{place}. {name}", one.time_ns, one.interval)
        for place, (name, one) in enumerate(
            zip(_names(ranking.layouts), ranking.layouts, strict=True), 1
        )
    ]
    return [
        Lines([f"{to_tally_line(ranking)}."]),
        interval_ranges(times, ranking.best.time_ns),
        Grid(
            [headings[column] for column in shown],
            [[row[column] for column in shown] for row in rows],
            numeric=range(len(shown)),
        ),
    ]
