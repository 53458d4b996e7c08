"""Balanced placement: a first plan that gives every rank its share of work and of bytes.

Ranks look up, then all of them exchange, so the rank with most lookups and the
one that sends most are waited for one after the other: the plan is sought for
which both together are least. Small tables are copied to every rank where summing
their gradients costs less than sending their vectors to other hosts. The others
are cut, by rows or by columns, until no piece has more than a limit of lookups and
of vectors; several limits are tried. Dearest pieces first, each goes to the rank
with room that makes the two least.

On several hosts the same is tried with hosts in place of ranks: the ranks of a
host share every piece by rows and add up their sums before these travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numba
import numpy as np
from numpy.typing import NDArray

from embeddings.cutting import cut_table, spread_over, spread_rows
from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_memory import piece_bytes
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

ONE_HOST_WEIGHT = 8.0
SEVERAL_HOSTS_WEIGHT = 60.0
"""What a byte that travels costs, in bytes of device memory: 3 TB/s over 400 and over 50 GB/s."""
USUAL_HOST = 8
"""Ranks of a host where nobody says."""
_PASSES, _LOOKUP_PASSES = 4, 1
"""How often a row is moved: read, and in the update read and written twice; and how much of that
a row costs that another sample of the batch has brought already."""
_HANDLED_BYTES = 150
"""Width below which a row costs its handling rather than its bytes."""
_INDEX_BYTES = 8
_SENT_BYTES = 4
"""A number that is sent in half precision, and its gradient that comes back."""
_OWN_LIMITS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 64.0)
_SENT_LIMITS = (0.5, 1.0, 2.0, 64.0)
"""Lookups and vectors of a piece at most, over the mean of a rank."""
_COPY_LIMITS = (0.0, 1.0, 2.0, 4.0)
"""What copying a table may cost at most, over a rank's share of what it saves."""
_ROOM = 1.6
_SMALLER_SHARDS = (1, 4, 16)
_LITTLE = 1e-9
_COPY_BYTES, _STEP_BYTES = 5e8, 2e8
"""What a second lookup and its update, and a second step of the exchanges, take to launch: some
0.17 and 0.07 ms, in bytes of device memory."""
_PEER_BYTES = 2.4e7
"""The same for a message to one other place and for what comes back: some 8 us."""
_MANY = 2**16
"""Samples of a batch where nobody says."""


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """When a table is copied to every rank, and how tables are split.

    Tables below *data_parallel_below_bytes* are data-parallel; where *batch_size* is
    known, so are others that this makes faster. Pieces have at least *min_width*
    columns and at most *max_shard_bytes* of weights. *room_bytes*, where it is known,
    is what a rank has for weights and the state of *optimizer*. *exchange_weight* is
    what a byte that travels costs.
    """

    data_parallel_below_bytes: int = 0
    batch_size: int | None = None
    min_width: int = 32
    max_shard_bytes: int = 24 * 2**30
    room_bytes: int | None = None
    optimizer: str = "sgd"
    exchange_weight: float = ONE_HOST_WEIGHT


def exchange_weight(rank_count: int, ranks_per_host: int | None) -> float:
    """What a byte that travels between *rank_count* ranks costs, some of them in its host."""
    per_host = USUAL_HOST if ranks_per_host is None else ranks_per_host
    away = max(rank_count - per_host, 0) / max(rank_count - 1, 1)
    return ONE_HOST_WEIGHT + away * (SEVERAL_HOSTS_WEIGHT - ONE_HOST_WEIGHT)


def build_balanced_plan(
    tables: Sequence[EmbeddingTable],
    *,
    rank_count: int,
    rule: PlacementRule | None = None,
    ranks_per_host: int | None = None,
) -> ShardingPlan:
    """Place *tables* on *rank_count* ranks; by rows over all ranks where nothing else fits."""
    return next(
        iter_balanced_plans(tables, rank_count=rank_count, rule=rule, ranks_per_host=ranks_per_host)
    )


