"""Balanced placement: a first plan that gives every rank its share of lookups and of bytes.

Dearest pieces first, each goes to the rank that has least to look up among
those with room for it; a tie goes to the lower rank. Room is a limit of bytes
a little above the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    copied = tuple(
        place
        for place, table in enumerate(tables)
        if rank_count > 1 and table.size_bytes < rule.data_parallel_below_bytes
    )
    pieces = [
        piece
        for place, table in enumerate(tables)
        if place not in copied
        for piece in _split(place, table, _share(tables, _whole(place, table)) * rank_count, rule)
    ]
    pieces.sort(key=lambda piece: (-_share(tables, piece), piece))
    shards = _place(tables, pieces, rank_count)
    return ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=tuple(sorted(shards)),
        data_parallel=copied,
        name="balanced",
    )


def _place(
    tables: Sequence[EmbeddingTable], pieces: Sequence[Shard], rank_count: int
) -> list[Shard]:
    sizes = [_size_bytes(tables, piece) for piece in pieces]
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
        work[rank] += _work(tables, piece)
        used_bytes[rank] += size_bytes
        shards.append(replace(piece, rank=rank))
    return shards


def _whole(place: int, table: EmbeddingTable) -> Shard:
    return Shard(place, 0, 0, table.rows, 0, table.width)


def _work(tables: Sequence[EmbeddingTable], piece: Shard) -> float:
    """Numbers a sample makes a piece read and, pooled, write."""
    table = tables[piece.table]
    return (table.pooling_factor * piece.rows / table.rows + 1) * piece.width


def _size_bytes(tables: Sequence[EmbeddingTable], piece: Shard) -> int:
    return piece.rows * piece.width * tables[piece.table].dtype.size_bytes


def _share(tables: Sequence[EmbeddingTable], piece: Shard) -> float:
    """The larger of a piece's shares of all work and of all bytes."""
    wholes = [_whole(place, table) for place, table in enumerate(tables)]
    all_work = sum(_work(tables, whole) for whole in wholes)
    all_bytes = sum(_size_bytes(tables, whole) for whole in wholes)
    return max(_work(tables, piece) / all_work, _size_bytes(tables, piece) / all_bytes)


def _split(
    place: int, table: EmbeddingTable, rank_shares: float, rule: PlacementRule
) -> list[Shard]:
    columns = 1
    while (
        rank_shares / columns > _TOLERATED_EXCESS
        and table.width % (2 * columns) == 0
        and table.width // (2 * columns) >= rule.min_width
    ):
        columns *= 2
    width = table.width // columns
    row_pieces = max(1, math.ceil(table.size_bytes / columns / max(1, rule.max_shard_bytes)))
    row_pieces = min(row_pieces, table.rows)
    bounds = [table.rows * piece // row_pieces for piece in range(row_pieces + 1)]
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in pairwise(bounds)
    ]
