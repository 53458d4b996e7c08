"""Terms of an embedding lookup: what one table adds to the fused kernel of its rank.

Terms are whole numbers, so their sum over the tables of a rank does not depend on the order: a
plan can be priced by adding up cached terms.

Tables run one after another. Rows that are drawn again while they are in the L2 come from there;
when a table has fewer samples than the GPU has warps, several tables run at once and share the L2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from embeddings.distribution import UNIFORM, RowsByPopularity, popularity_of
from embeddings.offloading import missed_rows
from embeddings.popularity import Floats, Popularity
from embeddings.table import MOST_TABLES, OPTIMIZERS, EmbeddingTable, TableMemory
from perfmodel.base.dtypes import DType
from topologies import Device

Int64s = NDArray[np.int64]

SECTOR_BYTES = 32
BURST_BYTES = 64
"""Least that a memory access moves."""
GATHER_BYTES = 150
"""Width below which a gathered row costs its handling instead of its bytes.

From the paper's factors for narrow rows: 1.55 at 128 bytes, 1.1 at 256.
"""
WARP_BYTES = 512
"""What a warp fetches at once: 16 bytes per thread."""
INDEX_BYTES = 8
OFFSET_BYTES = 8
WARPS_PER_SM = 64
CACHE_SHARE = 0.9
LONG_ROW_UPDATES = 32
"""Updates of a row above which the sorted kernel of 2022 gives it its own block."""
SEGMENT_UPDATES = 1024
"""Updates per block; a row with more of them is summed by several blocks."""
QUANTISED_ROW_BYTES = 8
"""Scale and bias of an int8 row."""


class Term(IntEnum):
    """The columns. Those from TAIL_ROWS on are the largest over tables, the others sums."""

    DRAWS = 0
    ROWS = 1
    READ_BYTES = 2
    OUTPUT_BYTES = 3
    CACHE_BYTES = 4
    HOST_BYTES = 5
    GRADIENT_BYTES = 6
    UPDATE_BYTES = 7
    ADDED_NUMBERS = 8
    LONG_ROWS = 9
    LONG_CACHE_BYTES = 10
    SHORT_CACHE_BYTES = 11
    WEIGHTED_DRAWS = 12
    SUMMED_BYTES = 13
    HOT_NUMBERS = 14
    FETCHED_PIECES = 15
    TAIL_ROWS = 16


FIRST_LARGEST = Term.TAIL_ROWS
MILLI = 1000
"""Rows are counted in thousandths, because expected values are not whole."""


def most_tables_at_once(device: Device, batch_size: int) -> int:
    """How many tables run at the same time when a table has *batch_size* bags."""
    return max(1, math.ceil(WARPS_PER_SM * device.sm_count / max(batch_size, 1)))


@dataclass(frozen=True, slots=True)
class TermsSetting:
    """What terms depend on besides the table: it shares *l2_bytes* with *at_once* - 1 others.

    Samples look up *lookup_ratio* times as many rows as its pooling factor.
    """

    batch_size: int
    optimizer: str
    l2_bytes: int
    at_once: int = 1
    lookup_ratio: float = 1.0

    @property
    def share_bytes(self) -> float:
        """The table's part of the L2."""
        return CACHE_SHARE * self.l2_bytes / self.at_once


def tables_terms(tables: Sequence[EmbeddingTable], setting: TermsSetting) -> Int64s:
    """Tables x terms; pieces of the same table are computed together, and each once."""
    members: dict[tuple[int, bool], list[int]] = {}
    for number, table in enumerate(tables):
        members.setdefault((id(table.whole), table.piece_of is None), []).append(number)
    terms = np.empty((len(tables), len(Term)), dtype=np.int64)
    for numbers in members.values():
        pieces = [tables[number] for number in numbers]
        terms[numbers] = _known_terms(pieces[0].whole, setting).of(pieces)
    return terms


class _KnownTerms:
    """A cache of the terms of *whole* and its pieces."""

    def __init__(self, whole: EmbeddingTable, setting: TermsSetting) -> None:
        self._whole = whole
        self._setting = setting
        self._number_of: dict[tuple[int, int, int], int] = {}
        self._terms: Int64s = np.empty((0, len(Term)), dtype=np.int64)

    def of(self, pieces: Sequence[EmbeddingTable]) -> Int64s:
        """Pieces x terms, of the whole or of row-wise pieces."""
        keys = [(piece.first_row, piece.rows, piece.width) for piece in pieces]
        number_of = self._number_of
        fresh = {
            key: piece for key, piece in zip(keys, pieces, strict=True) if key not in number_of
        }
        if fresh:
            number_of.update(zip(fresh, count(len(number_of)), strict=False))
            terms = find_terms(self._whole, list(fresh.values()), self._setting)
            self._terms = np.concatenate([self._terms, terms])
        return self._terms[[number_of[key] for key in keys]]


_known_terms = lru_cache(maxsize=MOST_TABLES)(_KnownTerms)


