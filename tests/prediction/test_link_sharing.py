"""Collectives of a rank that ask a link for more than it carries."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.prediction.overlaps import overlap_losses


def test_three_at_once_each_lose_two_thirds():
    starts, ends = np.zeros(3, dtype=np.int64), np.full(3, 900, dtype=np.int64)
    assert overlap_losses(starts, ends, np.ones((3, 1))) == pytest.approx([2 / 3] * 3)


def test_the_worst_link_decides():
    # Together 1.5 of the first link and 1.2 of the second: 1 - 1/1.5 is more than
    # 1 - 1/1.2, of the share of time that each uses the link.
    starts, ends = np.zeros(2, dtype=np.int64), np.full(2, 600, dtype=np.int64)
    use = np.array([[1.0, 0.2], [0.5, 1.0]])
    assert overlap_losses(starts, ends, use) == pytest.approx([1 / 3, 1 / 6])


def test_nothing_overlaps_with_nothing():
    assert len(overlap_losses(np.zeros(0, np.int64), np.zeros(0, np.int64), np.ones((0, 1)))) == 0
