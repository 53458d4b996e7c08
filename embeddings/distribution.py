"""Index distributions: which rows of a table a batch looks up.

A distribution is a small frozen value; `popularity_of` turns it into classes
of rows for a table of a given size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from embeddings.popularity import Floats, Popularity, build_popularity
from perfmodel.base.errors import PlanError

_EXACT_RANKS = 512
_BIN_RATIO = 1.05
_EXACT_TIMES = 64


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every row is as likely as any other."""

    def popularity(self, rows: int) -> Popularity:
        """One class of all *rows*."""
        return build_popularity(np.array([float(rows)]), np.ones(1))

    def __str__(self) -> str:
        return "uniform"


@dataclass(frozen=True, slots=True)
class Zipf:
    """The i-th most popular row is drawn in proportion to i ** -exponent.

    Only *occurring* rows are ever drawn, if that is given. With *bag* above 1 identifiers are
    drawn so, and each maps to a bag of that many rows which always occur together, as in
    multi-hot data made of one-hot.
    """

    exponent: float
    bag: int = 1
    occurring: int | None = None

    def __post_init__(self) -> None:
        if self.bag < 1 or (self.occurring is not None and self.occurring < 1):
            raise PlanError(
                f"zipf: a bag must have at least 1 row and 1 row must occur, got {self.bag} and "
                f"{self.occurring}."
            )
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise PlanError(
                f"zipf: the exponent must be a number of at least 0, got {self.exponent}. "
                "0 is uniform; click data is around 1."
            )

    def popularity(self, rows: int) -> Popularity:
        """The most popular rows one by one, the others in bins 5 % wide."""
        drawn = min(rows, self.occurring or rows)
        exact = min(drawn, _EXACT_RANKS)
        first = np.arange(1, exact + 1, dtype=np.float64)
        counts, weights = [np.ones(exact)], [first**-self.exponent]
        if drawn > exact:
            steps = math.ceil(math.log(drawn / exact) / math.log(_BIN_RATIO))
            edges = np.unique(np.rint(np.geomspace(exact, drawn, steps + 1)))
            counts.append(np.diff(edges))
            weights.append(_power_sums(edges, self.exponent) / np.diff(edges))
        return self._in_bags(np.concatenate(counts), np.concatenate(weights), rows)

    def _in_bags(self, counts: Floats, weights: Floats, rows: int) -> Popularity:
        """Popular identifiers have their own rows; the rows of all others overlap."""
        if self.bag == 1:
            return build_popularity(counts, weights)
        taken = np.cumsum(counts) * self.bag
        is_own = taken <= rows / 2
        if is_own.all():
            return build_popularity(counts * self.bag, weights)
        rest = rows - float(taken[is_own][-1]) if is_own.any() else float(rows)
        spread = float(counts[~is_own] @ weights[~is_own]) * self.bag / rest
        return build_popularity(
            np.append(counts[is_own] * self.bag, rest), np.append(weights[is_own], spread)
        )

    def __str__(self) -> str:
        bags = f" in bags of {self.bag}" if self.bag > 1 else ""
        return f"zipf({self.exponent:g}){bags}"


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """How often rows occurred in *draws* lookups: the share of lookups in each reuse bin.

    *mean_reuse* is the mean of a bin's rows; a bin may be empty. A table with
    fewer rows than occurred keeps the shape.
    """

    lookup_shares: tuple[float, ...]
    mean_reuse: tuple[float, ...]
    draws: float

    def __post_init__(self) -> None:
        bins = len(self.lookup_shares)
        if bins == 0 or bins != len(self.mean_reuse):
            raise PlanError(
                f"reuse histogram: needs one mean reuse per bin, got {len(self.mean_reuse)} for "
                f"{bins} bins."
            )
        values = (*self.lookup_shares, *self.mean_reuse, self.draws)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise PlanError("reuse histogram: shares, reuse and draws must be finite and not < 0.")
        if not (sum(self.lookup_shares) > 0 and self.draws > 0 and min(self.mean_reuse) > 0):
            raise PlanError(
                "reuse histogram: draws, every mean reuse and the sum of shares must be above 0."
            )

    @property
    def distinct_rows(self) -> float:
        """Rows that occurred."""
        return sum(self._counts())

    def scaled(self, draws: float) -> ReuseHistogram:
        """The same reuse over another number of lookups, so of another number of rows."""
        return ReuseHistogram(self.lookup_shares, self.mean_reuse, draws)

    def popularity(self, rows: int) -> Popularity:
        """One class per bin."""
        counts = np.array(self._counts())
        shares = np.array(self.lookup_shares)
        if counts.sum() > rows:
            # The same shares over fewer rows, but no class with less than one row of it.
            counts = np.where(counts > 0, np.maximum(counts * rows / counts.sum(), 1e-9), 0.0)
        safe = np.where(counts > 0, counts, 1.0)
        return build_popularity(counts, shares / safe)

    def _counts(self) -> tuple[float, ...]:
        total = sum(self.lookup_shares)
        return tuple(
            self.draws * share / total / reuse
            for share, reuse in zip(self.lookup_shares, self.mean_reuse, strict=True)
        )

    def __str__(self) -> str:
        return f"reuse histogram (mean {self.draws / self.distinct_rows:.3g})"


