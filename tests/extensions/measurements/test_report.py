"""Predictions against measurements, as a report."""

from __future__ import annotations

from perfmodel.extensions.measurements.report import report_scores
from perfmodel.extensions.measurements.validation.runs import RunAnswer, RunScoreboard
from perfmodel.extensions.measurements.validation.scoreboard import (
    Deviation,
    Scoreboard,
    Unsupported,
)
from perfmodel.reports.terminal import to_text


def test_the_text_names_groups_errors_and_reasons():
    row = Deviation(row=1, group="dgx", measured=10, predicted=11, low=9, high=12)
    text = to_text(report_scores(Scoreboard("x", (row,), (Unsupported(3, "because"),))))

    assert "10.0 % mean absolute error" in text
    assert "100 % of the rows are inside" in text
    assert "dgx         1   10.0" in text
    assert "row 3: because" in text


def test_assumptions_are_listed_by_how_many_rows_rest_on_them():
    rows = [
        Deviation(row=n, group="dgx", measured=10, predicted=11, low=9, high=12) for n in (1, 2)
    ]
    said = {
        1: RunAnswer(10, 9, 12, assumptions=("a rare one", "b common")),
        2: RunAnswer(10, 9, 12, assumptions=("b common",)),
    }
    text = to_text(report_scores(RunScoreboard("runs", tuple(rows), answers=said)))

    assert text.index("2  b common") < text.index("1  a rare one")
