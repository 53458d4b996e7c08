"""IndexData: recorded indices of real batches, table by table, and their statistics.

Indices are stored table after table, and within a table sample after sample, with
with the length of every bag. Data is checked when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddings.distribution import ObservedRows, observe
from embeddings.popularity import Int64s
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import InputError

_LARGEST = 2**53
BIN_COUNT = 17
"""Reuse up to 1, 2, 4 ... 32,768, and above."""


@dataclass(frozen=True, eq=False)
class IndexData:
    """*lengths* is tables x samples; *indices* has as many entries as the lengths add up to."""

    source: str
    names: tuple[str, ...]
    lengths: Int64s
    indices: Int64s

    @cached_property
    def table_start(self) -> Int64s:
        """Where the indices of every table begin, and the end."""
        sums = np.cumsum(self.lengths.sum(axis=1))
        return np.concatenate([[0], sums]).astype(np.int64)

    @property
    def sample_count(self) -> int:
        """Samples, the same for all tables."""
        return int(self.lengths.shape[1])

    def indices_of(self, table: int, *, first: int = 0, count: int | None = None) -> Int64s:
        """Indices of *table* in *count* samples from *first* on."""
        last = self.sample_count if count is None else first + count
        start = int(self.table_start[table]) + int(self.lengths[table, :first].sum())
        size = int(self.lengths[table, first:last].sum())
        return self.indices[start : start + size]

    def observed(self, table: int) -> ObservedRows:
        """The distribution of the indices of *table*."""
        return observe(self.indices_of(table))

    def describe_table(self, table: EmbeddingTable, place: int) -> EmbeddingTable:
        """*table* with the distribution and pooling that were seen at *place*."""
        seen = self.indices_of(place)
        if len(seen) and int(seen.max()) >= table.rows:
            raise InputError(
                f"{self.source}, table {self.names[place]!r}: indices must be below the "
                f"{table.rows} rows of table {table.name!r}, got {int(seen.max())}."
            )
        lengths = self.lengths[place]
        changed = replace(
            table,
            pooling_factor=float(lengths.mean()),
            pooling_deviation=float(lengths.std()),
        )
        return replace(changed, distribution=self.observed(place)) if len(seen) else changed


def build_index_data(
    source: str, *, indices: Any, lengths: Any, names: tuple[str, ...] | None = None
) -> IndexData:
    """Data from arrays; *lengths* is tables x samples. A fault is raised with its place."""
    bags = whole_numbers(np.asarray(lengths), where=f"{source}, lengths")
    flat = whole_numbers(np.asarray(indices), where=f"{source}, indices")
    if bags.ndim != 2 or 0 in bags.shape:
        raise InputError(
            f"{source}, lengths: must be tables x samples with at least one of each, "
            f"got shape {bags.shape}."
        )
    if flat.ndim != 1:
        raise InputError(f"{source}, indices: must be one long row, got shape {flat.shape}.")
    if int(bags.sum()) != len(flat):
        raise InputError(
            f"{source}: ragged: the lengths add up to {int(bags.sum())} and there are "
            f"{len(flat)} indices. Write one length per sample and table."
        )
    names = names or tuple(f"table_{place}" for place in range(len(bags)))
    return IndexData(source, names, bags, flat)


def lengths_from_offsets(
    source: str,
    offsets: Any,
    *,
    index_count: int,
    table_count: int,
    sample_count: int | None = None,
) -> Int64s:
    """Bag lengths from where each bag begins, with or without a last entry for the end.

    A last entry that is the number of indices is the end, unless the bags before it do not
    divide by the tables or are not *sample_count* per table: then an empty bag begins there.
    """
    starts = whole_numbers(np.asarray(offsets).ravel(), where=f"{source}, offsets")
    samples, remainder = divmod(len(starts) - 1, table_count)
    is_complete = samples > 0 and not remainder and samples == (sample_count or samples)
    if not is_complete or starts[-1] != index_count:
        starts = np.concatenate([starts, [index_count]])
    if len(starts) < 2 or (len(starts) - 1) % table_count:
        raise InputError(
            f"{source}, offsets: ragged: {len(starts) - 1} bags are not divisible by "
            f"{table_count} tables."
        )
    wrong = np.flatnonzero(np.diff(starts) < 0)
    if len(wrong):
        place = int(wrong[0])
        raise InputError(
            f"{source}, offsets[{place + 1}]: must not be below offsets[{place}] = "
            f"{starts[place]}, got {starts[place + 1]} (out of range or ragged)."
        )
    if starts[0] != 0:
        raise InputError(f"{source}, offsets[0]: must be 0, got {starts[0]}.")
    return np.diff(starts).reshape(table_count, -1)


def whole_numbers(values: NDArray[Any], *, where: str) -> Int64s:
    """*values* as integers from 0 on; anything else is refused with its place."""
    if values.dtype.kind not in "iuf":
        raise InputError(f"{where}: must be whole numbers, got values of type {values.dtype}.")
    if values.dtype.kind == "f":
        _refuse(values, ~np.isfinite(values), where, "must be finite")
        _refuse(values, values != np.trunc(values), where, "must be a whole number")
    _refuse(values, values < 0, where, "must not be negative")
    _refuse(values, values > _LARGEST, where, "is out of range")
    result: Int64s = values.astype(np.int64)
    return result


def _refuse(values: NDArray[Any], wrong: NDArray[np.bool_], where: str, rule: str) -> None:
    places = np.argwhere(wrong)
    if len(places):
        place = "][".join(str(int(number)) for number in places[0])
        value = values[tuple(places[0])]
        raise InputError(
            f"{where}[{place}]: {rule}, got {value} ({len(places)} such value"
            f"{'s' if len(places) > 1 else ''}). Fix or remove the sample."
        )


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
class DataStatistics:
    """A data set and its tables; *batch_size* is that of ratios within batches."""

    source: str
    sample_count: int
    batch_size: int
    tables: tuple[TableStatistics, ...]


def describe_data(data: IndexData, *, batch_size: int, batches: int = 8) -> DataStatistics:
    """Statistics of *data*, with up to *batches* batches spread evenly over it."""
    batch_size = min(batch_size, data.sample_count)
    last = data.sample_count - batch_size
    firsts = np.unique(np.linspace(0, last, min(batches, last + 1)).astype(np.int64)).tolist()
    tables = []
    for place in range(len(data.names)):
        of_batches = [
            _counts(data.indices_of(place, first=first, count=batch_size)) for first in firsts
        ]
        tables.append(_describe_table(data, place, of_batches))
    return DataStatistics(data.source, data.sample_count, batch_size, tuple(tables))


def _counts(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(indices, return_counts=True)[1].astype(np.int64)


def _describe_table(
    data: IndexData, place: int, of_batches: list[NDArray[np.int64]]
) -> TableStatistics:
    lengths, indices = data.lengths[place], data.indices_of(place)
    counts = _counts(indices)
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
