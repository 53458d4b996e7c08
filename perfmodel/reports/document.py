"""Document: a prediction as the JSON that `--json` writes; SCHEMA.md describes it.

Everything outside the key `run` is a function of the scenario alone, so equal
scenarios give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import perfmodel
from perfmodel.base.identity import program_identity
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS
from perfmodel.reports.text import format_ranks, pick, to_question_document

if TYPE_CHECKING:
    from perfmodel.graph.job import RankMemory
    from perfmodel.prediction.answer import (
        Explanation,
        Interval,
        OpenSetting,
        PathShare,
        Prediction,
        RankWait,
        TimeParts,
    )
    from perfmodel.prediction.whole_run import TrainingRun

SCHEMA_VERSION = 1
EXACT = 10**9
"""A limit of pieces that no job reaches: ranks in the document are never abbreviated."""


def to_document(
    prediction: Prediction,
    price_per_gpu_hour: float | None = None,
    whole: TrainingRun | None = None,
) -> dict[str, Any]:
    """*prediction* as plain values, in the order they are written; costs where there is a price."""
    why, loss = prediction.explanation, prediction.interference
    facts, run = prediction.facts, prediction.run
    path = why.critical_path
    document = {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        **times_document(prediction),
        "mode": prediction.mode.value,
        "period_ms": to_ms(prediction.period_ns),
        "isolated_ms": None if prediction.isolated_ns is None else to_ms(prediction.isolated_ns),
        "interference_ms": None if loss is None else to_ms(loss.lost_ns),
        "throughput": _throughput(prediction, price_per_gpu_hour),
        "bound": {"kind": prediction.bound.name, "share": round(prediction.bound_ratio, 6)},
        "breakdown_ms": parts_ms(why.time),
        "ranks": [
            {
                **ranks_document(entry.ranks),
                "breakdown_ms": parts_ms(entry.time),
                "memory_gib": to_gib(entry.memory.total_bytes) if entry.memory.parts else None,
            }
            for entry in why.rank_classes
        ],
        "critical_path": {
            "by_kind": [_share(share) for share in path.by_kind],
            "by_label": [_share(share) for share in path.by_label],
            "rank_changes": path.rank_changes,
        },
        "waits": [
            {**wait_ms(wait), "waiting_count": len(wait.waiting_ranks)} for wait in why.waits
        ],
        "memory_gib": _memory(prediction),
        "provenance": shares_by_provenance(why),
        "assumptions": list(prediction.assumptions),
        "open_settings": [open_setting(one) for one in prediction.open_settings],
        "narrowed_by": [
            {
                **pick(one, "kind", "what"),
                "half_width_pct": 100 * one.half_width_ns / max(prediction.iteration_ns, 1),
            }
            for one in prediction.narrowed_by
        ],
        "defaults_taken": [
            {"setting": one.setting, "value": to_word(one.value), "stack": one.stack}
            for one in prediction.defaults_taken
        ],
        **prediction.cautions.document(),
        "scenario": prediction.scenario and to_question_document(prediction.scenario),
        "facts": {
            **pick(facts, "job", "device", "stack", "batch"),
            "ranks": facts.rank_count,
            "tasks": facts.task_count,
            "iterations_replayed": facts.iterations_replayed,
        },
        "run": {
            "program": program_identity(),
            "executor": run.executor,
            "phase_s": {phase: round(seconds, 6) for phase, seconds in run.phase_s.items()},
        },
    }
    if whole is not None:
        document["training_run"] = whole.document()
    if prediction.score is not None:
        document["self_replay"] = prediction.score.document()
    return document


def times_document(prediction: Prediction) -> dict[str, Any]:
    """The iteration as it was recorded, if it was, and beside it the time without the profiler."""
    recorded, interval = prediction.recorded, interval_ms(prediction.interval)
    own = {"iteration_time_ms": to_ms(prediction.iteration_ns), "interval_ms": interval}
    if recorded is None:
        return own
    step_ms = to_ms(recorded.iteration_ns)
    both = interval and [min(interval[0], step_ms), max(interval[1], step_ms)]
    return {
        "iteration_time_ms": step_ms,
        "interval_ms": both,
        "unprofiled": {**own, "basis": recorded.basis},
    }


def interval_ms(interval: Interval) -> list[float] | None:
    """The ends of *interval*, where it is known."""
    return [to_ms(interval.low_ns), to_ms(interval.high_ns)] if interval.is_known else None


def to_ms(duration_ns: int) -> float:
    """*duration_ns* in milliseconds."""
    return duration_ns / NS_PER_MS


def open_setting(one: OpenSetting) -> dict[str, Any]:
    """A setting that nobody stated, and the iteration time of each value."""
    return {
        **pick(one, "setting", "chosen", "state_with"),
        "values": [
            {
                **pick(value, "value", "fits"),
                "iteration_time_ms": to_ms(value.iteration_ns),
                "weight": round(value.weight, 6),
            }
            for value in one.values
        ],
    }


def to_word(value: Any) -> Any:
    """*value* of a field as files state it."""
    return value.value if isinstance(value, Enum) else value


def _throughput(prediction: Prediction, price: float | None) -> dict[str, Any] | None:
    figures = prediction.yardsticks
    if figures is None:
        return None
    tokens = figures.work.tokens
    return {
        "samples_per_s": figures.samples_per_s,
        "tokens_per_s": None if tokens is None else figures.per_s,
        "per_s_per_gpu": figures.per_s_per_gpu,
        "unit": figures.unit,
        "model_flops_per_s_per_gpu": figures.model_flops_per_gpu,
        "model_flops_utilisation": figures.model_utilisation,
        "hardware_flops_utilisation": figures.hardware_utilisation,
        "cost_per_million": None if price is None else figures.cost_per_million(price),
    }


def to_gib(size_bytes: int) -> float:
    """*size_bytes* in GiB."""
    return round(size_bytes / BYTES_PER_GIB, 6)


def parts_gib(memory: RankMemory) -> dict[str, float]:
    """The parts of *memory* in GiB, by their names."""
    return {part.name: to_gib(part.size_bytes) for part in memory.parts}


def parts_ms(time: TimeParts) -> dict[str, float]:
    """The parts of *time* in milliseconds, by their names."""
    return {part.value: to_ms(duration_ns) for part, duration_ns in time.of_part_ns.items()}


def shares_by_provenance(why: Explanation) -> dict[str, float]:
    """How much of the critical path each provenance has."""
    return {kind.word: round(ratio, 6) for kind, ratio in why.provenance_ratio.items()}


def ranks_document(ranks: Sequence[int]) -> dict[str, Any]:
    """*ranks* in full, and how many."""
    return {"ranks": format_ranks(ranks, max_pieces=EXACT), "count": len(ranks)}


def _share(share: PathShare) -> dict[str, Any]:
    return {"name": share.name, "ms": to_ms(share.duration_ns), "tasks": share.task_count}


def wait_ms(wait: RankWait) -> dict[str, Any]:
    """Who waits for whom, in what, and how long."""
    return {
        "waiting_ranks": format_ranks(wait.waiting_ranks, max_pieces=EXACT),
        **pick(wait, "awaited_rank", "label"),
        "ms": to_ms(wait.duration_ns),
        **({"tables": list(wait.tables)} if wait.tables else {}),
    }


def _memory(prediction: Prediction) -> dict[str, Any] | None:
    memory = prediction.memory
    if memory is None:
        return None
    return {
        "capacity": to_gib(memory.capacity_bytes),
        "fits": memory.fits,
        "fits_probability": round(memory.probability, 6),
        "peak": to_gib(memory.peak_bytes),
        "by_rank": [
            {
                **ranks_document(entry.ranks),
                "peak": to_gib(entry.memory.total_bytes),
                "parts": parts_gib(entry.memory),
            }
            for entry in prediction.explanation.rank_classes
        ],
    }
