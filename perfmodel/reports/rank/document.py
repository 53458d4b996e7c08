"""A ranking as data: JSON with a schema version, and CSV, one line a plan."""

from __future__ import annotations

import json
from typing import Any

from embeddings.plan_document import to_plan_document
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import RankedPlan, Ranking

SCHEMA_VERSION = 1


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


def to_ranking_json(ranking: Ranking, question: RankQuestion) -> str:
    """The document as text."""
    return json.dumps(to_ranking_document(ranking, question), indent=1) + "\n"


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
        "interval_ms": [
            plan.answer.interval.low_ns / NS_PER_MS,
            plan.answer.interval.high_ns / NS_PER_MS,
        ],
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
