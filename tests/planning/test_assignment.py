"""First assignments: exact ones against trying everything, greedy ones by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from perfmodel.planning import starts as assignment
from perfmodel.planning.starts import Pieces, assign, assign_greedily
from perfmodel.prediction.plans.plan_costs import AloneCosts


def some_pieces(seed: int, *, room_bytes: float = 1e9) -> Pieces:
    chance = np.random.default_rng(seed)
    lookup, update, tail, widths = chance.uniform(1.0, 10.0, (4, 5))
    tail = np.where(tail > 4.0, tail, 0.0)
    return Pieces(AloneCosts(lookup, update, tail), widths, widths, 1.5, room_bytes)


def largest_ns(pieces: Pieces, ranks: Any) -> float:
    """The largest lookup, with its longest tail, update and exchange over three ranks."""
    total = np.zeros(3)
    parts = np.zeros((3, 3))
    for rank in range(3):
        held = np.asarray(ranks) == rank
        parts[:, rank] = pieces.parts_ns[:, held].sum(axis=1)
        parts[0, rank] += pieces.costs.tail_ns[held].max(initial=0.0)
    total = parts.max(axis=1)
    return float(total.sum())


@pytest.mark.parametrize("seed", range(4))
def test_an_exact_assignment_is_as_good_as_the_best_of_all(seed):
    pieces = some_pieces(seed)
    found = assign(pieces, rank_count=3, seconds=20.0)
    best_ns = min(largest_ns(pieces, ranks) for ranks in product(range(3), repeat=5))
    assert largest_ns(pieces, found) == pytest.approx(best_ns, rel=0.002)
    # Where room is short, the best of those that fit.
    tight = some_pieces(seed, room_bytes=1.1 * float(pieces.widths.max()) + 3.0)

    def fits(ranks: Any) -> bool:
        used = np.bincount(ranks, weights=tight.memory_bytes, minlength=3)
        return bool((used <= tight.room_bytes).all())

    fitting = [ranks for ranks in product(range(3), repeat=5) if fits(ranks)]
    found = assign(tight, rank_count=3, seconds=20.0)
    if fitting:
        assert found is not None
        assert fits(found)
        best_ns = min(largest_ns(tight, ranks) for ranks in fitting)
        assert largest_ns(tight, found) == pytest.approx(best_ns, rel=0.002)
    else:
        assert found is None


def stated_pieces(lookup, update, tail, **changes) -> Pieces:
    costs = AloneCosts(*(np.array(part, dtype=float) for part in (lookup, update, tail)))
    zero = np.zeros(len(lookup))
    fields = {"widths": zero, "memory_bytes": zero + 1, "width_ns": 0.0, "room_bytes": 10.0}
    return Pieces(costs, **{**fields, **changes})


def test_exact_assignments_even_out_lookups_updates_and_tails_at_once():
    # 5, 4, 3, 3, 3 on two ranks: greedy gives 5 + 3 and 4 + 3 + 3; exact 5 + 4 and 9.
    sizes = stated_pieces([5, 4, 3, 3, 3], [0] * 5, [0] * 5)
    exact, greedy = assign(sizes, rank_count=2, seconds=5), assign_greedily(sizes, rank_count=2)
    assert np.bincount(exact, weights=sizes.costs.lookup_ns).max() == 9
    assert np.bincount(greedy, weights=sizes.costs.lookup_ns).max() == 10
    # Sums of both are alike for all pieces, but only one of each kind a rank evens out both.
    both = stated_pieces([4, 4, 1, 1], [1, 1, 4, 4], [0] * 4)
    ranks = assign(both, rank_count=2, seconds=5)
    assert np.bincount(ranks, weights=both.costs.lookup_ns).tolist() == [5, 5]
    assert np.bincount(ranks, weights=both.costs.update_ns).tolist() == [5, 5]
    # Largest lookup: 1 + 1 + 6 = 8 with the tails together and 4 + 4 beside, 11 with them apart.
    ranks = assign(stated_pieces([1, 1, 4, 4], [1] * 4, [6, 6, 0, 0]), rank_count=2, seconds=5)
    assert ranks[0] == ranks[1] != ranks[2] == ranks[3]
    large = stated_pieces([1] * 3, [0] * 3, [0] * 3, memory_bytes=np.full(3, 6.0))
    assert assign(large, rank_count=2, seconds=5) is None


def test_the_exact_optimiser_is_asked_where_there_is_time_and_it_is_small_enough(monkeypatch):
    asked = []

    def exactly(pieces: Pieces, rank_count: int, seconds: float) -> Any:
        asked.append((len(pieces.widths), rank_count, seconds))
        return np.zeros(len(pieces.widths), dtype=np.int64)

    monkeypatch.setattr(assignment, "assign_exactly", exactly)
    for count, rank_count, seconds in ((300, 10, 1.0), (300, 10, 0.0), (1501, 2, 1.0)):
        ones = np.ones(count)
        pieces = Pieces(AloneCosts(ones, ones, ones), ones, ones, 1.0, 1e9)
        assert assign(pieces, rank_count=rank_count, seconds=seconds) is not None
    assert asked == [(300, 10, 1.0)]


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
    found = assign(pieces, rank_count=2, seconds=5.0)
    assert found is not None
    assert sorted(found.tolist()) == [0, 1]
