"""The report of a replayed job and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.extensions import load_extension
from perfmodel.base.units import format_duration
from perfmodel.graph.storage import is_recorded_job
from perfmodel.prediction.answer import Prediction
from perfmodel.reports.blocks import Headline, Report, Section, Sentences
from perfmodel.reports.document import times_document, to_ms
from perfmodel.reports.text import NEEDS_FORCE, describe_interval

SCHEMA_VERSION = 1
WIDTH = 100


def report_replay(found: Prediction, faults: Sequence[str] = ()) -> Report:
    """How long a job takes, how well a recorded one replays itself, and why, if *found* says."""
    score, facts = found.score, found.facts
    is_bad = score is not None and not score.is_trusted and not score.faults
    rows = [{"name": facts.job, "iteration_time_ms": to_ms(found.iteration_ns)}]
    compared = Section("Recorded and replayed")
    if score is not None:
        rows, compared = load_extension("recordings", "report").compare_lengths(score)
    why: Iterable[Section] = ()
    if found.reasons is not None:
        from perfmodel.reports.prediction import iter_sections  # heavy, and imports show no reasons

        why = iter_sections(found)
    has_width = found.interval.high_ns > found.interval.low_ns
    interval = f", {describe_interval(found.interval)}" if has_width else ""
    under = ""
    if found.recorded is not None:
        recorded = format_duration(found.recorded.iteration_ns)
        under = f", without the profiler; recorded {recorded}"
    return Report(
        title=facts.job,
        headline=Headline(
            verdict=NEEDS_FORCE if is_bad else "",
            is_good=score is None,
            answer=format_duration(found.iteration_ns),
            caption=f"per step{interval}{under}",
            facts=(
                (
                    f"{facts.rank_count} ranks, {facts.task_count:,} tasks, "
                    f"{format_duration(found.span_ns)} from the first to the last"
                ),
            ),
        ),
        sections=(
            compared,
            Section("Assumptions", [Sentences(found.assumptions)]),
            Section("Faults", [Sentences(faults)]),
            *(one.for_page(one.title) for one in why if one.title != "Assumptions"),
        ),
        rows=rows,
        columns=WIDTH,
    ).warned(found.cautions)


def to_answer_document(found: Prediction) -> dict[str, Any]:
    """An answer without reasons as plain values."""
    return {
        **_answer(found),
        "interval_ms": [to_ms(found.interval.low_ns), to_ms(found.interval.high_ns)],
    }


def _answer(found: Prediction) -> dict[str, Any]:
    return {
        "job": found.facts.job,
        "ranks": found.facts.rank_count,
        "tasks": found.facts.task_count,
        "iteration_time_ms": to_ms(found.iteration_ns),
        "assumptions": list(found.assumptions),
        **found.cautions.document(),
    }


def to_replay_document(found: Prediction, folder: Path) -> dict[str, Any]:
    """What `perfmodel replay` writes of the job in *folder*."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "replay",
        **_answer(found),
        **times_document(found),
        "span_ms": to_ms(found.span_ns),
    }
    if found.score is not None:
        document["self_replay"] = found.score.document()
    if is_recorded_job(folder):
        report = load_extension("recordings", "storage").load_report(folder)
        document["recorded_starts"] = report.recorded_starts
        document["faults"] = list(report.all_faults)
    return document
