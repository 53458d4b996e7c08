"""Work of pieces without a machine: what lookups, vectors and summed gradients move, in bytes.

Bytes that are sent count by how much slower links are than device memory. Rows that a batch asks
for again cost less.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from embeddings.popularity import Floats, Int64s
from embeddings.sharding_task import ShardingTask, cut_table, spread_over
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType

ONE_HOST_WEIGHT = 8.0
SEVERAL_HOSTS_WEIGHT = 60.0
"""Cost of a byte that is sent, in bytes of device memory: 3 TB/s over 400 and over 50 GB/s."""
USUAL_HOST = 8
"""Ranks per host where it is not stated."""
_PASSES, _LOOKUP_PASSES = 4, 1
"""How often a row is moved: read, and in the update read and written twice; and the cost of a
row that another sample of the batch has already brought."""
_HANDLED_BYTES = 150
"""Width below which the handling of a row costs more than its bytes."""
_INDEX_BYTES = 8
_SENT_BYTES = 4
"""A number that is sent in half precision, and its gradient that comes back."""


def exchange_weight(rank_count: int, ranks_per_host: int | None) -> float:
    """Cost of a byte sent among *rank_count* ranks, some of them in the same host."""
    per_host = USUAL_HOST if ranks_per_host is None else ranks_per_host
    away = max(rank_count - per_host, 0) / max(rank_count - 1, 1)
    return ONE_HOST_WEIGHT + away * (SEVERAL_HOSTS_WEIGHT - ONE_HOST_WEIGHT)


class BatchView(NamedTuple):
    """Rows are read again as in a batch of *samples*; *slowness* is that of links over usual."""

    samples: float
    slowness: float


Cut = tuple[int, int, int]
"""A table, into how many columns it is cut, and into how many row-wise pieces each of them."""


class PieceWork:
    """Work of the pieces of a task's tables, as columns.

    Work and bytes are those of one of the *per_place* ranks of a place. Rows are read as from
    tables *like* those of *task*. *known* pieces are the same in every *view*.
    """

    def __init__(
        self,
        task: ShardingTask,
        like: Sequence[EmbeddingTable],
        per_place: int,
        view: BatchView,
        known: dict[Cut, Floats],
    ) -> None:
        self._task, self._like, self._per_place, self._known = task, like, per_place, known
        weight = view.slowness * exchange_weight(task.rank_count, task.ranks_per_host)
        self.weight = weight if task.rank_count > 1 else 0.0
        numbers = [(table.rows, table.width, table.dtype.size_bytes) for table in task.tables]
        self.rows, self.widths, self._number_bytes = np.array(numbers).T
        # By table: rows that a sample asks for, and the different ones of a batch over its samples.
        self._drawn = self._fresh = np.array([table.pooling_factor for table in task.tables])
        if view.samples:
            distinct = [
                table.popularity.distinct_rows(view.samples * table.pooling_factor)
                for table in like
            ]
            self._fresh = np.array(distinct) / view.samples

    def of_columns(self, columns: Int64s) -> tuple[Floats, Floats]:
        """Lookups and vectors of every table, the last axis, cut into so many *columns*."""
        widths = self.widths // columns
        work = self._own_work(widths * self._number_bytes, self._drawn, self._fresh)
        return work / self._per_place, self._sent_work(widths)

    def of_cuts(self, cuts: Sequence[Cut]) -> Floats:
        """By piece: work of lookups and of vectors, bytes on its rank, and bytes of weights."""
        lookups, shares, sizes, widths, of = np.concatenate(list(map(self._pieces, cuts)), axis=1)
        table = of.astype(np.int64)
        row_bytes = widths * self._number_bytes[table]
        # Rows that are read once are everywhere, whatever the hot ones draw.
        own = self._own_work(row_bytes, lookups, self._fresh[table] * shares)
        weights = shares * self.rows[table] * row_bytes
        return np.stack([own, self._sent_work(widths), sizes, weights])

    @cached_property
    def summed(self) -> Floats:
        """By table: what its gradient, summed over all ranks, costs each of them, over the batch.

        It is exchanged inside each host first, so that each rank of a host sends a part of it to
        the others.
        """
        outside = (self.weight - ONE_HOST_WEIGHT) / USUAL_HOST
        weight = _PASSES + 2 * (ONE_HOST_WEIGHT + outside)
        numbers: Floats = self.rows * self.widths / self._task.batch_size
        return weight * DType.FP32.size_bytes * numbers

    def _own_work(self, row_bytes: Floats, lookups: Floats, fresh: Floats) -> Floats:
        """Bytes that *lookups* move, *fresh* of them in rows that were not read before.

        Keys, which are sent, count by their weight.
        """
        moved = _LOOKUP_PASSES * lookups + (_PASSES - _LOOKUP_PASSES) * fresh
        return moved * np.hypot(row_bytes, _HANDLED_BYTES) + self.weight * _INDEX_BYTES * lookups

    def _sent_work(self, widths: Floats) -> Floats:
        """Bytes of a vector of so many numbers that is sent, by their weight.

        Ranks of a place hand each other their sums first, and each sends its share of them.
        """
        inside = ONE_HOST_WEIGHT if self._per_place > 1 else 0.0
        return (inside + self.weight / self._per_place) * _SENT_BYTES * widths

    def _pieces(self, cut: Cut) -> Floats:
        """By piece of one table: lookups of a sample, part of the rows, bytes, width, and table.

        Of the ranks of a place, the one with most to do counts.
        """
        if cut not in self._known:
            task, (place, columns, rows) = self._task, cut
            like, table = self._like[place], task.tables[place]
            piece = table.of_width(table.width // columns)
            parts = [
                spread_over(one, 0, self._per_place)
                for one in cut_table(place, like, columns=columns, rows=rows)
            ]
            held = np.array([(part.first_row, part.rows) for of in parts for part in of])
            starts = np.cumsum([0, *map(len, parts[:-1])])
            lookups = table.pooling_factor * like.shares_of(*held.T)
            shares = held[:, 1] / like.rows
            vectors = table.features if table.is_pooled else lookups
            sizes = shares * piece.held_bytes(task.optimizer) + task.buffer_bytes(0.0, lookups)
            sizes += task.buffer_bytes(piece.width, 0.0) * vectors
            known = np.empty((5, len(parts)))
            known[:3] = np.maximum.reduceat([lookups, shares, sizes], starts, axis=1)
            known[3:] = [[piece.width], [place]]
            self._known[cut] = known
        return self._known[cut]
