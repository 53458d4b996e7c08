"""Reports as text."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.reports.blocks import Report, Section, Table, plain_report
from perfmodel.reports.prediction import parts_bar, report_prediction
from perfmodel.reports.terminal import draw_bar, to_text
from tests.reports.predictions import build_parts, build_prediction


def show(**changes: Any) -> str:
    return to_text(report_prediction(build_prediction(**changes)))


@pytest.mark.parametrize(
    "words",
    [
        "36 us per iteration",
        "90 % interval 30 us to 45 us",
        "a single step takes 36.5 us",
        "compute                  25.00 us  69.4%",
        "crosses to another rank once",
        "rank 0  rank 1  all_reduce",
        "fits in memory: 40 GiB of 80 GiB",
        "analytic 90.0%",
        "Kernels do not slow each other down.",
        "Where it ran: in this process",
    ],
)
def test_everything_a_person_asks_is_there(words):
    assert words in show()


def test_no_line_is_longer_than_80_columns():
    shown = show(label="a_label_that_is_far_too_long_for_its_column_" * 4)

    assert max(len(line) for line in shown.splitlines()) <= 80


def test_names_are_shown_as_they_are_not_as_markup():
    assert "[bold]matmul[/bold]" in show(label="[bold]matmul[/bold]")


def test_what_does_not_fit_is_said_loudly():
    assert "DOES NOT FIT" in show(peak_bytes=100 * 2**30)


def test_a_bar_is_filled_exactly_with_a_pattern_for_each_part():
    # 10, 5, 20 and 1 of 36 on 36 characters.
    bar = draw_bar(parts_bar(build_parts(10, 5, 20, 1)), 36).plain

    assert bar == "█" * 10 + "▓" * 5 + "▒" * 20 + "░"


def test_no_line_ends_in_blanks():
    assert all(line == line.rstrip() for line in show().splitlines())


def test_a_long_table_is_cut_and_says_where_the_rest_is():
    table = Table(("name",), [[f"row {number}"] for number in range(5)], most=2)

    text = to_text(Report("Many", sections=[Section("All", [table])]))
    assert "row 1" in text
    assert "row 2" not in text
    assert "and 3 more; all in --json" in text


def test_a_narrow_terminal_drops_optional_columns_and_names_them():
    table = Table(("name", "time", "share"), [["a" * 30, "b" * 30, "c" * 30]], optional=(1, 2))
    report = Report("Wide", sections=[Section("All", [table])])

    narrow = to_text(report, 70)
    assert "c" * 30 not in narrow
    assert "too narrow for: share" in narrow
    assert "too narrow" not in to_text(report, 100)
    # What goes with its two blanks makes just enough room for what stays.
    assert "b" * 30 in to_text(report, 64)
    assert "b" * 30 not in to_text(report, 63)


def test_a_long_name_is_cut_before_numbers_are():
    rows = [("1234.567", "+0.001", "kernel_" * 20), ("1.5", "-12.250", "short")]
    report = plain_report("x", Table(("before", "change", "kernel"), rows, numeric=(0, 1)))
    lines = to_text(report, 60).splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [["1234.567", "+0.001"], ["1.5", "-12.250"]]
    assert max(map(len, lines)) == 60


def test_what_only_a_page_shows_is_not_made_for_a_terminal():
    def fail():
        raise AssertionError("a terminal does not draw it")

    assert "Timeline" not in to_text(Report("Short", sections=[Section("Timeline", more=fail)]))
