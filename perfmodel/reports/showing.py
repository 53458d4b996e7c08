"""Showing: what `perfmodel.base.shown` looks up, by the type of the answer.

The first type of the table that an answer is an instance of decides. An answer of an extension
names the module that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.base.extensions import load_module
from perfmodel.base.writing import check_writable, write_file
from perfmodel.planning.layouts.ranking import LayoutRanking, Search
from perfmodel.planning.ranking import Ranking
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.comparing import Comparison
from perfmodel.reports.blocks import Report
from perfmodel.reports.comparing import report_comparison, to_comparison_document
from perfmodel.reports.document import to_document
from perfmodel.reports.html import to_page
from perfmodel.reports.prediction import report_prediction
from perfmodel.reports.rank import report_ranking, to_ranking_document
from perfmodel.reports.replay import report_replay, to_answer_document
from perfmodel.reports.search import report_search, to_search_document

if TYPE_CHECKING:
    import pandas

LONGEST = 590


@dataclass(frozen=True, slots=True)
class View:
    """How answers of one type are shown: blocks, and plain values."""

    report: Callable[[Any], Report]
    document: Callable[[Any], dict[str, Any]]


def describe(shown: object) -> str:
    """The headline in a few lines, under 600 characters."""
    report = _view(shown).report(shown)
    lines = [f"{type(shown).__name__}: {report.title}"]
    if (head := report.headline) is not None:
        lines += [f"{head.answer} {head.caption}", head.verdict, *head.facts]
    text = "\n".join(line for line in lines if line)
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

    return pandas.DataFrame(_view(shown).report(shown).rows)


def save_report(shown: object, path: Path) -> Path:
    """Write the page to *path*."""
    check_writable("report", path)
    write_file(path, to_page(_view(shown).report(shown)))
    return path


def _view(shown: object) -> View:
    if isinstance(shown, Prediction) and shown.reasons is None:
        return _TIMES_ALONE
    place: str | None = getattr(shown, "SHOWN_BY", None)
    if place is not None:
        own: View = load_module(place).VIEW
        return own
    for kind, view in VIEWS.items():
        if isinstance(shown, kind):
            return view
    raise InputError(f"{type(shown).__name__}: cannot be shown.")


VIEWS: dict[type[object], View] = {
    Prediction: View(report_prediction, to_document),
    Ranking: View(report_ranking, lambda ranking: to_ranking_document(ranking, None)),
    LayoutRanking: View(
        lambda ranking: report_search([ranking]),
        lambda ranking: to_search_document([ranking]),
    ),
    Search: View(report_search, to_search_document),
    Comparison: View(report_comparison, to_comparison_document),
}
"""Every kind of answer of the core."""
_TIMES_ALONE = View(report_replay, to_answer_document)
"""A prediction without an explanation."""
