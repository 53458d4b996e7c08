"""A ranking, shown: table, JSON, rows, words about the plan that is written, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embeddings.plan_document import list_unrunnable, to_plan_document
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking
from perfmodel.reports.document import interval_ms
from perfmodel.reports.pictures import as_written, build_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

SCHEMA_VERSION = 1
HEADINGS = (
    "", "plan", "time ms", "90 % interval", "beats next", "bound by", "straggler", "memory GiB",
)  # fmt: skip
WORDS = ("plan", "bound by", "straggler")
"""Columns that stand to the left."""
MOST_NAMED = 3


def to_ranking_document(ranking: Ranking, question: RankQuestion | None) -> dict[str, Any]:
    """The whole answer, plans included."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "ranking",
        "mode": ranking.mode.value,
        "rank_by": ranking.rank_by.value,
        "plans_judged": ranking.plans_judged,
        "device_memory_gib": ranking.device_memory_bytes / BYTES_PER_GIB,
        "asked": list(ranking.facts),
        "verdict": ranking.verdict,
        "fits": ranking.fits,
        "plans": [
            {**_row(plan), "loads": _loads(plan), "plan": to_plan_document(plan.plan)}
            for plan in ranking.plans
        ],
        "refused": [{"plan": name, "reason": reason} for name, reason in ranking.refused],
        "assumptions": list(ranking.assumptions),
        "question": None if question is None else _question(question),
    }


def to_ranking_rows(ranking: Ranking) -> list[dict[str, Any]]:
    """One flat row per plan, fastest first."""
    rows = []
    for plan in ranking.plans:
        row = _row(plan)
        low, high = row.pop("interval_ms")
        straggler, gains = row.pop("straggler"), row.pop("gains_ms")
        spread = row.pop("batch_spread_ms") or {}
        rows.append(
            {
                **row,
                "low_ms": low,
                "high_ms": high,
                "straggler_rank": straggler["rank"],
                "straggler_waited_ms": straggler["waited_ms"],
                "straggler_tables": " ".join(straggler["tables"]),
                **{f"gain_{name}_ms": gain for name, gain in gains.items()},
                **{f"batches_{name}_ms": value for name, value in spread.items()},
            }
        )
    return rows


def _loads(plan: RankedPlan) -> dict[str, Any]:
    loads = plan.loads
    return {
        "lookups": [round(count) for count in loads.lookups],
        "sent_bytes": list(loads.sent_bytes),
        "memory_bytes": list(loads.memory_bytes),
    }


def _row(plan: RankedPlan) -> dict[str, Any]:
    spread = plan.spread
    return {
        "place": plan.place,
        "plan": plan.plan.name,
        "iteration_time_ms": plan.answer.iteration_ns / NS_PER_MS,
        "period_ns": plan.answer.period_ns,
        "isolated_ns": plan.answer.isolated_ns,
        "interval_ms": interval_ms(plan.answer.interval),
        "beats_next": plan.beats_next,
        "bound": plan.bound.value,
        "gains_ms": {bound.value: gain / NS_PER_MS for bound, gain in plan.gains_ns.items()},
        "straggler": {
            "rank": plan.straggler.rank,
            "waited_ms": plan.straggler.waited_ns / NS_PER_MS,
            "tables": list(plan.straggler.tables),
        },
        "memory_gib": plan.loads.peak_bytes / BYTES_PER_GIB,
        "fits": plan.fits,
        "shards": len(plan.plan.shards),
        "batch_spread_ms": None
        if spread is None
        else {
            "mean": spread.mean_ns / NS_PER_MS,
            "p05": spread.low_ns / NS_PER_MS,
            "p50": spread.middle_ns / NS_PER_MS,
            "p95": spread.high_ns / NS_PER_MS,
        },
    }


def _question(question: RankQuestion) -> dict[str, Any]:
    return {
        name: getattr(value, "value", value)
        for name in question.__dataclass_fields__
        for value in [getattr(question, name)]
    }


def print_ranking(ranking: Ranking, console: Console) -> None:
    """Show *ranking* on *console*."""
    from rich.table import Table

    has_spread = any(plan.spread for plan in ranking.plans)
    table = Table(box=None, pad_edge=False)
    for heading in (*HEADINGS, *(["batches p5-p95 ms"] if has_spread else [])):
        table.add_column(heading, justify="left" if heading in WORDS else "right")
    for line in ranking.facts:
        console.print(line)
    console.print()
    above = 0
    for plan in ranking.plans:
        table.add_row(*_cells("=" if plan.place == above else str(plan.place), plan, has_spread))
        above = plan.place
    console.print(table)
    _print_rest(ranking, console)


def _cells(place: str, plan: RankedPlan, has_spread: bool) -> list[str]:
    low, high = plan.answer.interval.low_ns / NS_PER_MS, plan.answer.interval.high_ns / NS_PER_MS
    cells = [
        place,
        plan.plan.name,
        f"{plan.answer.iteration_ns / NS_PER_MS:.3f}",
        f"{low:.2f}-{high:.2f}",
        "" if plan.beats_next is None else f"{100 * plan.beats_next:.0f} %",
        plan.bound.value,
        f"{plan.straggler.rank}: {', '.join(plan.straggler.tables) or 'no table'}",
        f"{plan.loads.peak_bytes / BYTES_PER_GIB:.1f}{'' if plan.fits else ' too much'}",
    ]
    if has_spread:
        spread = plan.spread
        cells.append(
            ""
            if spread is None
            else f"{spread.low_ns / NS_PER_MS:.2f}-{spread.high_ns / NS_PER_MS:.2f}"
        )
    return cells


def _print_rest(ranking: Ranking, console: Console) -> None:
    best = ranking.plans[0]
    console.print()
    console.print(ranking.verdict)
    console.print(
        f"{best.plan.name}: the others wait {format_duration(best.straggler.waited_ns)} for rank "
        f"{best.straggler.rank} on average; a tenth less of each would save: "
        + ", ".join(
            f"{bound.value} {format_duration(gain)}" for bound, gain in best.gains_ns.items()
        )
        + "."
    )
    for refusal in ranking.refusals:
        console.print(f"not ranked: {refusal}")
    console.print(f"{ranking.plans_judged} plans judged.")


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
    names = [as_written(plan.plan.name) for plan in ranking.plans]
    figure = build_figure(11, 0.42 * len(names) + 1.8)
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
