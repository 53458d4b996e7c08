"""Options are described once, in the fields of questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from perfmodel.base.errors import InputError
from perfmodel.base.options import Option, check_ranges, expand_values, options_of


@dataclass(frozen=True)
class Question:
    """Two options, and a field that is none."""

    ranks: Annotated[int | None, Option(min=1, help="Ranks.")] = None
    hosts: Annotated[tuple[int, ...], Option(min=1, max=8, help="Hosts.")] = (1,)
    note: str = ""


def test_only_fields_with_an_option_are_options():
    found = options_of(Question)

    assert list(found) == ["ranks", "hosts"]
    assert found["ranks"] == (int | None, Option(min=1, help="Ranks."))


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (Question(ranks=0), "test: ranks must be at least 1, got 0."),
        (Question(hosts=(1, 9)), "test: hosts must be at most 8, got 9."),
    ],
)
def test_a_value_out_of_range_is_refused(question, complaint):
    with pytest.raises(InputError, match=complaint):
        check_ranges(question, InputError, "test")


def test_values_within_the_range_none_and_a_skipped_field_pass():
    check_ranges(Question(ranks=1, hosts=(1, 8)), InputError, "test")
    check_ranges(Question(ranks=0), InputError, "test", skipped="ranks")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a, b", ("a", "b")),
        ("0.25..0.5..1", ("0.25", "0.5", "1")),
        ("dgx_a100,../mine.yaml", ("dgx_a100", "../mine.yaml")),
        ("4", ("4",)),
        ("2:5", ("2", "3", "4", "5")),
        ("2:9:+3", ("2", "5", "8")),
        ("0:1:+0.5", ("0", "0.5", "1")),
        ("4096:16384:x2", ("4096", "8192", "16384")),
        ("1:2:x1.5", ("1", "1.5")),
    ],
)
def test_values_are_listed_or_run_from_one_to_another(text, values):
    assert expand_values(text) == values


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,,b", "one of them is empty"),
        ("a,b,a", "occurs twice"),
        ("1:8:2", "the step must be like x2 or .4, got '2'"),
        ("1:8:*2", "the step must be like"),
        ("1:8:xy", "the step must be like"),
        ("8:1", "must go up"),
        ("1:8:x1", "must go up"),
        ("0:8:x2", "must go up"),
        ("1:8:+0", "must go up"),
        ("1:1000000000", "are more than"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(text, complaint):
    with pytest.raises(InputError, match=complaint):
        expand_values(text)
