"""Popularity: how often the rows of a table are asked for, as classes of equal rows.

Draws are independent. From that follow the distinct rows of a batch and what
an LRU cache serves (Che's approximation): a row is in the cache if it was
drawn within the last T draws, where T draws touch as many rows as the cache holds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ALMOST_SURE = 1.0 - 1e-12
_STEPS = 200
_EXACT = 1e-14
HOT_ROWS = 64
"""Rows of a table that pieces by rows get one by one; the others are spread evenly."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """*rows* rows from *first_row* on, of *whole_rows* of which *hottest_row* is the hottest."""

    first_row: int
    rows: int
    whole_rows: int
    hottest_row: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Popularity:
    """Classes of rows: *row_counts* rows that a draw hits with *probabilities* each.

    Counts are expectations and need not be whole.
    """

    row_counts: Floats
    probabilities: Floats

    @property
    def rows(self) -> float:
        """Rows that are ever asked for."""
        return float(self.row_counts.sum())

    @property
    def hottest_share(self) -> float:
        """The share of draws that go to the most popular row."""
        return float(self.probabilities.max())

    def rows_expected(self, draws: float) -> int:
        """Rows that *draws* draws are expected to hit at least once each."""
        return int(self.row_counts[draws * self.probabilities >= 1].sum() + 1e-9)

    def split(self, count: float) -> tuple[Floats, Floats]:
        """Rows of each class among the *count* most popular ones, and the others."""
        order = np.argsort(-self.probabilities, kind="stable")
        before = np.cumsum(self.row_counts[order]) - self.row_counts[order]
        hot: Floats = np.empty_like(self.row_counts)
        hot[order] = np.clip(count - before, 0.0, self.row_counts[order])
        return hot, self.row_counts - hot

    def rows_inside(self, where: RowRange) -> Floats:
        """Rows of each class that lie in a piece by rows.

        The most popular rows are dealt over the table one by one, so that any
        number of equal pieces gets them in turn; all others are spread evenly.
        """
        first_row, rows, whole_rows = where.first_row, where.rows, where.whole_rows
        share = rows / whole_rows
        if len(self.row_counts) == 1:
            return self.row_counts * share
        places = np.array(_hot_rows(whole_rows, where.hottest_row))
        is_inside = (places >= first_row) & (places < first_row + rows)
        order = np.argsort(-self.probabilities, kind="stable")
        counts = self.row_counts[order]
        before = np.concatenate([[0.0], np.cumsum(counts)[:-1]])
        dealt = np.concatenate([[0.0], np.cumsum(is_inside)])
        # Places of a class are those from its first to its last row; fractions in proportion.
        ends = np.arange(len(places) + 1)
        hot = np.interp(before + counts, ends, dealt) - np.interp(before, ends, dealt)
        cold = np.maximum(before + counts - np.maximum(before, len(places)), 0.0) * share
        inside: Floats = np.empty_like(counts)
        inside[order] = hot + cold
        return inside

    def piece(self, where: RowRange) -> Popularity:
        """How often the rows of a piece are asked for, of the draws that go to it."""
        inside = self.rows_inside(where)
        mass = float(inside @ self.probabilities)
        if mass <= 0:
            return self.thinned(where.rows / where.whole_rows)
        kept = inside > 0
        chances = np.minimum(self.probabilities[kept] / mass, _ALMOST_SURE)
        return Popularity(inside[kept], chances)

    def thinned(self, share: float) -> Popularity:
        """The rows of a random piece of the table that holds *share* of them."""
        return Popularity(
            self.row_counts * share, np.minimum(self.probabilities / share, _ALMOST_SURE)
        )

    def distinct_rows(self, draws: float) -> float:
        """Expected number of different rows in *draws* draws.

        A row is missed by every draw with probability (1 - p) ** draws.
        """
        return float(self.row_counts @ -np.expm1(draws * self._log_missed()))

    def distinct_deviation(self, draws: float) -> float:
        """Standard deviation of the different rows in *draws* draws, over their mean.

        Rows are hit independently of each other, as when the number of draws is not fixed.
        """
        hit = -np.expm1(draws * self._log_missed())
        mean = float(self.row_counts @ hit)
        return float(np.sqrt(self.row_counts @ (hit * (1 - hit)))) / mean if mean > 0 else 0.0

    def new_row_chance(self, draws: float) -> float:
        """The chance that a draw goes to a row that none of the last *draws* draws went to."""
        weights = self.row_counts * self.probabilities
        return float(weights @ np.exp(draws * self._log_missed()))

    def window_draws(self, capacity_rows: float) -> float:
        """How many draws touch *capacity_rows* rows; infinite if all rows together are fewer."""
        if capacity_rows <= 0:
            return 0.0
        if capacity_rows >= self.rows * (1 - 1e-9):
            return float("inf")
        # Distinct rows grow ever more slowly, so a tangent is above them everywhere and steps
        # along tangents come closer from below.
        log_missed = self._log_missed()
        draws = 0.0
        for _ in range(_STEPS):
            missed = np.exp(draws * log_missed)
            lacking = capacity_rows - float(self.row_counts @ -np.expm1(draws * log_missed))
            step = lacking / float(self.row_counts @ (missed * -log_missed))
            draws += step
            if step <= _EXACT * draws:
                break
        return draws

    def lru_misses(self, draws: float, *, capacity_rows: float) -> float:
        """Expected misses of *draws* draws in an LRU cache of *capacity_rows*, empty at first.

        Until the cache is full every distinct row is missed once; from then on a
        draw misses if its row was not drawn within the window.

        Leaves out: sets, sectors, and that the window is not the same for all rows.
        Source: Che, Tung and Wang, IEEE JSAC 20(7), 2002.
        """
        window = min(self.window_draws(capacity_rows), draws)
        later = (draws - window) * self.new_row_chance(window)
        return self.distinct_rows(window) + later

    def rows_drawn_more_than(self, times: int, *, draws: float) -> float:
        """Expected rows that *draws* draws hit more than *times* times (Poisson)."""
        from scipy.special import gammainc

        return float(self.row_counts @ gammainc(times + 1, draws * self.probabilities))

    def draws_of_rows_drawn_more_than(self, times: int, *, draws: float) -> float:
        """Expected draws that go to those rows."""
        from scipy.special import gammainc

        means = draws * self.probabilities
        # Sum of x Pois(x; m) over x > k is m P(X >= k), and P(X >= 0) is 1.
        reached = gammainc(times, means) if times > 0 else np.ones_like(means)
        return float(self.row_counts @ (means * reached))

    def _log_missed(self) -> Floats:
        result: Floats = np.log1p(-np.minimum(self.probabilities, _ALMOST_SURE))
        return result


def has_hot_row(where: RowRange) -> bool:
    """Whether one of the rows that are dealt one by one lies in *where*."""
    places = _hot_rows_in_order(where.whole_rows, where.hottest_row)
    return bisect_left(places, where.first_row) < bisect_left(places, where.first_row + where.rows)


@lru_cache(maxsize=65536)
def _hot_rows_in_order(whole_rows: int, hottest_row: int) -> tuple[int, ...]:
    return tuple(sorted(_hot_rows(whole_rows, hottest_row)))


@lru_cache(maxsize=65536)
def _hot_rows(whole_rows: int, hottest_row: int) -> tuple[int, ...]:
    """Where the most popular rows lie, the hottest first."""
    places = _spread_out(min(HOT_ROWS, whole_rows)) * whole_rows // HOT_ROWS
    if whole_rows < HOT_ROWS:
        places = _spread_out(whole_rows).argsort(kind="stable").argsort(kind="stable")
    found: list[int] = ((places + hottest_row) % whole_rows).tolist()
    return tuple(found)


def _spread_out(count: int) -> NDArray[np.int64]:
    """Numbers 0 to HOT_ROWS - 1 in an order that is spread out from the start: bits reversed."""
    bits = HOT_ROWS.bit_length() - 1
    return np.array([int(f"{k:0{bits}b}"[::-1], 2) for k in range(count)], dtype=np.int64)


def build_popularity(row_counts: Floats, weights: Floats) -> Popularity:
    """Classes of *row_counts* rows, each row drawn in proportion to its *weights*."""
    kept = (row_counts > 0) & (weights > 0)
    counts, chosen = row_counts[kept].astype(np.float64), weights[kept].astype(np.float64)
    return Popularity(counts, np.minimum(chosen / float(counts @ chosen), _ALMOST_SURE))