def find_terms(
    whole: EmbeddingTable, pieces: Sequence[EmbeddingTable], setting: TermsSetting
) -> Int64s:
    """The terms of *whole* itself or of row-wise *pieces* of it."""
    batch_size = setting.batch_size
    rows, width, first_row = (
        np.array(column)
        for column in zip(*((t.rows, t.width, t.first_row) for t in pieces), strict=True)
    )
    popularity = whole.popularity
    if pieces[0].piece_of is not None:
        popularity = popularity.piece(whole.range_of(first_row, rows))
    asked = batch_size * setting.lookup_ratio
    whole_draws = asked * whole.pooling_factor
    draws = asked * np.array([piece.pooling_factor for piece in pieces])
    scales = QUANTISED_ROW_BYTES if whole.dtype is DType.INT8 else 0
    row = -(-(width * whole.dtype.size_bytes + scales) // SECTOR_BYTES) * SECTOR_BYTES
    moved = np.maximum(row, BURST_BYTES)
    handled = np.hypot(row, GATHER_BYTES)
    pooled_row = width * DType.FP32.size_bytes
    bags = np.full_like(draws, batch_size * whole.features) if whole.is_pooled else draws
    misses = popularity.lru_misses(whole_draws, capacity_rows=setting.share_bytes / row)
    distinct = popularity.distinct_rows(whole_draws)
    long_rows = popularity.rows_drawn_more_than(LONG_ROW_UPDATES, draws=whole_draws)
    long_draws = popularity.draws_of_rows_drawn_more_than(LONG_ROW_UPDATES, draws=whole_draws)
    index_bytes = draws * (INDEX_BYTES + (4 if whole.is_weighted else 0))
    state = 2 * OPTIMIZERS[setting.optimizer] * pooled_row
    if setting.optimizer == "rowwise_adagrad":
        state = np.full_like(width, 2 * SECTOR_BYTES)
    gradient_rows = draws
    if whole.is_pooled and batch_size >= 1:
        # The gradient of a bag is read for each of its rows, often from the L2.
        capacity = setting.share_bytes / pooled_row
        in_batch = popularity_of(UNIFORM, batch_size)
        gradient_rows = in_batch.lru_misses(draws, capacity_rows=capacity)
    deviation = np.array([piece.pooling_deviation for piece in pieces])
    # Copies of frequent rows are few: a block adds up its share before it adds to them.
    is_copied = isinstance(whole.distribution, RowsByPopularity) and whole.distribution.is_frequent
    values = {
        Term.DRAWS: draws,
        Term.ROWS: rows,
        Term.READ_BYTES: misses * moved + index_bytes + np.minimum(bags, batch_size) * OFFSET_BYTES,
        Term.OUTPUT_BYTES: bags * pooled_row,
        Term.CACHE_BYTES: draws * handled + index_bytes + bags * pooled_row,
        Term.HOST_BYTES: _host_rows(whole, popularity, rows, whole_draws) * moved,
        Term.GRADIENT_BYTES: gradient_rows * pooled_row,
        Term.UPDATE_BYTES: distinct * (2 * moved + state),
        Term.ADDED_NUMBERS: draws * width,
        Term.LONG_ROWS: long_rows * MILLI,
        Term.LONG_CACHE_BYTES: long_draws * handled,
        Term.SHORT_CACHE_BYTES: (draws - long_draws) * handled + 2 * distinct * handled,
        Term.WEIGHTED_DRAWS: draws if whole.is_weighted else 0.0,
        Term.SUMMED_BYTES: distinct * pooled_row,
        Term.HOT_NUMBERS: 0.0 if is_copied else whole_draws * popularity.hottest_share * width,
        Term.FETCHED_PIECES: misses * -(-row // WARP_BYTES),
        Term.TAIL_ROWS: deviation * _longest_bag(whole, batch_size) * MILLI,
    }
    terms = np.zeros((len(pieces), len(Term)))
    for term, column in values.items():
        terms[:, term] = column
    with np.errstate(invalid="raise"):
        return np.rint(np.maximum(terms, 0.0)).astype(np.int64)


def add_terms(of_tables: Int64s) -> Int64s:
    """The terms of a rank from tables x terms."""
    return np.concatenate(
        [
            of_tables[:, :FIRST_LARGEST].sum(axis=0),
            of_tables[:, FIRST_LARGEST:].max(axis=0, initial=0),
        ]
    )


def _host_rows(
    whole: EmbeddingTable, popularity: Popularity, rows: Int64s, draws: float
) -> float | Floats:
    """Rows of a batch that the device cache of a host table does not hold."""
    if whole.memory is not TableMemory.HOST_CACHED:
        return 0.0
    return missed_rows(popularity, whole.cached_ratio * rows.astype(np.float64), draws)


def _longest_bag(whole: EmbeddingTable, batch_size: int) -> float:
    """By how many standard deviations the longest of *batch_size* bags exceeds the mean.

    Lengths are never negative, so they follow a gamma distribution: near to normal where they
    differ little, exponential where they differ as much as they are long.
    """
    mean, deviation = whole.pooling_factor, whole.pooling_deviation
    if deviation == 0 or mean == 0 or batch_size < 2:
        return 0.0
    # Only tables that state a deviation need it.
    from scipy.special import gammainccinv

    ratio = mean / deviation
    return max(float(gammainccinv(ratio**2, 1 / batch_size)) / ratio - ratio, 0.0)
