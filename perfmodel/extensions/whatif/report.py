"""The report of a what-if and its JSON: a job before and after its changes.

Times are those of one iteration: critical path and waits of a recording of several steps are
scaled to one.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import perfmodel
from perfmodel.base.units import format_duration
from perfmodel.extensions.whatif.answering import ChangeStep, WhatIf
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.scenario import JobScenario
from perfmodel.reports.blocks import (
    ALL,
    Bars,
    Headline,
    Report,
    Section,
    Sentences,
    Table,
    time_bars,
)
from perfmodel.reports.document import interval_ms, parts_ms, shares_by_provenance, to_ms, wait_ms
from perfmodel.reports.prediction import PART_LOOKS, compare_parts, iter_sections
from perfmodel.reports.showing import View
from perfmodel.reports.text import (
    build_scale,
    describe_interval,
    name_ranks,
    pick,
    to_command,
)

SCHEMA_VERSION = 1
SMALLEST_PCT = 0.05
"""A change below it would be printed as nothing."""
_TITLES = {"Timeline": "Timelines, before and after"}


def to_whatif_document(whatif: WhatIf) -> dict[str, Any]:
    """*whatif* as plain values, in the order they are written."""
    score, sweep = whatif.score, whatif.sweep
    return {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "kind": "whatif",
        "job": whatif.job,
        "self_replay": score
        and {
            "iteration_error_pct": score.error_pct,
            "worst_error_pct": score.worst_error_pct,
            "is_trusted": score.is_trusted,
        },
        "iteration_time_ms": to_ms(whatif.after.iteration_ns),
        "interval_ms": interval_ms(whatif.after.interval),
        "before": _outcome(whatif.before),
        "after": _outcome(whatif.after),
        "change_pct": change_pct(whatif.before, whatif.after),
        "steps": [_step(step, whatif.before) for step in whatif.steps],
        "sweep": sweep
        and {
            "name": sweep.name,
            "key": sweep.key,
            "points": [
                {"value": value, **_step(step, whatif.after)}
                for value, step in zip(sweep.values, sweep.steps, strict=True)
            ],
        },
        "assumptions": [*whatif.own_assumptions, *whatif.assumptions],
        **whatif.after.cautions.document(),
    }


def change_pct(before: Prediction, after: Prediction) -> float:
    """By how many percent the iteration changes; negative is faster."""
    return 100 * (after.iteration_ns - before.iteration_ns) / max(before.iteration_ns, 1)


def path_by_kind_ns(outcome: Prediction) -> dict[str, int]:
    """What the critical path is made of."""
    return {share.name: share.duration_ns for share in outcome.explanation.critical_path.by_kind}


def _outcome(outcome: Prediction) -> dict[str, Any]:
    why = outcome.explanation
    return {
        "iteration_time_ms": to_ms(outcome.iteration_ns),
        "recorded_ms": outcome.recorded and to_ms(outcome.recorded.iteration_ns),
        "span_ms": to_ms(outcome.span_ns),
        "periods_ms": [to_ms(period_ns) for period_ns in outcome.periods_ns],
        "breakdown_ms": parts_ms(why.time),
        "critical_path": {
            "by_kind_ms": {name: to_ms(ns) for name, ns in path_by_kind_ns(outcome).items()},
            "rank_changes": why.critical_path.rank_changes,
        },
        "waits": [wait_ms(wait) for wait in why.waits],
        "provenance": shares_by_provenance(why),
        "ranks": outcome.facts.rank_count,
        "tasks": outcome.facts.task_count,
    }


def _step(step: ChangeStep, before: Prediction) -> dict[str, Any]:
    touched = step.touched
    return {
        "apply": step.text,
        "iteration_time_ms": to_ms(step.outcome.iteration_ns),
        "change_pct": change_pct(before, step.outcome),
        "interval_ms": interval_ms(step.outcome.interval),
        "touched": {
            **pick(touched, "tasks", "retimed", "removed", "added", "reordered", "matched"),
            "launches": [touched.before.launches, touched.after.launches],
            "bytes": [touched.before.size_bytes, touched.after.size_bytes],
            "time_ms": [to_ms(touched.before.duration_ns), to_ms(touched.after.duration_ns)],
            "share_pct": round(100 * step.share, 4),
        },
        "assumptions": list(step.assumptions),
    }


def report_whatif(whatif: WhatIf) -> Report:
    """A job before and after its changes; a page also has the changed job in full."""
    before, after, sweep = whatif.before, whatif.after, whatif.sweep
    steps = [("before", before), *((step.text, step.outcome) for step in whatif.steps)]
    swept = [] if sweep is None else [(step.text, step.outcome) for step in sweep.steps]
    fastest_ns = min(found.iteration_ns for _, found in (*steps, *swept))
    touched = [
        f"{step.text}: {step.touched.words}; {step.share:.1%} of the time of all ranks before"
        for step in whatif.steps
    ]
    assumed = [*whatif.own_assumptions, *whatif.assumptions]
    return Report(
        title=f"What if: {whatif.job}",
        headline=_headline(whatif),
        sections=(
            Section("What was changed", [Sentences(touched)]),
            Section(
                "Step by step",
                [_times(steps, before, fastest_ns)] if len(whatif.steps) > 1 else [],
            ),
            Section(
                "" if sweep is None else f"Sweep of {sweep.key} in {sweep.name}",
                [_times(swept, after, fastest_ns)],
            ),
            Section(
                "Where the time goes, before and after",
                [_side_by_side(whatif, _parts)],
                more=lambda: [compare_parts([*steps, *swept])],
            ),
            Section(
                "What decides it, before and after: the critical path",
                [_side_by_side(whatif, path_by_kind_ns)],
            ),
            Section(
                "Who waits for whom, before and after",
                [_side_by_side(whatif, _waits_of, most=4)]
                if before.explanation.waits or after.explanation.waits
                else [Sentences(["No rank waits for another."])],
            ),
            Section("Assumptions", [Sentences(assumed)]),
            *(
                section.for_page(_TITLES.get(section.title, f"{section.title} (after the changes)"))
                for section in iter_sections(after, _command(whatif), before)
            ),
        ),
        rows=[
            {
                "apply": name,
                "iteration_time_ms": to_ms(found.iteration_ns),
                "change_pct": change_pct(before, found),
            }
            for name, found in (*steps, *swept)
        ],
    ).warned(after.cautions)


def _headline(whatif: WhatIf) -> Headline:
    before, after, score = whatif.before, whatif.after, whatif.score
    change, interval = change_pct(before, after), whatif.after.interval
    factor = before.iteration_ns / max(after.iteration_ns, 1)
    verdict = (
        f"{abs(change):.1f} % {'longer' if change > 0 else 'shorter'} ({factor:.3g} times as fast)"
    )
    if not whatif.steps:
        verdict = ""
    elif before.iteration_ns == after.iteration_ns:
        verdict = "no gain: nothing of what was changed is on the critical path"
    elif abs(change) < SMALLEST_PCT:
        verdict = "almost no gain: little of what was changed is on the critical path"
    changed = format_duration(before.iteration_ns) if whatif.steps else "the sweep"
    facts = [f"limited by {after.bound.name} ({after.bound_ratio:.0%} of the critical path)"]
    if interval.is_known and interval.high_ns > interval.low_ns:
        facts.insert(0, describe_interval(interval))
    if score is not None and before.recorded is not None:
        under = " -> ".join(
            format_duration(one.recorded.iteration_ns)
            for one in (before, *([after] if whatif.steps else []))
            if one.recorded is not None
        )
        facts.append(f"without the profiler; under it {under}")
        facts.append(f"the recording replays itself with an error of {score.error_pct:+.2f} %")
    return Headline(
        verdict=verdict,
        is_good=change <= 0,
        answer=format_duration(after.iteration_ns),
        caption=f"per iteration, before {changed}",
        facts=facts,
    )


def _times(named: Sequence[tuple[str, Prediction]], base: Prediction, best_ns: int) -> Bars:
    """Times with their change against *base*."""
    times = [(name, found.iteration_ns, found.interval) for name, found in named]
    changes = [f"  {change_pct(base, found):>+6.1f} %" for _, found in named]
    return time_bars(times, best_ns, changes)


def _side_by_side(
    whatif: WhatIf, values_of: Callable[[Prediction], Mapping[str, int]], most: int = ALL
) -> Table:
    """Durations of both answers by name; those that are zero in both are left out."""
    before, after = values_of(whatif.before), values_of(whatif.after)
    scale = build_scale(max(whatif.before.iteration_ns, whatif.after.iteration_ns))
    names = [name for name in {**before, **after} if before.get(name) or after.get(name)]
    if most < ALL:
        names.sort(key=lambda name: -max(before.get(name, 0), after.get(name, 0)))
    rows = [(name, scale(before.get(name, 0)), scale(after.get(name, 0))) for name in names]
    return Table(("", "before", "after"), rows, numeric=(1, 2), most=most)


def _parts(outcome: Prediction) -> dict[str, int]:
    of_part_ns = outcome.explanation.time.of_part_ns
    return {words: of_part_ns.get(part, 0) for part, (_, words) in PART_LOOKS.items()}


def _waits_of(outcome: Prediction) -> dict[str, int]:
    """How long ranks wait in an iteration, by who waits for whom."""
    totals: Counter[str] = Counter()
    for wait in outcome.explanation.waits:
        name = f"{name_ranks(wait.waiting_ranks)} for rank {wait.awaited_rank}"
        totals[name] += wait.duration_ns
    return totals


def _command(whatif: WhatIf) -> str | None:
    """What to type to ask for the changes again."""
    scenario = whatif.after.scenario
    if not isinstance(scenario, JobScenario):
        return None
    verb = f"whatif {shlex.quote(scenario.job)}"
    words = [to_command(verb, scenario, only=("topology", "hosts", "stack", "mode"))]
    words += [f"--apply {shlex.quote(step.text)}" for step in whatif.steps]
    words += [] if whatif.sweep is None else [f"--sweep {shlex.quote(whatif.sweep.text)}"]
    return " ".join([*words, *whatif.options])


VIEW = View(report_whatif, to_whatif_document)
"""How a what-if shows itself in Python and in a notebook."""
