"""What-if: a job before and after its changes, for a person at a terminal of 80 columns.

Labels come from traces, so everything is printed as plain text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

import perfmodel
from perfmodel.base.units import NS_PER_MS, format_duration
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.changing import ChangeStep, SweepAnswer, WhatIf
from perfmodel.recordings.recorded_job import SelfReplay
from perfmodel.reports.console import one_line, section, sentences
from perfmodel.reports.document import EXACT, interval_ms
from perfmodel.reports.text import build_scale, format_ranks, printable

# Times are those of one iteration: critical path and waits of a recording of
# several steps are shrunk to one.


SCHEMA_VERSION = 1
SMALLEST_PCT = 0.05
"""A change below it would be printed as nothing."""


def to_whatif_document(whatif: WhatIf) -> dict[str, Any]:
    """*whatif* as plain values, in the order they are written."""
    score = whatif.score
    return {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "kind": "whatif",
        "job": whatif.job,
        "self_replay": None if score is None else _score(score),
        "iteration_time_ms": _ms(whatif.after.iteration_ns),
        "interval_ms": interval_ms(whatif.after.interval),
        "before": _outcome(whatif.before),
        "after": _outcome(whatif.after),
        "change_pct": change_pct(whatif.before, whatif.after),
        "steps": [_step(step, whatif.before) for step in whatif.steps],
        "sweep": None if whatif.sweep is None else _sweep_document(whatif.sweep, whatif.after),
        "assumptions": [*whatif.own_assumptions, *whatif.assumptions],
    }


def change_pct(before: Prediction, after: Prediction) -> float:
    """By how many percent the iteration changes; negative is faster."""
    return 100 * (after.iteration_ns - before.iteration_ns) / max(before.iteration_ns, 1)


def _score(score: SelfReplay) -> dict[str, Any]:
    return {
        "iteration_error_pct": score.iteration.error_pct,
        "worst_error_pct": score.worst_error_pct,
        "is_trusted": score.is_trusted,
    }


def _outcome(outcome: Prediction) -> dict[str, Any]:
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
                "waiting_ranks": format_ranks(wait.waiting_ranks, max_pieces=EXACT),
                "awaited_rank": wait.awaited_rank,
                "label": wait.label,
                "ms": _ms(wait.duration_ns),
            }
            for wait in why.waits
        ],
        "provenance": {kind.word: round(ratio, 6) for kind, ratio in why.provenance_ratio.items()},
        "ranks": outcome.facts.rank_count,
        "tasks": outcome.facts.task_count,
    }


def _step(step: ChangeStep, before: Prediction) -> dict[str, Any]:
    return {
        "apply": step.text,
        "iteration_time_ms": _ms(step.outcome.iteration_ns),
        "change_pct": change_pct(before, step.outcome),
        "interval_ms": interval_ms(step.outcome.interval),
        "touched": _touched(step),
        "assumptions": list(step.assumptions),
    }


def _touched(step: ChangeStep) -> dict[str, Any]:
    touched = step.touched
    return {
        "tasks": touched.tasks,
        "retimed": touched.retimed,
        "removed": touched.removed,
        "added": touched.added,
        "reordered": touched.reordered,
        "matched": touched.matched,
        "launches": [touched.before.launches, touched.after.launches],
        "bytes": [touched.before.size_bytes, touched.after.size_bytes],
        "time_ms": [_ms(touched.before.duration_ns), _ms(touched.after.duration_ns)],
        "share_pct": round(100 * step.share, 4),
    }


def _sweep_document(sweep: SweepAnswer, before: Prediction) -> dict[str, Any]:
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


TOP_WAITS = 4
BAR_WIDTH = 30


def print_whatif(whatif: WhatIf, console: Console) -> None:
    """Print *whatif*, most important first."""
    parts: list[RenderableType] = [*_heading(whatif)]
    parts += section("What was changed", [sentences(iter_touched(whatif))] if whatif.steps else [])
    parts += section("Step by step", _steps(whatif))
    if whatif.sweep is not None:
        parts += section(_sweep_title(whatif.sweep), _sweep(whatif))
    parts += section("Where the time goes", [_time_parts(whatif)])
    parts += section("What decides it: the critical path", [_paths(whatif)])
    parts += section("Who waits for whom", _waits(whatif))
    assumed = (*whatif.own_assumptions, *whatif.assumptions)
    parts += section("Assumptions", [sentences(assumed)] if assumed else [])
    console.print(Group(*parts))


def _heading(whatif: WhatIf) -> Iterable[RenderableType]:
    before, after, score = whatif.before, whatif.after, whatif.score
    yield Text(printable(f"What if: {whatif.job}"), style="bold")
    line = Text(f"\n  {format_duration(before.iteration_ns)}")
    line.append(" -> ").append(format_duration(after.iteration_ns), style="bold green")
    line.append(f" an iteration, {_change(before, after)}")
    yield line
    interval = after.interval
    if interval.is_known and interval.high_ns > interval.low_ns:
        low, high = format_duration(interval.low_ns), format_duration(interval.high_ns)
        yield Text(f"  90 % interval after: {low} to {high}", style="dim")
    if score is not None:
        words = (
            f"  the recording replays itself with an error of {score.iteration.error_pct:+.2f} %"
        )
        yield Text(words, style="dim" if score.is_trusted else "bold red")


def iter_touched(whatif: WhatIf) -> Iterable[str]:
    """What each change touched, a line a change."""
    for step in whatif.steps:
        yield (
            f"{step.text}: {step.touched.words}; {step.share:.1%} of the time of all ranks before"
        )


def _change(before: Prediction, after: Prediction) -> str:
    if before.iteration_ns == after.iteration_ns:
        return "no change: what was touched is not on the path that decides"
    if abs(change_pct(before, after)) < SMALLEST_PCT:
        return "hardly a change: little of what was touched is on the path that decides"
    factor = before.iteration_ns / max(after.iteration_ns, 1)
    return f"{change_pct(before, after):+.1f} % ({factor:.3g} times as fast)"


def _steps(whatif: WhatIf) -> list[RenderableType]:
    if len(whatif.steps) < 2:
        return []
    table = _table("after", "iteration", "change")
    for step in whatif.steps:
        table.add_row(
            one_line(step.text),
            format_duration(step.outcome.iteration_ns),
            f"{change_pct(whatif.before, step.outcome):+.1f} %",
        )
    return [table]


def _sweep_title(sweep: SweepAnswer) -> str:
    return f"Sweep of {sweep.key} in {sweep.name}"


def _sweep(whatif: WhatIf) -> list[RenderableType]:
    assert whatif.sweep is not None
    sweep, base = whatif.sweep, whatif.after
    longest_ns = max([base.iteration_ns, *(step.outcome.iteration_ns for step in sweep.steps), 1])
    table = _table(sweep.key, "iteration", "change")
    table.add_column()
    for value, step in zip(sweep.values, sweep.steps, strict=True):
        iteration_ns = step.outcome.iteration_ns
        table.add_row(
            one_line(value),
            format_duration(iteration_ns),
            f"{change_pct(base, step.outcome):+.1f} %",
            Text("█" * round(BAR_WIDTH * iteration_ns / longest_ns), style="green"),
        )
    return [table]


def _time_parts(whatif: WhatIf) -> Table:
    before, after = whatif.before.explanation.time, whatif.after.explanation.time
    return _side_by_side(
        {part.value.replace("_", " "): ns for part, ns in before.of_part_ns.items()},
        {part.value.replace("_", " "): ns for part, ns in after.of_part_ns.items()},
        whatif,
    )


def _paths(whatif: WhatIf) -> Table:
    return _side_by_side(whatif.before.path_by_kind_ns(), whatif.after.path_by_kind_ns(), whatif)


def _side_by_side(before: Mapping[str, int], after: Mapping[str, int], whatif: WhatIf) -> Table:
    scale = build_scale(max(whatif.before.iteration_ns, whatif.after.iteration_ns))
    table = _table("", "before", "after")
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) or after.get(name):
            table.add_row(
                one_line(name), scale.text(before.get(name, 0)), scale.text(after.get(name, 0))
            )
    return table


def _waits(whatif: WhatIf) -> list[RenderableType]:
    before, after = _waits_of(whatif.before), _waits_of(whatif.after)
    names = sorted(
        {*before, *after}, key=lambda name: -max(before.get(name, 0), after.get(name, 0))
    )
    if not names:
        return [Text("no rank waits for another", style="dim")]
    shown = names[:TOP_WAITS]
    rows: list[RenderableType] = [
        _side_by_side(
            {name: before.get(name, 0) for name in shown},
            {name: after.get(name, 0) for name in shown},
            whatif,
        )
    ]
    if len(names) > len(shown):
        rows.append(Text(f"and {len(names) - len(shown)} more; all are in --json", style="dim"))
    return rows


def _waits_of(outcome: Prediction) -> dict[str, int]:
    """How long ranks wait in an iteration, by who waits for whom."""
    totals: dict[str, int] = {}
    for wait in outcome.explanation.waits:
        name = f"rank {format_ranks(wait.waiting_ranks)} for rank {wait.awaited_rank}"
        totals[name] = totals.get(name, 0) + wait.duration_ns
    return totals


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, max_width=40)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
