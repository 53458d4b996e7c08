"""Popularity: how often the rows of a table are looked up, as classes of equal rows.

Draws are independent. From that follow the distinct rows of a batch and what
an LRU cache hits (Che's approximation): a row is in the cache if it was
drawn within the last T draws, where T draws touch as many rows as the cache holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

_NO_ROWS: Floats = np.zeros(0)
_ALMOST_SURE = 1.0 - 1e-12
_STEPS = 200
_EXACT = 1e-14
_ALMOST_NEVER, _LOG_NOTHING = 1e-300, -42.0
HOT_ROWS = 64
"""Rows of a table that row-wise pieces get one by one; the others are spread evenly."""
_SPREAD_OUT = np.array([int(f"{place:06b}"[::-1], 2) for place in range(HOT_ROWS)], dtype=np.int64)
"""Numbers 0 to HOT_ROWS - 1 in an order that is spread out from the start: bits reversed."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRange:
    """*rows* rows from *first_row* on, of *whole_rows* of which *hottest_row* is the hottest.

    Several pieces of a table are one range whose *first_row* and *rows* are columns.
    """

    first_row: int | Int64s
    rows: int | Int64s
    whole_rows: int
    hottest_row: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Popularity:
    """Classes of rows: *row_counts* rows that a draw hits with *probabilities* each.

    Counts are expectations and need not be whole. Those of several pieces of a table are pieces x
    classes, and all results are one number per piece. A piece has some of the rows and
    sees all draws of its table, most of which hit none of its rows: so results of pieces
    add up to those of the table. Of the last classes, which are not in *row_counts*, a
    piece has *rest_share* of *rest_counts* rows.
    """

    row_counts: Floats
    probabilities: Floats
    rest_counts: Floats = field(default_factory=lambda: _NO_ROWS)
    rest_share: Floats = field(default_factory=lambda: _NO_ROWS)

    @property
    def rows(self) -> Floats:
        """Rows that are ever looked up."""
        return self._sum(np.ones_like(self.probabilities))

    @property
    def share(self) -> Floats:
        """The share of draws that hit one of the rows."""
        return self._sum(self.probabilities)

    @property
    def hottest_share(self) -> Floats:
        """The share of draws that go to the most popular row."""
        own = self.row_counts.shape[-1]
        hot = np.minimum(self.row_counts, 1.0) * self.probabilities[:own]
        rest = np.minimum(np.multiply.outer(self.rest_share, self.rest_counts), 1.0)
        cold = (rest * self.probabilities[own:]).max(axis=-1, initial=0.0)
        return np.maximum(hot.max(axis=-1, initial=0.0), cold if cold.size else 0.0)

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

    def piece(self, where: RowRange) -> Popularity:
        """The rows of a row-wise piece, or of each of several.

        The most popular rows are spread over the table one by one, so that any
        number of equal pieces gets them in turn; all others are spread evenly.
        """
        first_row, rows = np.asarray(where.first_row)[..., None], np.asarray(where.rows)[..., None]
        share = rows / where.whole_rows
        if len(self.probabilities) <= 1:
            return Popularity(self.row_counts * share, self.probabilities)
        places = hot_rows(where.whole_rows, where.hottest_row)
        dealt = np.zeros((*first_row.shape[:-1], len(places) + 1))
        np.cumsum((places >= first_row) & (places < first_row + rows), axis=-1, out=dealt[..., 1:])
        order = np.argsort(-self.probabilities, kind="stable")
        after = np.cumsum(self.row_counts[order])
        before = np.concatenate([[0.0], after[:-1]])
        cold = np.maximum(after - np.maximum(before, len(places)), 0.0)
        # Places of a class are those from its first to its last row; fractions in proportion.
        hot = int(np.searchsorted(before, len(places)))
        edges = np.minimum(np.append(before[:hot], after[hot - 1]), len(places))
        low = np.minimum(edges.astype(np.int64), len(places) - 1)
        of_edges = dealt[..., low] + (edges - low) * (dealt[..., low + 1] - dealt[..., low])
        counts = np.diff(of_edges, axis=-1) + cold[:hot] * share
        return Popularity(counts, self.probabilities[order], cold[hot:], share[..., 0])

    def distinct_rows(self, draws: float | Floats) -> Floats:
        """Expected number of different rows in *draws* draws."""
        return self._sum(self._hit(draws))

    def distinct_deviation(self, draws: float) -> float:
        """Standard deviation of the different rows in *draws* draws, over their mean.

        Rows are hit independently of each other, as when the number of draws is not fixed.
        """
        hit = self._hit(draws)
        mean = float(self._sum(hit))
        return math.sqrt(self._sum(hit * (1 - hit))) / mean if mean > 0 else 0.0

    def new_row_chance(self, draws: float | Floats) -> Floats:
        """The chance that a draw goes to a row that none of the last *draws* draws went to."""
        return self._sum(self.probabilities * (1 - self._hit(draws)))

    def window_draws(self, capacity_rows: float | Floats) -> Floats:
        """How many draws touch *capacity_rows* rows; infinite if all rows together are fewer."""
        capacity, rows = np.broadcast_arrays(np.asarray(capacity_rows, dtype=float), self.rows)
        is_open = (capacity > 0) & (capacity < rows * (1 - 1e-9))
        window = np.where(capacity > 0, np.inf, 0.0)
        if is_open.any():
            window[is_open] = self._take(is_open)._draws_to_touch(capacity[is_open])
        return window[()]

    def _draws_to_touch(self, capacity: Floats) -> Floats:
        log_missed = self._log_missed()
        if len(log_missed) == 1:
            return np.log1p(-capacity / self.rows) / log_missed
        # Distinct rows grow ever more slowly, so a tangent is above them everywhere and steps
        # along tangents come closer from below.
        draws = np.zeros_like(capacity)
        left = np.arange(len(capacity))
        for _ in range(_STEPS):
            part = self._take(left)
            hit = part._hit(draws[left])
            step = (capacity[left] - part._sum(hit)) / part._sum((hit - 1) * log_missed)
            draws[left] += step
            left = left[step > _EXACT * draws[left]]
            if not len(left):
                break
        return draws

    def lru_misses(self, draws: float | Floats, *, capacity_rows: float | Floats) -> Floats:
        """Expected misses of *draws* draws in an LRU cache of *capacity_rows*, empty at first.

        Until the cache is full every distinct row is missed once; from then on a
        draw misses if its row was not drawn within the window.

        Leaves out: sets, sectors, and that the window is not the same for all rows.
        Source: Che, Tung and Wang, IEEE JSAC 20(7), 2002.
        """
        window, misses, drawn = np.broadcast_arrays(
            self.window_draws(capacity_rows), self.distinct_rows(draws), draws
        )
        is_full = window < drawn
        if not is_full.any():
            return misses[()]
        part, full = self._take(is_full), window[is_full]
        later = (drawn[is_full] - full) * part.new_row_chance(full)
        misses = misses.copy()
        misses[is_full] = part.distinct_rows(full) + later
        return misses[()]

    def rows_drawn_more_than(self, times: int, *, draws: float) -> Floats:
        """Expected rows that *draws* draws hit more than *times* times (Poisson)."""
        return self._sum(_chance_of_at_least(times + 1, draws * self.probabilities))

    def draws_of_rows_drawn_more_than(self, times: int, *, draws: float) -> Floats:
        """Expected draws that go to those rows."""
        means = draws * self.probabilities
        # Sum of x Pois(x; m) over x > k is m P(X >= k).
        return self._sum(means * _chance_of_at_least(times, means))

    def _take(self, chosen: NDArray[np.bool_] | Int64s) -> Popularity:
        """The *chosen* pieces; what belongs to no single piece is the same for all."""
        if self.row_counts.ndim == 1:
            return self
        share = self.rest_share[chosen] if len(self.rest_counts) else self.rest_share
        return replace(self, row_counts=self.row_counts[chosen], rest_share=share)

    def _sum(self, of_class: Floats) -> Floats:
        """The sum over all rows; the same for a piece alone or among others."""
        one_by_one = self.row_counts.shape[-1]
        total: Floats = (self.row_counts * of_class[..., :one_by_one]).sum(axis=-1)
        if len(self.rest_counts):
            total = total + self.rest_share * (self.rest_counts * of_class[..., one_by_one:]).sum(
                axis=-1
            )
        return total

    def _hit(self, draws: float | Floats) -> Floats:
        """The chance that *draws* draws hit a row: each misses it with probability 1 - p."""
        result: Floats = -np.expm1(np.multiply.outer(draws, self._log_missed()))
        return result

    def _log_missed(self) -> Floats:
        result: Floats = np.log1p(-np.minimum(self.probabilities, _ALMOST_SURE))
        return result


