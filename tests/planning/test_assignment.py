"""First assignments, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.planning.starts import Pieces, assign_greedily
from perfmodel.prediction.plans.plan_costs import AloneCosts


def test_pieces_may_fill_a_rank_to_the_last_byte():
    costs = AloneCosts(np.array([4.0, 3.0, 2.0]), np.zeros(3), np.zeros(3))
    sizes = np.array([5.0, 5.0, 5.0])

    def placed(room_bytes: float, rank_count: int) -> Any:
        pieces = Pieces(costs, np.zeros(3), sizes, 1.0, room_bytes)
        found = assign_greedily(pieces, rank_count=rank_count)
        return None if found is None else found.tolist()

    # The dearest first, each to the rank with least to do.
    assert placed(10.0, 2) == [0, 1, 1]
    assert placed(15.0, 1) == [0, 0, 0]
    assert placed(14.9, 1) is None
    assert placed(5.0, 3) == [0, 1, 2]


def test_pieces_that_cost_nothing_are_placed_all_the_same():
    nothing = np.zeros(2)
    pieces = Pieces(AloneCosts(nothing, nothing, nothing), nothing, np.ones(2), 1.0, 1.0)
    found = assign_greedily(pieces, rank_count=2)
    assert found is not None
    assert sorted(found.tolist()) == [0, 1]
