"""Predictions beside measurements, as a report."""

from __future__ import annotations

from perfmodel.reports.scores import report_scores
from perfmodel.reports.terminal import to_text
from perfmodel.validation.scoreboard import Deviation, Scoreboard, Unsupported


def test_the_text_names_groups_errors_and_reasons():
    row = Deviation(row=1, group="dgx", measured=10, predicted=11, low=9, high=12)
    text = to_text(report_scores(Scoreboard("x", (row,), (Unsupported(3, "because"),))))

    assert "10.0 % mean absolute error" in text
    assert "100 % of the rows are inside" in text
    assert "dgx         1   10.0" in text
    assert "row 3: because" in text
