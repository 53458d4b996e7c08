"""Reports of embedding tables: a ranking of sharding plans, with JSON; index files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embeddings.index_data import DataStatistics
from embeddings.plan_document import list_unrunnable, to_plan_document
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking, join_reasons
from perfmodel.reports.blocks import (
    Headline,
    Report,
    Section,
    Sentences,
    Table,
    plain_report,
    time_bars,
)
from perfmodel.reports.document import interval_ms
from perfmodel.reports.prediction import next_changes
from perfmodel.reports.rank_tables import (
    load_matrix,
    memory_front,
    table_matrix,
)
from perfmodel.reports.text import (
    ask_again,
    count_of,
    describe_interval,
    pick,
    shorten,
    to_question_document,
)

SCHEMA_VERSION = 1
HEADINGS = (
    "", "plan", "time ms", "90 % interval ms", "beats next", "limited by", "straggler",
    "memory GiB",
)  # fmt: skip
_TIMES = {"period": "steady-state step time", "isolated": "time of a single step"}
SHOWN_TABLES = 20
MOST_NAMED = 3


def to_ranking_document(ranking: Ranking, question: RankQuestion | None) -> dict[str, Any]:
    """The whole answer, plans included."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "ranking",
        "mode": ranking.mode.value,
        **pick(ranking, "plans_judged", "verdict", "fits"),
        "loader_ms": ranking.load_ns and ranking.load_ns / NS_PER_MS,
        "device_memory_gib": ranking.device_memory_bytes / BYTES_PER_GIB,
        "asked": list(ranking.facts),
        "plans": [
            {
                **_row(plan),
                "name": plan.plan.name,
                "loads": {
                    "lookups": [round(count) for count in plan.loads.lookups],
                    "sent_bytes": list(plan.loads.sent_bytes),
                    "memory_bytes": list(plan.loads.memory_bytes),
                },
                "plan": to_plan_document(plan.plan),
            }
            for plan in ranking.plans
        ],
        "comparison": list(ranking.comparison),
        "refused": [{"plan": name, "reason": reason} for name, reason in ranking.refused],
        "assumptions": list(ranking.assumptions),
        **ranking.cautions.document(),
        "question": question and to_question_document(question),
    }


def to_ranking_rows(ranking: Ranking) -> list[dict[str, Any]]:
    """One flat row per plan, fastest first."""
    rows = []
    for plan in ranking.plans:
        row = _row(plan)
        low, high = row.pop("interval_ms")
        straggler = row.pop("straggler")
        rows.append(
            {
                **row,
                "low_ms": low,
                "high_ms": high,
                "straggler_rank": straggler["rank"],
                "straggler_waited_ms": straggler["waited_ms"],
                "straggler_tables": " ".join(straggler["tables"]),
            }
        )
    return rows


def _row(plan: RankedPlan) -> dict[str, Any]:
    return {
        "place": plan.place,
        "plan": plan.plan.name,
        "iteration_time_ms": plan.answer.iteration_ns / NS_PER_MS,
        "period_ns": plan.answer.period_ns,
        "isolated_ns": plan.answer.isolated_ns,
        "interval_ms": interval_ms(plan.answer.interval),
        "beats_next": plan.beats_next,
        "bound": plan.bound,
        "straggler": {
            "rank": plan.straggler.rank,
            "waited_ms": plan.straggler.waited_ns / NS_PER_MS,
            "tables": list(plan.straggler.tables),
        },
        "memory_gib": plan.loads.peak_bytes / BYTES_PER_GIB,
        "fits": plan.fits,
        "shards": len(plan.plan.shards),
    }


