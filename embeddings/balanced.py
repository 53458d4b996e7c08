"""Balanced placement: a first plan that gives every rank its share of work and of bytes.

Work is what a sample makes a piece read, write and send. Tables are cut until
no piece has more than a limit of it, by rows or by columns, whichever makes
less work in all; several limits are tried and the one whose busiest rank has
least to do is kept. Dearest pieces first, each goes to the rank with least
work among those with room for it; a tie goes to the lower rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_memory import piece_bytes
from embeddings.table import EmbeddingTable

ONE_HOST_WEIGHT = 8.0
SEVERAL_HOSTS_WEIGHT = 60.0
"""What a byte that travels costs, in bytes of device memory: 3 TB/s over 400 and over 50 GB/s."""
USUAL_HOST = 8
"""Ranks of a host where nobody says."""
_PASSES = 4
"""How often a row that is looked up is moved: read, and in the update read and written twice."""
_HANDLED_BYTES = 150
"""Width below which a row costs its handling rather than its bytes."""
_INDEX_BYTES = 8
_SENT_BYTES = 4
"""A number that is sent in half precision, and its gradient that comes back."""
_LIMITS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 64.0)
"""Work of a piece at most, over the mean of a rank."""
_ROOM = 1.6
_SMALLER_SHARDS = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """When a table is copied to every rank, and how tables are split.

    Tables below *data_parallel_below_bytes* are data-parallel. Pieces have at
    least *min_width* columns and at most *max_shard_bytes* of weights.
    *room_bytes*, where it is known, is what a rank has for weights and the
    state of *optimizer*. *exchange_weight* is what a byte that travels costs.
    """

    data_parallel_below_bytes: int = 0
    min_width: int = 32
    max_shard_bytes: int = 24 * 2**30
    room_bytes: int | None = None
    optimizer: str = "sgd"
    exchange_weight: float = ONE_HOST_WEIGHT


def exchange_weight(rank_count: int, ranks_per_host: int | None) -> float:
    """What a byte that travels between *rank_count* ranks costs."""
    per_host = USUAL_HOST if ranks_per_host is None else ranks_per_host
    return ONE_HOST_WEIGHT if rank_count <= per_host else SEVERAL_HOSTS_WEIGHT


def build_balanced_plan(
    tables: Sequence[EmbeddingTable], *, rank_count: int, rule: PlacementRule | None = None
) -> ShardingPlan:
    """Place *tables* on *rank_count* ranks; by rows over all ranks where nothing else fits."""
    rule = rule or PlacementRule()
    copied = tuple(
        place
        for place, table in enumerate(tables)
        if rank_count > 1 and table.size_bytes < rule.data_parallel_below_bytes
    )
    placer = _Placer(tuple(tables), rank_count, rule, frozenset(copied))
    shards = placer.best() if len(copied) < len(tables) else []
    if shards is None:
        shards = spread_rows(tables, rank_count=rank_count, left_out=copied)
    return ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=tuple(sorted(shards)),
        data_parallel=copied,
        name="balanced",
    )


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
            replace(piece, rank=(first + number) % rank_count)
            for number, piece in enumerate(pieces)
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


@dataclass(frozen=True, slots=True)
class _Placer:
    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    rule: PlacementRule
    copied: frozenset[int]

    def best(self) -> list[Shard] | None:
        """The pieces of the plan whose busiest rank has least to do; None if nothing fits."""
        held = [place for place in range(len(self.tables)) if place not in self.copied]
        whole = sum(self._work(table.pooling_factor, table) for table in self._those(held))
        found: list[Shard] | None = None
        least = math.inf
        for smaller in _SMALLER_SHARDS:
            for limit in _LIMITS:
                pieces = [
                    piece
                    for place in held
                    for piece in self._cut(place, limit * whole / self.rank_count, smaller)
                ]
                placed, busiest = self._place(pieces)
                if placed is not None and busiest < least * (1 - 1e-9):
                    found, least = placed, busiest
            if found is not None:
                break
        return found

    def _those(self, places: Sequence[int]) -> list[EmbeddingTable]:
        return [self.tables[place] for place in places]

    def _work(self, lookups: float, piece: EmbeddingTable) -> float:
        """Bytes that a sample makes a piece move, those that travel by their weight."""
        row = math.hypot(piece.width * piece.dtype.size_bytes, _HANDLED_BYTES)
        weight = self.rule.exchange_weight if self.rank_count > 1 else 0.0
        sent = weight * _SENT_BYTES * piece.width
        return lookups * (_PASSES * row + weight * _INDEX_BYTES) + sent

    def _cut(self, place: int, limit: float, smaller: int) -> list[Shard]:
        """The cut with least work in all of those whose pieces keep to the limits."""
        table = self.tables[place]
        most_bytes = max(1, self.rule.max_shard_bytes // smaller)
        best: tuple[bool, float, int, int, int] | None = None
        columns = 1
        while columns <= self.rank_count and (columns == 1 or self._is_wide(table, columns)):
            piece = replace(table, width=table.width // columns)
            rows = math.ceil(table.size_bytes / columns / most_bytes)
            fixed = self._work(0.0, piece)
            lookups = self._work(table.pooling_factor, piece) - fixed
            if lookups > 0 and limit > fixed:
                rows = max(rows, math.ceil(lookups / (limit - fixed)))
            is_over = limit <= fixed or rows * columns > self.rank_count
            # More pieces than ranks would not make a rank's part smaller.
            rows = max(1, min(rows, table.rows, self.rank_count // columns))
            work = columns * (rows * fixed + lookups)
            key = (is_over, work, columns * rows, columns, rows)
            best = key if best is None else min(best, key)
            columns *= 2
        assert best is not None
        return cut_table(place, table, columns=best[3], rows=best[4])

    def _is_wide(self, table: EmbeddingTable, columns: int) -> bool:
        return table.width % columns == 0 and table.width // columns >= self.rule.min_width

    def _place(self, pieces: Sequence[Shard]) -> tuple[list[Shard] | None, float]:
        """*pieces* on ranks, and the work of the busiest; None where one finds no room."""
        tables = [
            self.tables[piece.table].piece(
                first_row=piece.first_row, rows=piece.rows, width=piece.width
            )
            for piece in pieces
        ]
        work = np.array([self._work(table.pooling_factor, table) for table in tables])
        sizes = np.array([piece_bytes(table, self.rule.optimizer) for table in tables])
        room = self.rule.room_bytes
        copied = sum(piece_bytes(t, self.rule.optimizer) for t in self._those(sorted(self.copied)))
        limit = max(_ROOM * sizes.sum() / self.rank_count, sizes.max()) if room is None else room
        shares = np.maximum(work / max(work.sum(), 1e-9), sizes / max(sizes.sum(), 1))
        done, used = np.zeros(self.rank_count), np.zeros(self.rank_count)
        if room is not None:
            used += copied
        shards = []
        for number in np.lexsort((np.arange(len(pieces)), -shares)):
            roomy = np.where(used + sizes[number] <= limit, done, math.inf)
            rank = int(roomy.argmin())
            if math.isinf(roomy[rank]):
                if room is not None:
                    return None, math.inf
                rank = int(used.argmin())
            done[rank] += work[number]
            used[rank] += sizes[number]
            shards.append(replace(pieces[number], rank=rank))
        return shards, float(done.max())
