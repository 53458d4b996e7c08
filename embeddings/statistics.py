"""Statistics of index data: pooling and reuse, over the whole set and within batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddings.index_data import IndexData

BIN_COUNT = 17
"""Reuse up to 1, 2, 4 ... 32,768, and above."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """What the indices of one table look like.

    *batch_distinct_ratio* is distinct rows over lookups within a batch, the
    mean over batches; *set_distinct_ratio* the same over the whole set.
    """

    name: str
    lookups: int
    pooling_mean: float
    pooling_deviation: float
    pooling_max: int
    distinct_rows: int
    largest_index: int
    hottest_share: float
    set_distinct_ratio: float
    batch_distinct_ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class ReuseShares:
    """Shares of distinct rows and of lookups by reuse bin, of all tables together."""

    of_rows: Floats
    of_lookups: Floats


@dataclass(frozen=True, slots=True, eq=False)
class DataStatistics:
    """A data set: its tables, and reuse over the whole set and within batches."""

    source: str
    sample_count: int
    batch_size: int
    tables: tuple[TableStatistics, ...]
    set_reuse: ReuseShares
    batch_reuse: ReuseShares


def describe_data(data: IndexData, *, batch_size: int, batches: int = 8) -> DataStatistics:
    """Statistics of *data*, with up to *batches* batches spread evenly over it."""
    batch_size = min(batch_size, data.sample_count)
    last = data.sample_count - batch_size
    firsts = np.unique(np.linspace(0, last, min(batches, last + 1)).astype(np.int64)).tolist()
    set_counts, batch_counts, tables = [], [], []
    for place in range(len(data.names)):
        counts = _counts(data.indices_of(place))
        of_batches = [
            _counts(data.indices_of(place, first=first, count=batch_size)) for first in firsts
        ]
        set_counts.append(counts)
        batch_counts += of_batches
        tables.append(_describe_table(data, place, counts, of_batches))
    return DataStatistics(
        source=data.source,
        sample_count=data.sample_count,
        batch_size=batch_size,
        tables=tuple(tables),
        set_reuse=bin_reuse(np.concatenate(set_counts)),
        batch_reuse=bin_reuse(np.concatenate(batch_counts)),
    )


def bin_reuse(counts: NDArray[np.int64]) -> ReuseShares:
    """Shares by power-of-two bin of rows that occurred *counts* times."""
    if len(counts) == 0:
        return ReuseShares(np.zeros(BIN_COUNT), np.zeros(BIN_COUNT))
    places = np.minimum(np.ceil(np.log2(counts)).astype(np.int64), BIN_COUNT - 1)
    rows = np.bincount(places, minlength=BIN_COUNT)
    lookups = np.bincount(places, weights=counts, minlength=BIN_COUNT)
    return ReuseShares(rows / rows.sum(), lookups / lookups.sum())


def _counts(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(indices, return_counts=True)[1].astype(np.int64)


def _describe_table(
    data: IndexData,
    place: int,
    counts: NDArray[np.int64],
    of_batches: list[NDArray[np.int64]],
) -> TableStatistics:
    lengths = data.lengths[place]
    indices = data.indices_of(place)
    lookups = int(counts.sum())
    ratios = [len(batch) / batch.sum() for batch in of_batches if len(batch)]
    return TableStatistics(
        name=data.names[place],
        lookups=lookups,
        pooling_mean=float(lengths.mean()),
        pooling_deviation=float(lengths.std()),
        pooling_max=int(lengths.max()),
        distinct_rows=len(counts),
        largest_index=int(indices.max()) if len(indices) else -1,
        hottest_share=float(counts.max() / lookups) if lookups else 0.0,
        set_distinct_ratio=len(counts) / lookups if lookups else 0.0,
        batch_distinct_ratio=float(np.mean(ratios)) if ratios else 0.0,
    )
