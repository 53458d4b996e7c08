"""Balanced placement: a first plan that gives every rank its share of lookups and of bytes.

Dearest pieces first, each goes to the rank that has least to look up among
those with room for it; a tie goes to the lower rank. Room is a limit of bytes
a little above the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from embeddings.plan import Shard, ShardingPlan
from embeddings.table import EmbeddingTable

_TOLERATED_EXCESS = 1.25
_ROOM = 1.6


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """When a table is copied to every rank, and when and how far it is split.

    Tables below *data_parallel_below_bytes* are data-parallel. A table dearer
    than its rank's share is split by columns into halves, quarters and so on
    of at least *min_width*; pieces above *max_shard_bytes* by rows.
    """

    data_parallel_below_bytes: int = 0
    min_width: int = 32
    max_shard_bytes: int = 24 * 2**30


def build_balanced_plan(
    tables: Sequence[EmbeddingTable], *, rank_count: int, rule: PlacementRule | None = None
) -> ShardingPlan:
    """Place *tables* on *rank_count* ranks."""
    rule = rule or PlacementRule()
    costs = _Costs(tuple(tables))
    copied = tuple(
        place
        for place, table in enumerate(tables)
        if rank_count > 1 and table.size_bytes < rule.data_parallel_below_bytes
    )
    pieces = [
        piece
        for place, table in enumerate(tables)
        if place not in copied
        for piece in _split(costs.whole(place), table, costs, rank_count, rule)
    ]
    pieces.sort(key=lambda piece: (-costs.share(piece), piece))
    return ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=tuple(sorted(_place(pieces, costs, rank_count))),
        data_parallel=copied,
        name="balanced",
    )


@dataclass(frozen=True)
class _Costs:
    tables: tuple[EmbeddingTable, ...]

    def whole(self, place: int) -> Shard:
        """The table at *place* as one piece."""
        return Shard(place, 0, 0, self.tables[place].rows, 0, self.tables[place].width)

    def work(self, piece: Shard) -> float:
        """Numbers a sample makes a piece read and, pooled, write."""
        table = self.tables[piece.table]
        return (table.pooling_factor * piece.rows / table.rows + 1) * piece.width

    def size_bytes(self, piece: Shard) -> int:
        """Bytes of the weights of a piece."""
        return piece.rows * piece.width * self.tables[piece.table].dtype.size_bytes

    @cached_property
    def all_work(self) -> float:
        """Work of all tables."""
        return sum(self.work(self.whole(place)) for place in range(len(self.tables)))

    @cached_property
    def all_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.size_bytes for table in self.tables)

    def share(self, piece: Shard) -> float:
        """The larger of a piece's shares of all work and of all bytes."""
        return max(self.work(piece) / self.all_work, self.size_bytes(piece) / self.all_bytes)


def _place(pieces: Sequence[Shard], costs: _Costs, rank_count: int) -> list[Shard]:
    sizes = [costs.size_bytes(piece) for piece in pieces]
    room_bytes = max([_ROOM * sum(sizes) / rank_count, *sizes])
    work = [0.0] * rank_count
    used_bytes = [0] * rank_count
    shards = []
    for piece, size_bytes in zip(pieces, sizes, strict=True):
        roomy = [rank for rank in range(rank_count) if used_bytes[rank] + size_bytes <= room_bytes]
        rank = (
            min(roomy, key=lambda rank: (work[rank], rank))
            if roomy
            else min(range(rank_count), key=lambda rank: (used_bytes[rank], rank))
        )
        work[rank] += costs.work(piece)
        used_bytes[rank] += size_bytes
        shards.append(replace(piece, rank=rank))
    return shards


def _split(
    whole: Shard, table: EmbeddingTable, costs: _Costs, rank_count: int, rule: PlacementRule
) -> list[Shard]:
    rank_shares = costs.share(whole) * rank_count
    columns = 1
    while (
        rank_shares / columns > _TOLERATED_EXCESS
        and table.width % (2 * columns) == 0
        and table.width // (2 * columns) >= rule.min_width
    ):
        columns *= 2
    width = table.width // columns
    row_pieces = max(1, math.ceil(table.size_bytes / columns / max(1, rule.max_shard_bytes)))
    # More pieces than ranks would not make a rank's part smaller.
    row_pieces = min(row_pieces, table.rows, rank_count)
    bounds = [table.rows * piece // row_pieces for piece in range(row_pieces + 1)]
    return [
        replace(
            whole, first_row=first, rows=after - first, first_column=column * width, width=width
        )
        for column in range(columns)
        for first, after in pairwise(bounds)
    ]
