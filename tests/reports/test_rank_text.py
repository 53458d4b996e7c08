"""Many ranks in few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.reports.rank.table import format_ranks, name_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        (range(8), "0-7"),
        ([0, 8, 16, 24], "0-24 step 8"),
        ([1, 5], "1, 5"),
        ([0, 1, 2, 7], "0-2, 7"),
        ([4, 5], "4-5"),
    ],
)
def test_ranks_are_written_as_ranges(ranks, text):
    assert format_ranks(list(ranks)) == text


def test_what_is_left_out_is_counted():
    assert format_ranks([0, 2, 5, 9, 14, 20], max_pieces=2) == "0, 2, and 4 more"


def test_one_rank_is_singular():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([3, 4]) == "ranks 3-4"


@given(st.sets(st.integers(0, 200), min_size=1))
def test_the_exact_text_names_every_rank_once(ranks):
    named: list[int] = []
    for piece in format_ranks(sorted(ranks), max_pieces=10**9).split(", "):
        bounds, _, step = piece.partition(" step ")
        first, _, last = bounds.partition("-")
        named += range(int(first), int(last or first) + 1, int(step or 1))

    assert named == sorted(ranks)
