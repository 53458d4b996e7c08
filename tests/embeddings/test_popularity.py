"""Formulas of popularity against brute force."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from embeddings.distribution import (
    ObservedRows,
    ReuseHistogram,
    Uniform,
    Zipf,
    observe,
    popularity_of,
)
from embeddings.popularity import Popularity, RowRange, build_popularity
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError


def _draw(popularity: Popularity, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Indices drawn row by row from classes with whole counts."""
    counts = np.rint(popularity.row_counts).astype(int)
    weights = np.repeat(popularity.probabilities, counts)
    return generator.choice(len(weights), size=draws, p=weights / weights.sum())


def _lru_misses(indices: np.ndarray, capacity: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for index in indices.tolist():
        if index in held:
            held.move_to_end(index)
            continue
        misses += 1
        held[index] = None
        if len(held) > capacity:
            held.popitem(last=False)
    return misses


def _cases(count: int):
    generator = np.random.default_rng(7)
    for _ in range(count):
        rows = int(generator.integers(50, 20_000))
        kind = int(generator.integers(0, 3))
        if kind == 0:
            distribution = Uniform()
        elif kind == 1:
            distribution = Zipf(float(generator.uniform(0.3, 1.6)))
        else:
            shares = generator.dirichlet(np.ones(8))
            reuse = tuple(float(2**power) for power in range(8))
            distribution = ReuseHistogram(tuple(shares.tolist()), reuse, draws=4.0 * rows)
        draws = int(generator.integers(500, 8_000))
        capacity = int(generator.integers(5, rows))
        yield distribution, rows, draws, capacity, generator


def test_the_cache_formula_follows_a_simulated_lru_cache():
    errors = []
    for distribution, rows, draws, capacity, generator in _cases(100):
        popularity = popularity_of(distribution, rows)
        misses = popularity.lru_misses(draws, capacity_rows=capacity)
        simulated = _lru_misses(_draw(popularity, draws, generator), capacity)
        errors.append(100 * abs(misses - simulated) / draws)
    assert np.mean(errors) < 2
    assert max(errors) < 5


def test_distinct_rows_follow_counted_ones_within_one_percent():
    for distribution, rows, draws, _, generator in _cases(100):
        popularity = popularity_of(distribution, rows)
        counted = np.mean([len(np.unique(_draw(popularity, draws, generator))) for _ in range(25)])
        assert popularity.distinct_rows(draws) == pytest.approx(counted, rel=0.01)


def test_caches_of_nothing_and_of_everything_and_two_rows_drawn_three_times_by_hand():
    # Both rows with probability 1/2: each is missed by three draws once in eight.
    assert popularity_of(Uniform(), 2).distinct_rows(3) == pytest.approx(2 * (1 - 1 / 8))
    everything = popularity_of(Zipf(1.0), 100)
    assert everything.lru_misses(500, capacity_rows=100) == everything.distinct_rows(500)
    assert popularity_of(Uniform(), 100).lru_misses(40, capacity_rows=0) == pytest.approx(40)


def test_zipf_classes_hold_all_rows_and_all_draws():
    for exponent in (0.5, 1.0, 1.3):
        popularity = popularity_of(Zipf(exponent), 10**7)
        assert popularity.rows == pytest.approx(10**7)
        assert popularity.row_counts @ popularity.probabilities == pytest.approx(1)
        # The most popular of ten million rows: 1 over the sum of i ** -exponent.
        exact = 1 / np.sum(np.arange(1, 10**7 + 1, dtype=float) ** -exponent)
        assert popularity.hottest_share == pytest.approx(exact, rel=1e-3)


def test_rows_drawn_often_are_counted():
    generator = np.random.default_rng(1)
    popularity = popularity_of(Zipf(1.1), 2_000)
    counts = np.bincount(_draw(popularity, 20_000, generator), minlength=2_000)
    rows = popularity.rows_drawn_more_than(32, draws=20_000)
    assert rows == pytest.approx((counts > 32).sum(), rel=0.1)
    draws = popularity.draws_of_rows_drawn_more_than(32, draws=20_000)
    assert draws == pytest.approx(counts[counts > 32].sum(), rel=0.03)


def test_observed_indices_give_back_their_own_counts():
    indices = np.array([3, 3, 3, 8, 8, 1])
    observed = observe(indices)
    assert observed.times == (1.0, 2.0, 3.0)
    assert observed.rows_seen == (1, 1, 1)
    assert observed.popularity(10).hottest_share == pytest.approx(0.5)


def test_a_histogram_on_a_small_table_keeps_its_shape():
    histogram = ReuseHistogram((0.5, 0.5), (1.0, 4.0), draws=800)
    # 400 rows seen once and 100 rows seen four times.
    assert histogram.distinct_rows == 500
    small = histogram.popularity(50)
    assert small.row_counts.tolist() == pytest.approx([40, 10])
    assert (small.row_counts * small.probabilities).tolist() == pytest.approx([0.5, 0.5])


def test_two_pieces_by_rows_see_the_different_rows_of_the_whole():
    whole = EmbeddingTable("t", 1_000, 8, 10.0, distribution=Zipf(1.0))
    halves = [whole.piece(first_row=first, rows=500, width=8) for first in (0, 500)]
    # Each half has some of the rows that 2,000 draws hit.
    found = [half.popularity.distinct_rows(2_000.0) for half in halves]
    assert sum(found) == pytest.approx(whole.popularity.distinct_rows(2_000.0))


def test_identifiers_in_bags_ask_for_rows_together_until_half_of_them_are_taken():
    # Two rows a bag: three identifiers have six of twelve rows to themselves, the other three lie
    # over each other on the six that are left.
    bags = Zipf(1.0, occurring=6, bag=2).popularity(12)
    parts = [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]
    whole = 2 * sum(parts)
    assert bags.rows == 12
    assert sorted(bags.probabilities) == pytest.approx(
        sorted([*(part / whole for part in parts[:3]), 2 * sum(parts[3:]) / 6 / whole])
    )
    few = Zipf(1.0, occurring=2, bag=2).popularity(12)
    assert sorted(few.probabilities) == pytest.approx([0.5 / 3, 1 / 3])
    crowded = Zipf(1.0, occurring=6, bag=8).popularity(12)
    assert crowded.probabilities == pytest.approx([1 / 12])
    assert (str(Zipf(1.0)), str(Zipf(1.5, bag=2))) == ("zipf(1)", "zipf(1.5) in bags of 2")


def test_a_piece_that_nobody_asks_for_finds_nothing_and_misses_nothing():
    # Two rows occur, the first and the one in the middle: neither lies in this quarter.
    seen = popularity_of(observe(np.array([0, 0, 1])), 100)
    piece = seen.piece(RowRange(first_row=1, rows=25, whole_rows=100))
    assert (piece.rows, piece.share, piece.distinct_rows(9.0)) == (0, 0, 0)
    assert piece.lru_misses(9.0, capacity_rows=0.5) == 0


@pytest.mark.parametrize("distribution", [Uniform(), Zipf(0.7), Zipf(1.2), Zipf(1.1, bag=4)])
@pytest.mark.parametrize("rows", [50, 5_000])
def test_pieces_find_together_what_each_finds_alone(distribution, rows):
    whole = popularity_of(distribution, rows)
    first, held = np.arange(0, rows, 10), np.full(rows // 10, 10)
    together = whole.piece(RowRange(first, held, rows, hottest_row=3))
    # Room for from none to more than all of ten rows.
    room = np.linspace(0, 12, len(first))
    found = together.lru_misses(400.0, capacity_rows=room)
    more = together.rows_drawn_more_than(2, draws=400.0)
    for number, row in enumerate(first.tolist()):
        alone = whole.piece(RowRange(row, 10, rows, hottest_row=3))
        assert alone.lru_misses(400.0, capacity_rows=room[number]) == found[number]
        assert alone.rows_drawn_more_than(2, draws=400.0) == more[number]
    assert together.share.sum() == pytest.approx(1)
    assert together.distinct_rows(400.0).sum() == pytest.approx(whole.distinct_rows(400.0))
    # Each draw of the table misses in the one piece that it goes to, or in none.
    assert together.lru_misses(400.0, capacity_rows=0.0).sum() == pytest.approx(400)


@pytest.mark.parametrize(
    ("shares", "reuse", "draws", "fault"),
    [((), (), 1.0, "one mean reuse per bin"), ((1.0,), (1.0, 2.0), 1.0, "got 2 for 1 bins"),
     ((1.0, -0.1), (1.0, 2.0), 1.0, "must be finite"),
     ((1.0, np.inf), (1.0, 2.0), 1.0, "must be finite"),
     ((0.0, 0.0), (1.0, 2.0), 1.0, "must be above 0"),
     ((1.0, 0.0), (1.0, 0.0), 1.0, "must be above 0"),
     ((1.0, 0.0), (1.0, 2.0), 0.0, "must be above 0"), ((0.2, 0.0), (0.5, 0.5), 0.5, None)],
)  # fmt: skip
def test_a_histogram_has_shares_reuse_and_draws(shares, reuse, draws, fault):
    if fault is None:
        assert ReuseHistogram(shares, reuse, draws).distinct_rows == pytest.approx(1.0)
        return
    with pytest.raises(PlanError, match=fault):
        ReuseHistogram(shares, reuse, draws)


@pytest.mark.parametrize(
    ("values", "is_right"),
    [({"exponent": 0.0}, True), ({"exponent": -0.1}, False), ({"exponent": np.inf}, False),
     ({"exponent": 1.0, "bag": 0}, False), ({"exponent": 1.0, "occurring": 0}, False),
     ({"exponent": 1.0, "bag": 1, "occurring": 1}, True)],
)  # fmt: skip
def test_a_zipf_law_has_an_exponent_and_rows(values, is_right):
    if is_right:
        assert Zipf(**values).popularity(9).rows in (1, 9)
        return
    with pytest.raises(PlanError, match="zipf"):
        Zipf(**values)


def test_a_small_table_keeps_bins_of_less_than_a_row_and_leaves_out_empty_ones():
    histogram = ReuseHistogram((0.9, 0.0, 0.1), (1.0, 2.0, 100.0), draws=1000)
    # 900 rows seen once, one row 100 times; over 9 rows: 9 x 900 / 901 and 9 / 901.
    small = histogram.popularity(9)
    assert small.row_counts.tolist() == pytest.approx([9 * 900 / 901, 9 / 901])
    assert histogram.popularity(901).row_counts.tolist() == pytest.approx([900, 1])
    assert histogram.scaled(2000).distinct_rows == 2 * histogram.distinct_rows
    assert str(histogram) == "reuse histogram (mean 1.11)"


def test_rows_that_were_never_seen_are_no_observation():
    for times, rows in (((), ()), ((1.0,), (1, 2))):
        with pytest.raises(PlanError, match="observed rows"):
            ObservedRows(times, rows)
    assert str(observe(np.array([3, 3, 8]))) == "2 observed rows"


def test_rows_seen_often_are_merged_five_percent_wide():
    def seen(*times):
        found = observe(np.repeat(np.arange(len(times)), times))
        return found.times, found.rows_seen

    # Up to 64 times one by one; from there on 65 and 67 lie within 5 % of 64, 68 does not.
    assert seen(63, 64, 65) == ((63.0, 64.0, 65.0), (1, 1, 1))
    assert seen(65, 67) == ((66.0,), (2,))
    assert seen(67, 68) == ((67.0, 68.0), (1, 1))


def test_the_most_popular_rows_stand_alone_and_the_others_in_bins():
    exact = popularity_of(Zipf(1.0), 512)
    binned = popularity_of(Zipf(1.0), 540)
    assert exact.row_counts.tolist() == [1.0] * 512
    # ln(540 / 512) / ln(1.05) = 1.09: two bins more, of 14 rows each.
    assert binned.row_counts.tolist() == [1.0] * 512 + [14.0, 14.0]
    ranks = np.arange(1, 541)
    assert binned.probabilities[0] == pytest.approx(1 / np.sum(1 / ranks), rel=1e-6)
    assert binned.probabilities[-1] * 14 == pytest.approx(
        np.sum(1 / ranks[-14:]) / np.sum(1 / ranks), rel=1e-4
    )


@pytest.mark.parametrize("capacity", [-1.0, 0.0, 1.0, 99.0, 100.0, 1e9])
def test_a_window_lasts_until_a_cache_is_full(capacity):
    window = popularity_of(Uniform(), 100).window_draws(capacity)
    if capacity <= 0:
        assert window == 0
    elif capacity >= 100:
        assert window == np.inf
    else:
        # 100 (1 - 0.99 ** n) rows in n draws.
        assert window == pytest.approx(np.log(1 - capacity / 100) / np.log(0.99))


def test_draws_that_are_too_few_for_the_cache_miss_each_row_once():
    popularity = popularity_of(Uniform(), 100)
    window = popularity.window_draws(30)
    for draws in (0.5 * window, window):
        assert popularity.lru_misses(draws, capacity_rows=30) == pytest.approx(
            popularity.distinct_rows(draws)
        )
    # From then on a draw finds 30 of 100 rows.
    later = popularity.lru_misses(window + 50, capacity_rows=30)
    assert later == pytest.approx(30 + 50 * 0.7)


def test_all_draws_go_to_rows_that_are_drawn_at_all():
    popularity = popularity_of(Uniform(), 10)
    assert popularity.draws_of_rows_drawn_more_than(0, draws=40.0) == pytest.approx(40.0)
    # Four draws a row: P(X >= 1) is 1 - exp(-4); rows hit more than once, 1 - 5 exp(-4).
    assert popularity.draws_of_rows_drawn_more_than(1, draws=40.0) == pytest.approx(
        40 * (1 - np.exp(-4))
    )
    assert popularity.rows_drawn_more_than(1, draws=40.0) == pytest.approx(
        10 * (1 - 5 * np.exp(-4))
    )


def test_rows_expected_are_those_of_at_least_one_draw_each():
    popularity = popularity_of(Zipf(1.0), 3)
    # Shares 6, 3 and 2 of 11.
    assert [popularity.rows_expected(draws) for draws in (1.0, 1.9, 11 / 3, 5.4, 5.6)] == [
        0, 1, 2, 2, 3,
    ]  # fmt: skip


def test_rows_that_are_never_drawn_and_classes_without_rows_are_left_out():
    found = build_popularity(np.array([5.0, 7.0, 0.0]), np.array([1.0, 0.0, 4.0]))
    assert (found.row_counts.tolist(), found.probabilities.tolist()) == ([5.0], [0.2])
    # One row that has all draws is almost sure.
    assert 0.999 < build_popularity(np.array([1.0]), np.array([3.0])).hottest_share < 1
