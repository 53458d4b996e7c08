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
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_memory import piece_bytes
from embeddings.table import EmbeddingTable

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

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


_Lookups = TypeVar("_Lookups", float, Floats)


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
    tables: Sequence[EmbeddingTable],
    *,
    rank_count: int,
    rule: PlacementRule | None = None,
    ranks_per_host: int | None = None,
) -> ShardingPlan:
    """Place *tables* on *rank_count* ranks; by rows over all ranks where nothing else fits."""
    rule = rule or PlacementRule()
    copied = tuple(
        place
        for place, table in enumerate(tables)
        if rank_count > 1 and table.size_bytes < rule.data_parallel_below_bytes
    )
    placer = _Placer(tuple(tables), rank_count, rule, copied)
    shards = placer.best() if len(copied) < len(tables) else []
    if shards is None:
        shards = spread_rows(tables, rank_count=rank_count, left_out=copied)
    return ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=tuple(sorted(shards)),
        data_parallel=copied,
        name="balanced",
        ranks_per_host=ranks_per_host,
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


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """By table: whether so many *columns* are open to it, and the work of a piece of them.

    *fixed* is paid by every piece by rows, *lookups* are shared by them.
    """

    columns: int
    is_open: NDArray[np.bool_]
    fixed: Floats
    lookups: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Shards, all on rank 0 for now, and work and bytes of each."""

    shards: list[Shard]
    work: Floats
    sizes: Floats


class _Placer:
    """Cuts and places *tables*, those at *copied* aside; what they are is kept as columns."""

    def __init__(
        self,
        tables: tuple[EmbeddingTable, ...],
        rank_count: int,
        rule: PlacementRule,
        copied: tuple[int, ...],
    ) -> None:
        self._tables = tables
        self._rank_count = rank_count
        self._rule = rule
        self._copied_bytes = sum(piece_bytes(tables[place], rule.optimizer) for place in copied)
        self._held = sorted(set(range(len(tables))) - set(copied))
        self._pieces_of: dict[tuple[int, int, int], _Pieces] = {}

    def best(self) -> list[Shard] | None:
        """The pieces of the plan whose busiest rank has least to do; None if nothing fits."""
        held = [self._tables[place] for place in self._held]
        whole = sum(self._work(table.pooling_factor, table, table.width) for table in held)
        for smaller in _SMALLER_SHARDS:
            found: tuple[_Pieces, Int64s] | None = None
            least = math.inf
            for limit in _LIMITS:
                pieces = self._cut_all(limit * whole / self._rank_count, smaller)
                ranks, busiest = self._place(pieces)
                if ranks is not None and busiest < least * (1 - 1e-9):
                    found, least = (pieces, ranks), busiest
            if found is not None:
                placed = zip(found[0].shards, found[1].tolist(), strict=True)
                return [shard.on_rank(rank) for shard, rank in placed]
        return None

    def _work(self, lookups: _Lookups, table: EmbeddingTable, width: int) -> _Lookups:
        """Bytes that a sample makes a piece move, those that travel by their weight."""
        row = math.hypot(width * table.dtype.size_bytes, _HANDLED_BYTES)
        weight = self._rule.exchange_weight if self._rank_count > 1 else 0.0
        sent = weight * _SENT_BYTES * width
        return lookups * (_PASSES * row + weight * _INDEX_BYTES) + sent

    @cached_property
    def _ways(self) -> list[_Way]:
        """The numbers of columns that tables may be cut into, and what that makes of work."""
        held = [self._tables[place] for place in self._held]
        found, columns = [], 1
        while columns <= self._rank_count:
            is_open = [columns == 1 or self._is_wide(table, columns) for table in held]
            if not any(is_open):
                break
            fixed = np.array([self._work(0.0, table, table.width // columns) for table in held])
            total = [self._work(t.pooling_factor, t, t.width // columns) for t in held]
            found.append(_Way(columns, np.array(is_open), fixed, np.array(total) - fixed))
            columns *= 2
        return found

    def _cut_all(self, limit: float, smaller: int) -> _Pieces:
        """Every table by the cut with least work of those whose pieces keep to the limits."""
        most_bytes = max(1, self._rule.max_shard_bytes // smaller)
        held = [self._tables[place] for place in self._held]
        rows = np.array([table.rows for table in held])
        sizes = np.array([table.size_bytes for table in held], dtype=np.float64)
        keys = []
        for way in self._ways:
            by_rows = np.ceil(sizes / way.columns / most_bytes)
            is_split = limit > way.fixed
            room = np.where(is_split, limit - way.fixed, 1.0)
            by_rows = np.where(is_split, np.maximum(by_rows, np.ceil(way.lookups / room)), by_rows)
            is_over = ~is_split | (by_rows * way.columns > self._rank_count)
            # More pieces than ranks would not make a rank's part smaller.
            most = np.minimum(rows, self._rank_count // way.columns)
            by_rows = np.maximum(1, np.minimum(by_rows, most))
            work = way.columns * (by_rows * way.fixed + way.lookups)
            keys.append(np.stack(np.broadcast_arrays(~way.is_open, is_over, work, by_rows)))
        is_shut, is_over, work, by_rows = np.stack(keys, axis=1)
        # Of equal ones the fewest columns, which come first.
        order = np.lexsort((work, is_over, is_shut), axis=0)[0]
        chosen = np.take_along_axis(by_rows, order[None, :], axis=0)[0]
        cuts = zip(self._held, order.tolist(), chosen.tolist(), strict=True)
        parts = [
            self._pieces_from(place, self._ways[way].columns, int(n)) for place, way, n in cuts
        ]
        return _Pieces(
            [shard for part in parts for shard in part.shards],
            np.concatenate([part.work for part in parts]),
            np.concatenate([part.sizes for part in parts]),
        )

    def _is_wide(self, table: EmbeddingTable, columns: int) -> bool:
        return table.width % columns == 0 and table.width // columns >= self._rule.min_width

    def _pieces_from(self, place: int, columns: int, rows: int) -> _Pieces:
        """The pieces of one table."""
        key = (place, columns, rows)
        if key not in self._pieces_of:
            table = self._tables[place]
            shards = cut_table(place, table, columns=columns, rows=rows)
            first_row, held = np.array([(shard.first_row, shard.rows) for shard in shards]).T
            lookups = table.pooling_factor * table.shares_of(first_row, held)
            width = shards[0].width
            size_of = {
                count: piece_bytes(replace(table, rows=count, width=width), self._rule.optimizer)
                for count in set(held.tolist())
            }
            sizes = np.array([size_of[count] for count in held.tolist()], dtype=np.float64)
            self._pieces_of[key] = _Pieces(shards, self._work(lookups, table, width), sizes)
        return self._pieces_of[key]

    def _place(self, pieces: _Pieces) -> tuple[Int64s | None, float]:
        """A rank for each of *pieces*, and the work of the busiest; None where one has no room."""
        work, sizes, room = pieces.work, pieces.sizes, self._rule.room_bytes
        limit = max(_ROOM * sizes.sum() / self._rank_count, sizes.max()) if room is None else room
        shares = np.maximum(work / max(work.sum(), 1e-9), sizes / max(sizes.sum(), 1))
        order = np.lexsort((np.arange(len(work)), -shares))
        used = np.full(self._rank_count, 0.0 if room is None else float(self._copied_bytes))
        ranks, busiest = _place_in_order(order, work, sizes, used, float(limit), room is None)
        return (None if math.isinf(busiest) else ranks), busiest


@numba.njit(cache=True, nogil=True)
def _place_in_order(
    order: Int64s, work: Floats, sizes: Floats, used: Floats, limit: float, is_forced: bool
) -> tuple[Int64s, float]:
    """Each piece on the rank with least to do that has room; else endless, or the emptiest."""
    done = np.zeros(len(used))
    ranks = np.zeros(len(order), dtype=np.int64)
    for number in order:
        best = -1
        for rank in range(len(used)):
            if used[rank] + sizes[number] <= limit and (best < 0 or done[rank] < done[best]):
                best = rank
        if best < 0:
            if not is_forced:
                return ranks, np.inf
            best = int(used.argmin())
        ranks[number] = best
        done[best] += work[number]
        used[best] += sizes[number]
    return ranks, float(done.max())
