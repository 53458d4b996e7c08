"""Answers in Python and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.writing import write_csv
from perfmodel.prediction.comparing import Compared, Comparison, SweepAxis
from perfmodel.prediction.yardsticks import IterationWork
from perfmodel.reports.comparing import report_comparison, to_comparison_rows
from perfmodel.reports.html import to_page
from tests.reports.predictions import build_prediction


def build_comparison() -> Comparison:
    found = build_prediction()
    assert found.scenario is not None
    entries = (
        Compared("batch=1", found.scenario, found),
        Compared("batch=2", found.scenario, found),
        Compared("batch=3", found.scenario, None, "batch must divide"),
    )
    return Comparison(entries, (SweepAxis("batch", ("1", "2", "3")),))


@pytest.mark.parametrize("shown", [build_prediction(), build_comparison()], ids=["one", "many"])
def test_an_answer_shows_itself(shown, tmp_path):
    assert len(repr(shown)) < 600
    assert "36 us" in repr(shown)
    assert "<table" in shown._repr_html_()
    assert len(shown.to_frame()) >= 2
    assert shown.to_dict()["schema_version"] == 1
    assert shown.save_report(tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_names_in_a_notebook_are_text():
    assert "<script>" not in build_prediction(label="<script>alert(1)</script>")._repr_html_()


def test_a_table_of_scenarios_has_a_line_each_and_says_why_one_has_no_answer(tmp_path):
    write_csv(tmp_path / "scenarios.csv", to_comparison_rows(build_comparison()))
    lines = (tmp_path / "scenarios.csv").read_text().splitlines()

    assert len(lines) == 4
    assert lines[3].endswith("batch must divide")
    assert "batch must divide" in to_page(report_comparison(build_comparison()))


def test_with_a_price_a_million_of_what_is_trained_costs_money():
    found = build_prediction()
    work = IterationWork(samples=8, tokens=1000)
    found = replace(found, facts=replace(found.facts, work=work))
    entries = (
        Compared("refused", found.scenario, None, "batch must divide"),
        Compared("one", found.scenario, found),
        Compared("other", found.scenario, found),
    )
    priced = replace(Comparison(entries).ordered(), price_per_gpu_hour=2.0)

    assert [entry.name for entry in priced.entries] == ["one", "other", "refused"]
    # A million tokens at 2 an hour and GPU.
    assert found.yardsticks is not None
    hours = 1e6 / found.yardsticks.per_s / 3600
    cost = hours * found.facts.rank_count * 2.0
    costs = [row["cost_per_million"] for row in to_comparison_rows(priced)]
    assert costs == [pytest.approx(cost), pytest.approx(cost), None]
