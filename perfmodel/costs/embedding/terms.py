"""Terms of an embedding lookup: what one table adds to the fused kernel of its rank.

Terms are whole numbers, so that their sum over the tables of a rank does not
depend on the order: a plan can be priced by adding up terms made before.

Tables run one after another. Rows that are drawn again while they are in the
L2 come from there; when a table has fewer samples than the GPU has warps,
several tables run at once and share the L2.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from embeddings.distribution import UNIFORM, popularity_of
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.dtypes import DType
from topologies import Device

Int64s = NDArray[np.int64]

SECTOR_BYTES = 32
BURST_BYTES = 64
"""Least that a memory access moves."""
GATHER_BYTES = 150
"""Width below which a gathered row costs its handling rather than its bytes.

From the paper's factors for narrow rows: 1.55 at 128 bytes, 1.1 at 256.
"""
INDEX_BYTES = 8
OFFSET_BYTES = 8
WARPS_PER_SM = 64
CACHE_SHARE = 0.9
LONG_ROW_UPDATES = 32
"""Updates of a row above which the sorted kernel of 2022 gives it a block of its own."""
SEGMENT_UPDATES = 1024
"""Updates that one block takes; a row with more of them is summed by several blocks."""
QUANTISED_ROW_BYTES = 8
"""Scale and bias of an int8 row."""
_STATE_TENSORS = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2}


class Term(IntEnum):
    """The columns. Those from TAIL on are the largest over tables, the others sums."""

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
    TAIL_ROWS = 14


FIRST_LARGEST = Term.TAIL_ROWS
MILLI = 1000
"""Rows are counted in thousandths, because expectations are not whole."""


def most_tables_at_once(device: Device, batch_size: int) -> int:
    """How many tables run at the same time when a table has *batch_size* bags."""
    return max(1, math.ceil(WARPS_PER_SM * device.sm_count / max(batch_size, 1)))


def row_bytes(table: EmbeddingTable) -> int:
    """Bytes of a row in whole sectors."""
    stored = table.width * table.dtype.size_bytes
    if table.dtype is DType.INT8:
        stored += QUANTISED_ROW_BYTES
    return -(-stored // SECTOR_BYTES) * SECTOR_BYTES


@lru_cache(maxsize=200_000)
def table_terms(
    table: EmbeddingTable, *, batch_size: int, optimizer: str, l2_bytes: int, at_once: int
) -> Int64s:
    """The terms of *table* when it shares *l2_bytes* with *at_once* - 1 others."""
    draws = batch_size * table.pooling_factor
    row = row_bytes(table)
    moved = max(row, BURST_BYTES)
    handled = math.hypot(row, GATHER_BYTES)
    pooled_row = table.width * DType.FP32.size_bytes
    bags = batch_size if table.is_pooled else draws
    popularity = table.popularity
    share_bytes = CACHE_SHARE * l2_bytes / at_once
    misses = popularity.lru_misses(draws, capacity_rows=share_bytes / row)
    distinct = popularity.distinct_rows(draws)
    long_rows = popularity.rows_drawn_more_than(LONG_ROW_UPDATES, draws=draws)
    long_draws = popularity.draws_of_rows_drawn_more_than(LONG_ROW_UPDATES, draws=draws)
    index_bytes = draws * (INDEX_BYTES + (4 if table.is_weighted else 0))
    state = 2 * _STATE_TENSORS[optimizer] * pooled_row
    if optimizer == "rowwise_adagrad":
        state = 2 * SECTOR_BYTES
    values = {
        Term.DRAWS: draws,
        Term.ROWS: table.rows,
        Term.READ_BYTES: misses * moved + index_bytes + min(bags, batch_size) * OFFSET_BYTES,
        Term.OUTPUT_BYTES: bags * pooled_row,
        Term.CACHE_BYTES: draws * handled + index_bytes + bags * pooled_row,
        Term.HOST_BYTES: _host_rows(table, draws) * moved,
        Term.GRADIENT_BYTES: _gradient_rows(table, draws, bags, share_bytes) * pooled_row,
        Term.UPDATE_BYTES: distinct * (2 * moved + state),
        Term.ADDED_NUMBERS: draws * table.width,
        Term.LONG_ROWS: long_rows * MILLI,
        Term.LONG_CACHE_BYTES: long_draws * handled,
        Term.SHORT_CACHE_BYTES: (draws - long_draws) * handled + 2 * distinct * handled,
        Term.WEIGHTED_DRAWS: draws if table.is_weighted else 0.0,
        Term.SUMMED_BYTES: distinct * pooled_row,
        Term.TAIL_ROWS: _tail_rows(table, batch_size) * MILLI,
    }
    terms = np.array([round(max(values[term], 0.0)) for term in Term], dtype=np.int64)
    terms.setflags(write=False)
    return terms


def add_terms(of_tables: Int64s) -> Int64s:
    """The terms of a rank from tables x terms."""
    return np.concatenate(
        [
            of_tables[:, :FIRST_LARGEST].sum(axis=0),
            of_tables[:, FIRST_LARGEST:].max(axis=0, initial=0),
        ]
    )


def _gradient_rows(table: EmbeddingTable, draws: float, bags: float, share_bytes: float) -> float:
    """Gradients read from memory; those of a bag are read for each of its rows."""
    if not table.is_pooled or bags < 1:
        return draws
    capacity = share_bytes / (table.width * DType.FP32.size_bytes)
    return popularity_of(UNIFORM, max(1, round(bags))).lru_misses(draws, capacity_rows=capacity)


def _host_rows(table: EmbeddingTable, draws: float) -> float:
    """Rows of a batch that the device cache of a host table does not hold."""
    if table.memory is not TableMemory.HOST_CACHED:
        return 0.0
    popularity = table.popularity
    window = popularity.window_draws(table.cached_ratio * table.rows)
    if math.isinf(window):
        return 0.0
    return popularity.distinct_rows(window + draws) - popularity.distinct_rows(window)


def _tail_rows(table: EmbeddingTable, batch_size: int) -> float:
    """How far the longest of *batch_size* bags exceeds the mean.

    Lengths are never negative, so they follow a gamma distribution: near to normal where they differ
    little, exponential where they differ as much as they are long.
    """
    if table.pooling_deviation == 0 or table.pooling_factor == 0 or batch_size < 2:
        return 0.0
    # Only tables that state a deviation need it.
    from scipy.special import gammainccinv

    mean, deviation = table.pooling_factor, table.pooling_deviation
    shape = (mean / deviation) ** 2
    longest = float(gammainccinv(shape, 1 / batch_size)) * deviation**2 / mean
    return max(longest - mean, 0.0)
