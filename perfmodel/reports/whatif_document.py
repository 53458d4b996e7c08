"""What-if document: a comparison as the JSON that `perfmodel whatif --json` writes.

Times are those of one iteration: critical path and waits of a recording of
several steps are shrunk to one.
"""

from __future__ import annotations

from typing import Any

import perfmodel
from perfmodel.base.units import NS_PER_MS
from perfmodel.prediction.comparison import Comparison, Step, SweepAnswer
from perfmodel.prediction.outcome import Outcome
from perfmodel.recordings.self_replay import SelfReplay
from perfmodel.reports.rank_text import format_ranks

SCHEMA_VERSION = 1
_EXACT = 10**9


def to_whatif_document(comparison: Comparison) -> dict[str, Any]:
    """*comparison* as plain values, in the order they are written."""
    score = comparison.score
    return {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "kind": "whatif",
        "job": comparison.job,
        "self_replay": None if score is None else _score(score),
        "iteration_time_ms": _ms(comparison.after.iteration_ns),
        "before": _outcome(comparison.before),
        "after": _outcome(comparison.after),
        "change_pct": change_pct(comparison.before, comparison.after),
        "steps": [_step(step, comparison.before) for step in comparison.steps],
        "sweep": None if comparison.sweep is None else _sweep(comparison.sweep, comparison.after),
        "assumptions": [*comparison.own_assumptions, *comparison.assumptions],
    }


def change_pct(before: Outcome, after: Outcome) -> float:
    """By how many percent the iteration changes; negative is faster."""
    return 100 * (after.iteration_ns - before.iteration_ns) / max(before.iteration_ns, 1)


def _score(score: SelfReplay) -> dict[str, Any]:
    return {
        "iteration_error_pct": score.iteration.error_pct,
        "worst_error_pct": score.worst_error_pct,
        "is_trusted": score.is_trusted,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    why = outcome.explanation
    return {
        "iteration_time_ms": _ms(outcome.iteration_ns),
        "span_ms": _ms(outcome.span_ns),
        "periods_ms": [_ms(period_ns) for period_ns in outcome.periods_ns],
        "breakdown_ms": {part.value: _ms(ns) for part, ns in why.time.of_part_ns.items()},
        "critical_path": {
            "by_kind_ms": {name: _ms(ns) for name, ns in outcome.path_by_kind_ns().items()},
            "rank_changes": why.critical_path.rank_changes,
        },
        "waits": [
            {
                "waiting_ranks": format_ranks(wait.waiting_ranks, max_pieces=_EXACT),
                "awaited_rank": wait.awaited_rank,
                "label": wait.label,
                "ms": _ms(wait.duration_ns),
            }
            for wait in why.waits
        ],
        "provenance": {kind.word: round(ratio, 6) for kind, ratio in why.provenance_ratio.items()},
        "ranks": outcome.rank_count,
        "tasks": outcome.task_count,
    }


def _step(step: Step, before: Outcome) -> dict[str, Any]:
    return {
        "apply": step.text,
        "iteration_time_ms": _ms(step.outcome.iteration_ns),
        "change_pct": change_pct(before, step.outcome),
        "assumptions": list(step.assumptions),
    }


def _sweep(sweep: SweepAnswer, before: Outcome) -> dict[str, Any]:
    return {
        "name": sweep.name,
        "key": sweep.key,
        "points": [
            {"value": value, **_step(step, before)}
            for value, step in zip(sweep.values, sweep.steps, strict=True)
        ],
    }


def _ms(duration_ns: int) -> float:
    return duration_ns / NS_PER_MS