def iter_balanced_plans(
    tables: Sequence[EmbeddingTable],
    *,
    rank_count: int,
    rule: PlacementRule | None = None,
    ranks_per_host: int | None = None,
) -> Iterator[ShardingPlan]:
    """All plans that are thought of and fit, least work first; the last is by rows, fit or not."""
    rule = rule or PlacementRule()
    per_places = [1]
    if ranks_per_host is not None and 1 < ranks_per_host < rank_count:
        per_places += [ranks_per_host] if rank_count % ranks_per_host == 0 else []
    placers = [_Placer(tuple(tables), rank_count, rule, per_place=ranks) for ranks in per_places]
    plan = ShardingPlan(
        tables=tuple(tables),
        rank_count=rank_count,
        shards=(),
        data_parallel=tuple(range(len(tables))),
        name="balanced",
        ranks_per_host=ranks_per_host,
    )
    found = [one for placer in placers for one in placer.found()]
    # Of equal ones, but for rounding, the first, which copies and sums less.
    for one in sorted(found, key=lambda one: float(f"{one.work:.9g}")):
        shards = one.shards(tables)
        in_host = {shard.table for shard in shards} if one.per_place > 1 else ()
        yield replace(
            plan,
            shards=tuple(sorted(shards)),
            data_parallel=one.copied,
            summed_in_host=tuple(sorted(in_host)),
        )
    copied = placers[0].always_copied
    shards = spread_rows(tables, rank_count=rank_count, left_out=copied)
    yield replace(plan, shards=tuple(sorted(shards)), data_parallel=copied)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """By table: whether so many *columns* are open to it, and what a sample costs a piece of them.

    Pieces by rows share the *lookups*; the vector, *sent*, leaves each of them.
    """

    columns: int
    is_open: NDArray[np.bool_]
    lookups: Floats
    sent: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """By piece: what a sample makes it look up and send, and its bytes."""

    own: Floats
    sent: Floats
    sizes: Floats