@dataclass(frozen=True, slots=True)
class ObservedRows:
    """Real indices, counted: *rows_seen* rows occurred *times* each."""

    times: tuple[float, ...]
    rows_seen: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.rows_seen):
            raise PlanError("observed rows: need at least one index, and one count per class.")

    def popularity(self, rows: int) -> Popularity:
        """Rows that never occurred are left out."""
        del rows
        return build_popularity(np.array(self.rows_seen, dtype=float), np.array(self.times))

    def __str__(self) -> str:
        return f"{sum(self.rows_seen)} observed rows"


@dataclass(frozen=True, slots=True)
class RowsByPopularity:
    """The *count* most popular rows of a table of *whole_rows* rows, or all but those."""

    of: Uniform | Zipf | ReuseHistogram | ObservedRows
    whole_rows: int
    count: int
    is_frequent: bool

    @property
    def lookup_share(self) -> float:
        """The share of the table's lookups that go to these rows."""
        counts, probabilities = self._classes()
        return float(counts @ probabilities)

    def popularity(self, rows: int) -> Popularity:
        """The classes of these rows."""
        del rows
        return build_popularity(*self._classes())

    def _classes(self) -> tuple[Floats, Floats]:
        whole = popularity_of(self.of, self.whole_rows)
        return whole.split(self.count)[0 if self.is_frequent else 1], whole.probabilities

    def __str__(self) -> str:
        return f"{'most' if self.is_frequent else 'less'} popular rows of {self.of}"


UNIFORM = Uniform()
IndexDistribution = Uniform | Zipf | ReuseHistogram | ObservedRows | RowsByPopularity


@lru_cache(maxsize=65536)
def popularity_of(distribution: IndexDistribution, rows: int) -> Popularity:
    """The classes of rows of a table of *rows* rows."""
    return distribution.popularity(rows)


def observe(indices: np.ndarray) -> ObservedRows:
    """Count real *indices*; classes of rows seen often are merged 5 % wide."""
    _, counts = np.unique(indices, return_counts=True)
    times, rows = np.unique(counts, return_counts=True)
    far = np.floor(np.log(np.maximum(times / _EXACT_TIMES, 1)) / math.log(_BIN_RATIO))
    key = np.where(times <= _EXACT_TIMES, times, _EXACT_TIMES + 1 + far).astype(np.int64)
    _, place = np.unique(key, return_inverse=True)
    merged = np.bincount(place, weights=rows)
    lookups = np.bincount(place, weights=rows * times)
    return ObservedRows(
        tuple((lookups / merged).tolist()), tuple(int(count) for count in merged.tolist())
    )


def _power_sums(edges: Floats, exponent: float) -> Floats:
    """Sums of i ** -exponent over edges[j] < i <= edges[j + 1], by the midpoint integral."""
    shifted = edges + 0.5
    is_one = abs(exponent - 1) < 1e-9
    integral = np.log(shifted) if is_one else shifted ** (1 - exponent) / (1 - exponent)
    result: Floats = np.diff(integral)
    return result
