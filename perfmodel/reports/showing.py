"""Showing: what `perfmodel.base.shown` looks up, by the type of the answer.

The first type of the table that an answer is an instance of decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.base.writing import check_writable, write_file
from perfmodel.planning.layouts.ranking import LayoutRanking, Search
from perfmodel.planning.ranking import Ranking
from perfmodel.prediction.answer import Answer, Part, Prediction
from perfmodel.prediction.changing import WhatIf
from perfmodel.prediction.comparing import Compared, Comparison
from perfmodel.prediction.scenario import JobScenario
from perfmodel.reports.comparing import (
    describe_fastest,
    draw_comparison,
    to_comparison_document,
    to_comparison_rows,
)
from perfmodel.reports.document import to_document
from perfmodel.reports.pages import answers, plans
from perfmodel.reports.pages.page import Grid, Headline, Page, Section
from perfmodel.reports.pages.prediction import build_page
from perfmodel.reports.pictures import as_written, build_figure, save_picture
from perfmodel.reports.rank import draw_ranking, to_ranking_document, to_ranking_rows
from perfmodel.reports.search import to_search_document, to_search_rows
from perfmodel.reports.text import (
    describe_interval,
    describe_speed,
    describe_title,
    describe_verdict,
    format_ranks,
)
from perfmodel.reports.whatif import change_pct, to_whatif_document

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

LONGEST = 590
MOST_LINES = 6


@dataclass(frozen=True, slots=True)
class View:
    """How answers of one type are shown: sentences, plain values, rows, a picture, a page."""

    sentences: Callable[[Any], Sequence[str]]
    document: Callable[[Any], dict[str, Any]]
    rows: Callable[[Any], list[dict[str, Any]]]
    draw: Callable[[Any], Figure]
    page: Callable[[Any], str]


def describe(shown: object) -> str:
    """A few lines, under 600 characters."""
    text = "\n".join(_view(shown).sentences(shown))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def to_html(shown: object) -> str:
    """A short table for a notebook, every name escaped."""
    from html import escape

    lines = "<br>".join(escape(line) for line in describe(shown).splitlines())
    return f"<p>{lines}</p>{to_frame(shown).to_html(escape=True, max_rows=20, index=False)}"


def to_dict(shown: object) -> dict[str, Any]:
    """Plain values."""
    return _view(shown).document(shown)


def to_frame(shown: object) -> pandas.DataFrame:
    """The rows as a table."""
    import pandas

    return pandas.DataFrame(_view(shown).rows(shown))


def plot(shown: object, path: Path | None) -> Figure:
    """The picture, written to *path* if there is one."""
    figure = _view(shown).draw(shown)
    if path is not None:
        save_picture(figure, path, dpi=150)
    return figure


def save_report(shown: object, path: Path) -> Path:
    """Write the page to *path*."""
    check_writable("report", path)
    write_file(path, _view(shown).page(shown))
    return path


def _view(shown: object) -> View:
    for kind, view in VIEWS.items():
        if isinstance(shown, kind):
            return view
    raise InputError(f"{type(shown).__name__}: there is no way to show it.")


def _answer_lines(found: Answer) -> list[str]:
    name = describe_title(found) if isinstance(found, Prediction) else found.facts.job
    lines = [f"{type(found).__name__}: {name}"]
    time = f"{format_duration(found.iteration_ns)} per iteration"
    lines.append(f"{time}, {describe_interval(found.interval)}")
    if isinstance(found, Prediction):
        lines.append(describe_speed(found))
        lines.append(f"bound by {found.bound.name}, {found.bound_ratio:.0%} of the critical path")
        lines += [verdict] if (verdict := describe_verdict(found)) else []
    return lines


def _prediction_rows(prediction: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "ranks": format_ranks(entry.ranks),
            "count": len(entry.ranks),
            **{f"{part.value}_ms": entry.time.of_part_ns.get(part, 0) / NS_PER_MS for part in Part},
            "memory_gib": entry.memory.total_bytes / BYTES_PER_GIB if entry.memory.parts else None,
        }
        for entry in prediction.explanation.rank_classes
    ]


def _draw_prediction(prediction: Prediction) -> Figure:
    scenario = prediction.scenario or JobScenario(prediction.facts.job)
    entry = Compared(describe_title(prediction), scenario, prediction)
    return draw_comparison(Comparison((entry,)))


def _answer_document(found: Answer) -> dict[str, Any]:
    return {
        "job": found.facts.job,
        "iteration_time_ms": found.iteration_ns / NS_PER_MS,
        "interval_ms": [found.interval.low_ns / NS_PER_MS, found.interval.high_ns / NS_PER_MS],
        "ranks": found.facts.rank_count,
        "tasks": found.facts.task_count,
        "assumptions": list(found.assumptions),
    }


def _answer_rows(found: Answer) -> list[dict[str, Any]]:
    if found.score is None:
        return [{"name": found.facts.job, "iteration_time_ms": found.iteration_ns / NS_PER_MS}]
    return [
        {
            "name": one.name,
            "recorded_ms": one.recorded_ns / NS_PER_MS,
            "replayed_ms": one.replayed_ns / NS_PER_MS,
            "error_pct": one.error_pct,
        }
        for one in (found.score.iteration, *found.score.periods, *found.score.ranks)
    ]


def _draw_bars(rows: Sequence[tuple[str, float]], label: str) -> Figure:
    figure = build_figure(8, 1.4 + 0.4 * len(rows))
    axis = figure.subplots()
    names = [as_written(name) for name, _ in rows]
    axis.barh(range(len(rows)), [value for _, value in rows], color="#3b74c4")
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(label)
    return figure


def _draw_answer(found: Answer) -> Figure:
    return _draw_bars([(found.facts.job, found.iteration_ns / NS_PER_MS)], "iteration ms")


def _answer_page(found: Answer) -> str:
    rows = [[str(value) for value in row.values()] for row in _answer_rows(found)]
    headings = list(_answer_rows(found)[0])
    headline = Headline(
        "", True, format_duration(found.iteration_ns), "per iteration", _answer_lines(found)[:1]
    )
    grid = Grid(headings, rows, numeric=range(1, len(headings)))
    return Page(found.facts.job, headline, [Section("Replayed", [grid])]).render()


def _ranking_lines(ranking: Ranking) -> list[str]:
    lines = [f"Ranking: {len(ranking.plans)} plans, {len(ranking.refused)} refused"]
    for plan in ranking.plans[:MOST_LINES]:
        time = format_duration(plan.answer.iteration_ns)
        lines.append(f"{plan.place}. {plan.plan.name}: {time}, bound by {plan.bound.value}")
    return lines


def _layout_lines(ranking: LayoutRanking) -> list[str]:
    question = ranking.question
    lines = [f"LayoutRanking: {question.workload} on {ranking.rank_count} GPUs"]
    for place, one in enumerate(ranking.layouts[:MOST_LINES], start=1):
        split = one.candidate.chosen.layout
        time = format_duration(one.time_ns)
        lines.append(f"{place}. tp={split.tp} pp={split.pp} dp={split.dp}: {time}")
    return lines


def _draw_layouts(ranking: LayoutRanking) -> Figure:
    rows = []
    for one in ranking.layouts:
        split = one.candidate.chosen.layout
        name = f"tp={split.tp} pp={split.pp} dp={split.dp} x{split.micro_batch}"
        rows.append((name, one.time_ns / NS_PER_MS))
    return _draw_bars(rows, "iteration ms")


def _whatif_lines(whatif: WhatIf) -> list[str]:
    before, after = whatif.before.iteration_ns, whatif.after.iteration_ns
    change = change_pct(whatif.before, whatif.after)
    lines = [f"WhatIf: {whatif.job}"]
    lines.append(f"{format_duration(before)} -> {format_duration(after)}, {change:+.1f} %")
    return lines + [f"after {step.text}" for step in whatif.steps[:MOST_LINES]]


def _whatif_rows(whatif: WhatIf) -> list[dict[str, Any]]:
    swept = () if whatif.sweep is None else whatif.sweep.steps
    named = [("before", whatif.before), *((s.text, s.outcome) for s in (*whatif.steps, *swept))]
    return [
        {
            "apply": name,
            "iteration_time_ms": found.iteration_ns / NS_PER_MS,
            "change_pct": change_pct(whatif.before, found),
        }
        for name, found in named
    ]


def _draw_whatif(whatif: WhatIf) -> Figure:
    rows = [(row["apply"], row["iteration_time_ms"]) for row in _whatif_rows(whatif)]
    return _draw_bars(rows, "iteration ms")


def _comparison_lines(comparison: Comparison) -> list[str]:
    lines = [f"Comparison: {len(comparison.entries)} scenarios", describe_fastest(comparison)]
    for entry in comparison.entries[:MOST_LINES]:
        found = entry.prediction
        words = "no answer" if found is None else format_duration(found.iteration_ns)
        lines.append(f"{entry.name}: {words}")
    return lines


def _hosts(found: Search) -> str:
    return ", ".join(str(one.hosts) for one in found)


VIEWS: dict[type[object], View] = {
    Prediction: View(_answer_lines, to_document, _prediction_rows, _draw_prediction, build_page),
    Answer: View(_answer_lines, _answer_document, _answer_rows, _draw_answer, _answer_page),
    Ranking: View(
        _ranking_lines,
        lambda ranking: to_ranking_document(ranking, None),
        to_ranking_rows,
        draw_ranking,
        plans.build_rank_page,
    ),
    LayoutRanking: View(
        _layout_lines,
        lambda ranking: to_search_document([ranking]),
        lambda ranking: to_search_rows([ranking]),
        _draw_layouts,
        lambda ranking: plans.build_search_page([ranking]),
    ),
    Search: View(
        lambda found: [f"Search: hosts {_hosts(found)}", *_layout_lines(found.best)],
        to_search_document,
        to_search_rows,
        lambda found: _draw_layouts(found.best),
        plans.build_search_page,
    ),
    WhatIf: View(
        _whatif_lines, to_whatif_document, _whatif_rows, _draw_whatif, answers.build_whatif_page
    ),
    Comparison: View(
        _comparison_lines,
        to_comparison_document,
        to_comparison_rows,
        draw_comparison,
        answers.build_comparison_page,
    ),
}
"""Every kind of answer. A prediction is an answer too, so it comes first."""