_Cut = tuple[int, int, int]
"""A table, into how many columns it is cut, and into how many pieces by rows each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """How tables are cut, where pieces are, the tables that all ranks have, and the work.

    A place is *per_place* ranks that share its pieces by rows.
    """

    cuts: tuple[_Cut, ...]
    places: Int64s
    per_place: int
    copied: tuple[int, ...]
    work: float

    def shards(self, tables: Sequence[EmbeddingTable]) -> list[Shard]:
        """The pieces of *tables*, each on its rank."""
        pieces = [
            piece
            for place, columns, rows in self.cuts
            for piece in cut_table(place, tables[place], columns=columns, rows=rows)
        ]
        placed = zip(pieces, self.places.tolist(), strict=True)
        return [
            part for piece, place in placed for part in spread_over(piece, place, self.per_place)
        ]


class _Placer:
    """Copies, cuts and places *tables*; what they are is kept as columns.

    A place is *per_place* ranks, and work and bytes are those of one of them.
    """

    def __init__(
        self,
        tables: tuple[EmbeddingTable, ...],
        rank_count: int,
        rule: PlacementRule,
        *,
        per_place: int = 1,
    ) -> None:
        self._tables = tables
        self._rank_count = rank_count
        self._rule = rule
        self._per_place = per_place
        self._place_count = rank_count // per_place
        self._weight = rule.exchange_weight if rank_count > 1 else 0.0
        self._rows = np.array([table.rows for table in tables])
        self._sizes = np.array([table.size_bytes for table in tables]) / per_place
        self._copy_bytes = np.array([piece_bytes(table, rule.optimizer) for table in tables])
        self._own = self._shared_work(1)
        self._sent = np.array([self._sent_work(table.width) for table in tables])
        self._pieces_of: dict[_Cut, _Pieces] = {}
        self.always_copied = tuple(
            place
            for place, table in enumerate(tables)
            if rank_count > 1 and table.size_bytes < rule.data_parallel_below_bytes
        )

    def found(self) -> list[_Found]:
        """One plan for every way of copying and cutting that fits."""
        for smaller in _SMALLER_SHARDS:
            found: dict[tuple[_Cut, ...], _Found | None] = {}
            for copied in self._copies:
                held = np.setdiff1d(np.arange(len(self._tables)), copied)
                for own_limit, sent_limit in product(_OWN_LIMITS, _SENT_LIMITS):
                    cuts = self._cut(held, own_limit, sent_limit, smaller)
                    if cuts not in found:
                        found[cuts] = self._place(cuts, copied)
            if fitting := [one for one in found.values() if one is not None]:
                return fitting
        return []

    def _own_work(self, widths: Floats, lookups: Floats, fresh: Floats) -> Floats:
        """Bytes that *lookups* move, *fresh* of them in rows that nobody asked for before.

        *widths* are bytes of a row. Keys, which travel, count by their weight.
        """
        moved = _LOOKUP_PASSES * lookups + (_PASSES - _LOOKUP_PASSES) * fresh
        return moved * np.hypot(widths, _HANDLED_BYTES) + self._weight * _INDEX_BYTES * lookups

    @cached_property
    def _fresh(self) -> Floats:
        """By table: different rows that a batch asks for, over its samples."""
        samples = self._rule.batch_size or _MANY
        drawn = [t.popularity.distinct_rows(samples * t.pooling_factor) for t in self._tables]
        return np.array(drawn) / samples

    def _shared_work(self, columns: int) -> Floats:
        """The same of all tables cut into *columns*, shared by the ranks of a place."""
        widths = [t.width // columns * t.dtype.size_bytes for t in self._tables]
        lookups = np.array([table.pooling_factor for table in self._tables])
        return self._own_work(np.array(widths), lookups, self._fresh) / self._per_place

    def _sent_work(self, width: int) -> float:
        """Bytes of a vector of *width* numbers that travels, by their weight.

        Ranks of a place hand each other their sums first, and each sends its share of them.
        """
        inside = ONE_HOST_WEIGHT if self._per_place > 1 else 0.0
        return (inside + self._weight / self._per_place) * _SENT_BYTES * width

    @cached_property
    def _copies(self) -> list[tuple[int, ...]]:
        """Sets of tables that may be copied to every rank, the smallest first.

        Inside one host vectors cost too little for it to pay.
        """
        found = [self.always_copied]
        if self._rule.batch_size is not None and self._weight > ONE_HOST_WEIGHT:
            for limit in _COPY_LIMITS:
                pays = self._summed_work < limit * self._sent / self._place_count
                also = np.union1d(np.flatnonzero(pays), self.always_copied)
                copied = tuple(int(place) for place in also)
                if copied not in found:
                    found.append(copied)
        return [copied for copied in found if len(copied) < len(self._tables)]

    @cached_property
    def _summed_work(self) -> Floats:
        """By table: what its gradient, summed over all ranks, costs each of them, over the batch.

        It is exchanged inside each host first, so that of a host's ranks each sends a part
        to the others.
        """
        outside = (self._weight - ONE_HOST_WEIGHT) / USUAL_HOST
        weight = _PASSES + 2 * (ONE_HOST_WEIGHT + outside)
        numbers = np.array([table.rows * table.width for table in self._tables])
        return weight * DType.FP32.size_bytes * numbers / (self._rule.batch_size or _MANY)

    @cached_property
    def _ways(self) -> list[_Way]:
        """The numbers of columns that tables may be cut into, and what that makes of work."""
        found, columns = [], 1
        while columns <= self._place_count:
            is_open = [columns == 1 or self._is_wide(table, columns) for table in self._tables]
            if not any(is_open):
                break
            sent = [self._sent_work(table.width // columns) for table in self._tables]
            lookups = self._shared_work(columns)
            found.append(_Way(columns, np.array(is_open), lookups, np.array(sent)))
            columns *= 2
        return found

    def _is_wide(self, table: EmbeddingTable, columns: int) -> bool:
        return table.width % columns == 0 and table.width // columns >= self._rule.min_width

    def _cut(
        self, held: Int64s, own_limit: float, sent_limit: float, smaller: int
    ) -> tuple[_Cut, ...]:
        """Tables at *held* by the cut with least work of those that keep to the limits best."""
        most_own = max(own_limit * self._own[held].sum() / self._place_count, _LITTLE)
        most_sent = max(sent_limit * self._sent[held].sum() / self._place_count, _LITTLE)
        most_bytes = max(1, self._rule.max_shard_bytes // smaller)
        keys = []
        for way in self._ways:
            lookups, sent = way.lookups[held], way.sent[held]
            sizes = self._sizes[held] / way.columns
            # More pieces than places would not make a rank's part smaller.
            most = np.minimum(self._rows[held], self._place_count // way.columns)
            by_rows = np.ceil(np.maximum(lookups / most_own, sizes / most_bytes))
            by_rows = np.maximum(1, np.minimum(by_rows, most))
            over = np.maximum(lookups / most_own, sizes / most_bytes) / by_rows
            over = np.maximum(np.maximum(over, sent / most_sent), 1.0)
            work = way.columns * (by_rows * sent + lookups)
            keys.append(np.stack([~way.is_open[held], over, work, by_rows]))
        is_shut, over, work, by_rows = np.stack(keys, axis=1)
        # Of equal ones the fewest columns, which come first.
        chosen = np.lexsort((work, over, is_shut), axis=0)[0]
        rows = np.take_along_axis(by_rows, chosen[None, :], axis=0)[0]
        columns = np.array([way.columns for way in self._ways])[chosen]
        cuts = zip(held.tolist(), columns.tolist(), rows.astype(np.int64).tolist(), strict=True)
        return tuple(cuts)

    def _place(self, cuts: tuple[_Cut, ...], copied: tuple[int, ...]) -> _Found | None:
        """A rank for each piece of *cuts*; None where one has no room."""
        parts = [self._pieces(cut) for cut in cuts]
        own, sent, sizes = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("own", "sent", "sizes")
        )
        room, count = self._rule.room_bytes, self._place_count
        limit = max(_ROOM * sizes.sum() / count, sizes.max()) if room is None else room
        copied_bytes = 0.0 if room is None else float(self._copy_bytes[list(copied)].sum())
        loads = [values / max(values.sum(), _LITTLE) for values in (own + sent, sizes)]
        order = np.lexsort((np.arange(len(own)), -np.maximum(*loads)))
        places, busiest = _place_in_order(
            order, own, sent, sizes, np.full(count, copied_bytes), float(limit), room is None
        )
        if math.isinf(busiest):
            return None
        everywhere = list(copied)
        shared = self._own[everywhere].sum() / count + self._summed_work[everywhere].sum()
        launches = bool(copied) * _COPY_BYTES + (self._per_place > 1) * _STEP_BYTES
        if self._weight > ONE_HOST_WEIGHT:
            launches += _PEER_BYTES * (self._place_count - 1)
        launches /= self._rule.batch_size or _MANY
        return _Found(cuts, places, self._per_place, copied, busiest + float(shared) + launches)

    def _pieces(self, cut: _Cut) -> _Pieces:
        """The pieces of one table; of the ranks of a place the one with most to do counts."""
        if cut not in self._pieces_of:
            place, columns, rows = cut
            table = self._tables[place]
            pieces = cut_table(place, table, columns=columns, rows=rows)
            shards = [spread_over(piece, 0, self._per_place) for piece in pieces]
            first_row, held = np.array(
                [(shard.first_row, shard.rows) for of_piece in shards for shard in of_piece]
            ).T
            width = pieces[0].width
            lookups = table.pooling_factor * table.shares_of(first_row, held)
            # Rows that are asked for once lie everywhere, whatever the hot ones draw.
            fresh = self._fresh[place] * held / table.rows
            own = self._own_work(np.array(width * table.dtype.size_bytes), lookups, fresh)
            size_of = {
                count: piece_bytes(replace(table, rows=count, width=width), self._rule.optimizer)
                for count in np.unique(held).tolist()
            }
            sizes = np.array([size_of[count] for count in held.tolist()], dtype=np.float64)
            starts = np.cumsum([0, *map(len, shards[:-1])])
            self._pieces_of[cut] = _Pieces(
                np.maximum.reduceat(own, starts),
                np.full(len(pieces), self._sent_work(width)),
                np.maximum.reduceat(sizes, starts),
            )
        return self._pieces_of[cut]


@numba.njit(cache=True, nogil=True)
def _place_in_order(
    order: Int64s,
    own: Floats,
    sent: Floats,
    sizes: Floats,
    used: Floats,
    limit: float,
    is_forced: bool,
) -> tuple[Int64s, float]:
    """Ranks of pieces, and the most lookups and vectors of any; endless where one has no room.

    Each goes where the two are least afterwards, of such ranks to the one with
    least to do; without room to the emptiest if *is_forced*.
    """
    lookups, vectors = np.zeros(len(used)), np.zeros(len(used))
    most_lookups, most_vectors = 0.0, 0.0
    ranks = np.zeros(len(order), dtype=np.int64)
    for number in order:
        best, least, load = -1, np.inf, np.inf
        for rank in range(len(used)):
            if used[rank] + sizes[number] > limit:
                continue
            after = max(most_lookups, lookups[rank] + own[number])
            after += max(most_vectors, vectors[rank] + sent[number])
            done = lookups[rank] + vectors[rank]
            if after < least or (after == least and done < load):
                best, least, load = rank, after, done
        if best < 0:
            if not is_forced:
                return ranks, np.inf
            best = int(used.argmin())
        ranks[number] = best
        used[best] += sizes[number]
        lookups[best] += own[number]
        vectors[best] += sent[number]
        most_lookups = max(most_lookups, lookups[best])
        most_vectors = max(most_vectors, vectors[best])
    return ranks, most_lookups + most_vectors