def _chance_of_at_least(times: int, means: Floats) -> Floats:
    """The chance that a Poisson number of each of *means* is *times* or more."""
    from scipy.special import gammainc

    if times == 0:
        return np.ones_like(means)
    # Chernoff's bound of the lesser of both chances: where it is nothing, the other is 1.
    ratio = means / times
    is_near = times * (1 - ratio + np.log(np.maximum(ratio, _ALMOST_NEVER))) > _LOG_NOTHING
    chance: Floats = (means > times).astype(np.float64)
    chance[is_near] = gammainc(times, means[is_near])
    return chance


def has_hot_row(where: RowRange) -> NDArray[np.bool_]:
    """Whether one of the rows that are spread one by one is in *where*."""
    places = np.sort(hot_rows(where.whole_rows, where.hottest_row))
    first, after = np.asarray(where.first_row), np.add(where.first_row, where.rows)
    return np.asarray(np.searchsorted(places, first) < np.searchsorted(places, after))


@lru_cache(maxsize=65536)
def hot_rows(whole_rows: int, hottest_row: int) -> Int64s:
    """The places of the most popular rows, the hottest first."""
    places = _SPREAD_OUT * whole_rows // HOT_ROWS
    if whole_rows < HOT_ROWS:
        places = _SPREAD_OUT[:whole_rows].argsort(kind="stable").argsort(kind="stable")
    found: Int64s = (places + hottest_row) % whole_rows
    found.setflags(write=False)
    return found


def build_popularity(row_counts: Floats, weights: Floats) -> Popularity:
    """Classes of *row_counts* rows, each row drawn in proportion to its *weights*."""
    kept = (row_counts > 0) & (weights > 0)
    counts, chosen = row_counts[kept].astype(np.float64), weights[kept].astype(np.float64)
    return Popularity(counts, np.minimum(chosen / float(counts @ chosen), _ALMOST_SURE))
