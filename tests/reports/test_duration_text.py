"""Durations in one unit."""

from __future__ import annotations

import pytest

from perfmodel.reports.text import build_scale


@pytest.mark.parametrize(
    ("whole_ns", "part_ns", "text"),
    [
        (4_171_000, 54_000, "0.054 ms"),
        (6_785_000_000, 650_000_000, "650 ms"),
        (36_000, 1_000, "1.00 us"),
        (60_000_000_000, 1_500_000_000, "1.50 s"),
        (0, 0, "0.000 us"),
    ],
)
def test_parts_are_written_in_the_unit_of_the_whole(whole_ns, part_ns, text):
    assert build_scale(whole_ns)(part_ns) == text
