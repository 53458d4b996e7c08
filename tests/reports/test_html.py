"""Reports as pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from perfmodel.reports.blocks import (
    Look,
    Plot,
    Point,
    Report,
    Section,
    Sentences,
    Table,
    plain_report,
)
from perfmodel.reports.html import FOLD, to_page
from perfmodel.reports.prediction import report_prediction
from tests.reports.predictions import build_prediction

VOID = {"meta", "rect", "line"}


class Nesting(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_says_the_answer():
    page = to_page(report_prediction(build_prediction()))
    nesting = Nesting()
    nesting.feed(page)

    assert nesting.open == []
    assert "36 us" in page
    assert "fits" in page


def test_names_from_outside_cannot_become_markup():
    page = to_page(report_prediction(build_prediction(label="<script>alert(1)</script>")))

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_words_in_backticks_are_code_and_still_no_markup():
    page = to_page(plain_report("a", Sentences(["Ask `perfmodel rank <b>`, or a ` alone."])))
    assert "Ask <code>perfmodel rank &lt;b&gt;</code>, or a ` alone." in page


def test_control_characters_of_names_do_not_reach_the_page():
    page = to_page(report_prediction(build_prediction(label="red\x1b[31m\x07")))

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", page)
    assert "red?[31m?" in page


def test_the_page_needs_nothing_from_elsewhere():
    page = to_page(report_prediction(build_prediction()))

    assert re.findall(r"""(?:src|href)\s*=|url\(|@import""", page) == []


def test_the_timeline_draws_every_lane_that_worked():
    page = to_page(report_prediction(build_prediction()))

    for lane in ("rank 0 host", "rank 0 compute", "rank 1 compute", "rank 1 network"):
        assert lane in page


def test_a_long_table_is_folded_and_can_be_opened():
    rows = [[f"row {number}"] for number in range(FOLD + 3)]
    page = to_page(Report("Many", sections=[Section("All", [Table(("name",), rows)])]))

    assert page.count('<tr class="folded">') == 3
    assert "3 more rows" in page


class Quote(Sentences):
    """A block that the template has no case for."""

    kind = "quote"


def test_a_block_without_a_case_of_its_own_is_shown_as_terminal_text():
    page = to_page(plain_report("Title", Quote(["one < two", "three"])))

    assert '<pre class="scroll">  - one &lt; two\n  - three\n</pre>' in page


def test_a_plot_has_a_point_for_each_value_with_its_interval_and_what_it_is():
    points = [Point(1, 10, "one <b>", (8, 13)), Point(4, 20, "four", look=Look.RED)]
    page = to_page(plain_report("", Plot(points, "hosts", "samples", are_joined=True)))
    assert page.count("<circle") == 2
    assert page.count('class="interval"') == 1
    assert "one &lt;b&gt;" in page
    assert "<polyline" in page


def test_a_single_point_is_no_plot():
    assert not Plot([Point(1, 1, "alone")], "x", "y")


def test_ticks_are_round_values_inside_of_the_axis_or_the_few_values_themselves():
    points = [Point(x, 1e6 * x, "") for x in (1, 8, 32)]
    joined = Plot(points, "GPUs", "tokens", are_joined=True)
    assert [tick.words for tick in joined.ticks("x")] == ["1", "8", "32"]
    assert [tick.words for tick in joined.ticks("y")] == ["0", "10 M", "20 M", "30 M"]
    crowded = Plot([Point(x, 1, "") for x in (4096, 8192, 65536)], "", "", are_joined=True)
    assert [tick.words for tick in crowded.ticks("x")] == ["8,192", "65,536"]  # 6 % apart
    scattered = Plot(points, "measured", "predicted", are_log=True, shows_equal=True)
    assert all(0 <= tick.share <= 1 for axis in ("x", "y") for tick in scattered.ticks(axis))
    assert scattered.ticks("x") == scattered.ticks("y")
    narrow = Plot([Point(2, 3, ""), Point(5, 4, "")], "", "", are_log=True)
    assert [tick.words for tick in narrow.ticks("x")] == ["2", "5"]
