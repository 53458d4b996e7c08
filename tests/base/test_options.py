"""Options are described once, in the fields of questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from perfmodel.base.errors import InputError
from perfmodel.base.options import Option, check_ranges, options_of


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
