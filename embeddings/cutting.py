"""Cutting: tables into pieces by rows and columns, and pieces over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from embeddings.plan import Shard
from embeddings.table import EmbeddingTable


def spread_rows(
    tables: Sequence[EmbeddingTable], *, rank_count: int, left_out: Sequence[int] = ()
) -> list[Shard]:
    """Every table by rows over all ranks; those with fewer rows over the next ranks in turn."""
    shards: list[Shard] = []
    next_rank, absent = 0, frozenset(left_out)
    for place, table in enumerate(tables):
        if place in absent:
            continue
        pieces = cut_table(place, table, columns=1, rows=min(rank_count, table.rows))
        first = 0 if len(pieces) == rank_count else next_rank
        shards += [
            piece.on_rank((first + number) % rank_count) for number, piece in enumerate(pieces)
        ]
        next_rank = (first + len(pieces)) % rank_count
    return shards


def cut_table(place: int, table: EmbeddingTable, *, columns: int, rows: int) -> list[Shard]:
    """The pieces of the table at *place*, by columns and then by rows, all on rank 0 for now."""
    bounds = [table.rows * piece // rows for piece in range(rows + 1)]
    width = table.width // columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in pairwise(bounds)
    ]


def spread_over(piece: Shard, place: int, count: int) -> list[Shard]:
    """*piece* by rows over the *count* ranks of *place*; fewer where it has fewer rows."""
    pieces = min(count, piece.rows)
    bounds = [piece.rows * number // pieces for number in range(pieces + 1)]
    return [
        Shard(
            piece.table,
            place * count + number,
            piece.first_row + first,
            after - first,
            piece.first_column,
            piece.width,
        )
        for number, (first, after) in enumerate(pairwise(bounds))
    ]