def report_ranking(ranking: Ranking, question: RankQuestion | None = None) -> Report:
    """Sharding plans, fastest first; *question* is what was asked, where it is known."""
    best = ranking.plans[0]
    name, best_ns = best.plan.name, best.answer.iteration_ns
    times = [(p.plan.name, p.answer.iteration_ns, p.answer.interval) for p in ranking.plans]
    waited, late = format_duration(best.straggler.waited_ns), best.straggler.rank
    advice = [f"Other ranks wait {waited} for rank {late} on average."]
    advice = [*(advice if best.straggler.is_awaited else []), *next_changes(best.path)]
    return Report(
        title="Sharding plans, fastest first",
        headline=Headline(
            verdict=f"{name} fits" if ranking.fits else "No plan fits in memory",
            is_good=ranking.fits,
            answer=format_duration(best_ns),
            caption=f"per iteration, {describe_interval(best.answer.interval)}",
            facts=(
                ranking.verdict,
                *ranking.loader,
                f"{count_of(ranking.plans_judged, 'plan')} ranked by {_TIMES[ranking.mode.value]}",
            ),
        ),
        sections=(
            Section(
                "The question",
                [Sentences(ranking.facts)],
                more=lambda: [] if question is None else ask_again("rank", question),
            ),
            Section("Times", more=lambda: [time_bars(times, best_ns)]),
            Section("Plans", [_table(ranking)]),
            Section("Time against memory", more=lambda: [memory_front(ranking)]),
            Section(f"Load per rank under {name}", more=lambda: [load_matrix(best)]),
            Section(f"Where {name} puts the tables", more=lambda: [table_matrix(best)]),
            Section(f"Why {name} is first", [Sentences(ranking.comparison)]),
            Section(f"What would make {name} faster", [Sentences(advice)]),
            Section("Not ranked", [Sentences(join_reasons(ranking.refused))]),
            Section("Assumptions", more=lambda: [Sentences(ranking.assumptions)]),
        ),
        rows=to_ranking_rows(ranking),
        columns=160,
    ).warned(ranking.cautions)


def _odds(share: float | None) -> str:
    """*share* in words; no draw shows that an order is certain."""
    if share is None:
        return ""
    return "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def _table(ranking: Ranking) -> Table:
    rows, above = [], 0
    for plan in ranking.plans:
        interval = plan.answer.interval
        row = [
            "=" if plan.place == above else str(plan.place),
            plan.plan.name,
            f"{plan.answer.iteration_ns / NS_PER_MS:.3f}",
            f"{interval.low_ns / NS_PER_MS:.2f} to {interval.high_ns / NS_PER_MS:.2f}",
            _odds(plan.beats_next),
            plan.bound,
            f"rank {plan.straggler.rank}: {', '.join(plan.straggler.tables) or 'no table'}"
            if plan.straggler.is_awaited
            else "none",
            f"{plan.loads.peak_bytes / BYTES_PER_GIB:.1f}{'' if plan.fits else ' (too much)'}",
        ]
        rows.append(row)
        above = plan.place
    return Table(
        HEADINGS,
        rows,
        numeric=(0, 2, 3, 4, 7, 8),
        code=(1,),
        wraps=(6,),
        optional=(3, 6, 4),
    )


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
        "  to load it in a script: perfmodel schema plan; to explain it: perfmodel predict --plan"
    )
    return lines


def _limits(tables: Sequence[str]) -> str:
    return (
        "it splits rows only over all ranks or one host, and copies only whole tables; otherwise "
        "placed: "
        f"{shorten(tables, MOST_NAMED)}"
    )


def report_statistics(found: DataStatistics) -> Report:
    """Pooling and reuse of indices, one line per table, those with most lookups first."""
    headings = ("table", "lookups", "pooling", "deviation", "longest", "distinct rows",
                "hottest row", "distinct in set", "distinct in batch")  # fmt: skip
    rows = [
        (
            one.name,
            f"{one.lookups}",
            f"{one.pooling_mean:.2f}",
            f"{one.pooling_deviation:.2f}",
            f"{one.pooling_max}",
            f"{one.distinct_rows}",
            f"{100 * one.hottest_share:.2f} %",
            f"{100 * one.set_distinct_ratio:.1f} %",
            f"{100 * one.batch_distinct_ratio:.1f} %",
        )
        for one in sorted(found.tables, key=lambda one: -one.lookups)
    ]
    table = Table(headings, rows, numeric=range(1, 9), most=SHOWN_TABLES)
    return plain_report(
        f"{found.source}: {len(found.tables)} tables, {found.sample_count} samples, "
        f"batches of {found.batch_size}",
        table,
        columns=120,
    )
