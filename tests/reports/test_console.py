"""The answer on a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from perfmodel.reports.console import draw_bar, print_prediction
from tests.reports.predictions import build_parts, build_prediction


def show(**changes: Any) -> str:
    file = io.StringIO()
    print_prediction(build_prediction(**changes), Console(width=80, file=file, highlight=False))
    return file.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        "36 us per iteration",
        "90 % interval 30 us to 45 us",
        "an isolated iteration takes 36.5 us",
        "compute                  25.00 us  69.4%",
        "it goes over to another rank once",
        "rank 0 for rank 1",
        "40 GiB of 80 GiB: fits",
        "90% analytic",
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
    bar = draw_bar(build_parts(10, 5, 20, 1), 36).plain

    assert bar == "█" * 10 + "▓" * 5 + "▒" * 20 + "░"
