"""Balanced placement: plans which give every rank its share of work and of bytes.

Ranks look up, then all of them exchange, so the rank with most lookups and the
one that sends most delay the others one after the other: the plan with the least
sum of both comes first. Small tables are copied to every rank where summing their
gradients costs less than sending their vectors to other hosts. The others are
cut, by rows or by columns, until no piece exceeds a limit of lookups and of
vectors; several limits are tried. The most expensive piece goes first, each to
the rank with room that keeps the sum least.

On several hosts the same is tried with hosts in place of ranks: the ranks of a
host share every piece row-wise and add up their sums before sending them.

Rows that a batch asks for again cost less. Candidates to be replayed are made for several batches,
and from the proportions of tables alone: a larger job gets the same plans to choose from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.popularity import Floats, Int64s
from embeddings.sharding_task import (
    NOWHERE,
    UNKNOWN_ROOM_BYTES,
    Placer,
    Rule,
    ShardingTask,
    cut_table,
    spread_over,
    spread_rows,
)
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
_OWN_LIMITS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 64.0)
_SENT_LIMITS = (0.5, 1.0, 2.0, 64.0)
"""Lookups and vectors of a piece at most, over the mean of a rank."""
_COPY_COUNTS = (*range(1, 17), 20, 24, 32, 48, 64, 128, 256, 1024)
_COPY_LIMIT = 4.0
"""How many tables are copied, those first whose copies cost least over a rank's share of what they
save; and that cost at most."""
_ROOM = 1.6
_SMALLER_SHARDS = (1, 4, 16)
_LITTLE = 1e-9
_ROWS = 2**28
_DRAWS = (8.0, 1.0, 1 / 8, 1 / 64, 0.0)
_SLOWNESS = (1.0, 8.0)
"""Rows of all tables, to which they are scaled, and what candidates are made for: lookups of a
batch over these rows, and time of a byte that is sent over that of usual links."""
_MOST_VIEWED = 5_000
"""Tables over all that candidates are made for. Of thousands of tables few plans are replayed."""
_COPY_BYTES, _STEP_BYTES = 5e8, 2e8
"""Launching a second lookup and its update, and a second step of the exchanges: some 0.17 and
0.07 ms, in bytes of device memory."""
_PEER_BYTES = 2.4e7
"""The same for a message to one other place and its answer: some 8 us."""


def exchange_weight(rank_count: int, ranks_per_host: int | None) -> float:
    """Cost of a byte sent among *rank_count* ranks, some of them in the same host."""
    per_host = USUAL_HOST if ranks_per_host is None else ranks_per_host
    away = max(rank_count - per_host, 0) / max(rank_count - 1, 1)
    return ONE_HOST_WEIGHT + away * (SEVERAL_HOSTS_WEIGHT - ONE_HOST_WEIGHT)


class _View(NamedTuple):
    """Rows are read again as in a batch of *samples*; *slowness* is that of links over usual."""

    samples: float
    slowness: float


_Cut = tuple[int, int, int]
"""A table, into how many columns it is cut, and into how many row-wise pieces each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """How tables are cut, where pieces are, the tables that all ranks have, and the work.

    A place is *per_place* ranks that share its pieces row-wise. *view* is what it was made for.
    """

    cuts: tuple[_Cut, ...]
    places: Int64s
    per_place: int
    copied: tuple[int, ...]
    work: float
    view: _View

    @property
    def piece_count(self) -> int:
        """Pieces of tables, over all ranks."""
        return len(self.places) * self.per_place

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Equal for plans that copy the same tables and sum in the same places."""
        return self.copied, self.per_place

    @property
    def way(self) -> tuple[Hashable, ...]:
        """Equal for plans that differ only in how finely tables are cut, and in places."""
        return *self.kind, self.view, any(rows > 1 for *_, rows in self.cuts)

    def to_plan(self, task: ShardingTask) -> ShardingPlan:
        """The plan that puts every piece on its rank."""
        pieces = [
            piece
            for place, columns, rows in self.cuts
            for piece in cut_table(place, task.tables[place], columns=columns, rows=rows)
        ]
        placed = zip(pieces, self.places.tolist(), strict=True)
        shards = [
            part for piece, place in placed for part in spread_over(piece, place, self.per_place)
        ]
        in_host = [place for place, *_ in self.cuts] if self.per_place > 1 else ()
        return task.plan(shards, "balanced", data_parallel=self.copied, summed_in_host=in_host)


def find_candidates(task: ShardingTask) -> list[Candidate]:
    """All plans to be replayed that fit. Neither batch nor sizes decide how they are made."""
    tables, ranks = task.tables, task.rank_count
    scale = _ROWS / sum(table.rows for table in tables)
    # A table with fewer rows than ranks is cut into fewer pieces.
    like = [
        table if table.rows < ranks else replace(table, rows=max(round(scale * table.rows), ranks))
        for table in tables
    ]
    samples = _ROWS / max(sum(table.pooling_factor for table in tables), _LITTLE)
    views = [_View(one * samples, other) for other in _SLOWNESS for one in _DRAWS]
    most = max(1, _MOST_VIEWED // len(tables))
    return _find(task, like, views[1 : 1 + most] if most < len(views) else views)


def _find(
    task: ShardingTask, like: Sequence[EmbeddingTable], views: Sequence[_View]
) -> list[Candidate]:
    """Plans for *views*, with the rows of tables *like* those of *task*; least work first."""
    per_places = [1]
    per_host = task.ranks_per_host
    if per_host is not None and 1 < per_host < task.rank_count:
        per_places += [per_host] if task.rank_count % per_host == 0 else []
    found: list[Candidate] = []
    for per_place in per_places:
        known: _Known = {}
        for view in views:
            found += _Placer(task, like, per_place, view, known).found()
    # Among those that are equal but for rounding, the first, which copies and sums less.
    ordered = sorted(found, key=lambda one: float(f"{one.work:.9g}"))
    # The same pieces at the same places are one plan.
    different: dict[Hashable, Candidate] = {}
    for one in ordered:
        different.setdefault((one.per_place, one.cuts, one.places.tobytes()), one)
    return list(different.values())


def plan_by_rows(task: ShardingTask) -> ShardingPlan:
    """Every table row-wise over all ranks, whether that fits or not."""
    copied = always_copied(task)
    shards = spread_rows(task.tables, rank_count=task.rank_count, left_out=copied)
    return task.plan(shards, "balanced", data_parallel=copied)


def iter_balanced_plans(task: ShardingTask) -> Iterator[ShardingPlan]:
    """The plans of all candidates in order; the last is row-wise, whether it fits or not."""
    for one in _find(task, task.tables, [_View(task.batch_size, 1.0)]):
        yield one.to_plan(task)
    yield plan_by_rows(task)


def always_copied(task: ShardingTask) -> tuple[int, ...]:
    """The tables that are below the size from which a table is not copied to every rank."""
    return tuple(
        place
        for place, table in enumerate(task.tables)
        if task.rank_count > 1 and table.size_bytes < task.data_parallel_below_bytes
    )


@dataclass(frozen=True, slots=True, eq=False)
class _TablePieces:
    """Pieces of one table: of each rank that shares one, lookups of a sample, rows and bytes.

    *starts* are the first ranks of pieces, and *width* is that of each piece.
    """

    lookups: Floats
    row_shares: Floats
    sizes: Floats
    starts: Int64s
    width: int


_Known = dict[_Cut, _TablePieces]


class _Placer:
    """Copies, cuts and places the tables of a task; what is known of them is kept as columns.

    Work and bytes are those of one of the *per_place* ranks of a place. Rows are read as from
    tables *like* those of *task*. *known* pieces are the same in every *view*.
    """

    def __init__(
        self,
        task: ShardingTask,
        like: Sequence[EmbeddingTable],
        per_place: int,
        view: _View,
        known: _Known,
    ) -> None:
        self._task, self._like, self._per_place = task, like, per_place
        self._view, self._known = view, known
        self._place_count = task.rank_count // per_place
        weight = view.slowness * exchange_weight(task.rank_count, task.ranks_per_host)
        self._weight = weight if task.rank_count > 1 else 0.0
        self._rows = np.array([table.rows for table in task.tables])
        self._sizes = np.array([table.size_bytes for table in task.tables]) / per_place
        self._copy_bytes = np.array([task.copied_bytes(table) for table in task.tables])
        # By table: different rows that a batch asks for, over its samples.
        self._fresh = np.array([table.pooling_factor for table in task.tables])
        if view.samples:
            drawn = [
                table.popularity.distinct_rows(view.samples * table.pooling_factor)
                for table in like
            ]
            self._fresh = np.array(drawn) / view.samples
        self._pieces_of: dict[_Cut, Floats] = {}
        self._always_copied = always_copied(task)
        self._set_ways()
        self._own, self._sent = self._lookups_of_way[0], self._sent_of_way[0]

    def found(self) -> list[Candidate]:
        """One plan for every way of copying and cutting that fits."""
        for smaller in _SMALLER_SHARDS:
            found: dict[tuple[_Cut, ...], Candidate | None] = {}
            for copied in self._copies:
                held = np.setdiff1d(np.arange(len(self._rows)), copied)
                for cuts in self._cuts(held, smaller):
                    if cuts not in found:
                        found[cuts] = self._place(cuts, copied)
            if fitting := [one for one in found.values() if one is not None]:
                return fitting
        return []

    def _set_ways(self) -> None:
        """The numbers of columns that tables may be cut into, and by table the work of each.

        Row-wise pieces share the lookups; each of them sends a vector.
        """
        tables, least = self._task.tables, self._task.min_width
        is_open, lookups, sent = [np.ones(len(tables), dtype=bool)], [], []
        columns = 1
        drawn = np.array([table.pooling_factor for table in tables])
        while is_open[-1].any() and columns <= self._place_count:
            row_bytes = [table.width // columns * table.dtype.size_bytes for table in tables]
            work = self._own_work(np.array(row_bytes), drawn, self._fresh)
            lookups.append(work / self._per_place)
            sent.append([self._sent_work(table.width // columns) for table in tables])
            columns *= 2
            is_wide = [t.width % columns == 0 and t.width // columns >= least for t in tables]
            is_open.append(np.array(is_wide))
        self._columns = 2 ** np.arange(len(lookups))[:, None]
        self._is_shut = ~np.array(is_open[: len(lookups)])
        self._lookups_of_way, self._sent_of_way = np.array(lookups), np.array(sent)

    def _own_work(self, widths: Floats, lookups: Floats, fresh: Floats) -> Floats:
        """Bytes that *lookups* move, *fresh* of them in rows that were not read before.

        *widths* are bytes of a row. Keys, which are sent, count by their weight.
        """
        moved = _LOOKUP_PASSES * lookups + (_PASSES - _LOOKUP_PASSES) * fresh
        return moved * np.hypot(widths, _HANDLED_BYTES) + self._weight * _INDEX_BYTES * lookups

    def _sent_work(self, width: int) -> float:
        """Bytes of a vector of *width* numbers that is sent, by their weight.

        Ranks of a place hand each other their sums first, and each sends its share of them.
        """
        inside = ONE_HOST_WEIGHT if self._per_place > 1 else 0.0
        return (inside + self._weight / self._per_place) * _SENT_BYTES * width

    @cached_property
    def _copies(self) -> list[tuple[int, ...]]:
        """Sets of tables that may be copied to every rank, the smallest first.

        Over fast links inside one host vectors cost too little for it to pay.
        """
        found = [self._always_copied]
        if self._weight > ONE_HOST_WEIGHT:
            cost = self._summed_work * self._place_count / self._sent
            limits = np.sort(cost[cost < _COPY_LIMIT])
            for count in _COPY_COUNTS[: np.searchsorted(_COPY_COUNTS, len(limits), "right")]:
                also = np.union1d(np.flatnonzero(cost <= limits[count - 1]), self._always_copied)
                copied = tuple(int(place) for place in also)
                if copied not in found:
                    found.append(copied)
        return [copied for copied in found if len(copied) < len(self._rows)]

    @cached_property
    def _summed_work(self) -> Floats:
        """By table: what its gradient, summed over all ranks, costs each of them, over the batch.

        It is exchanged inside each host first, so that each rank of a host sends a part of it to
        the others.
        """
        outside = (self._weight - ONE_HOST_WEIGHT) / USUAL_HOST
        weight = _PASSES + 2 * (ONE_HOST_WEIGHT + outside)
        numbers = np.array([table.rows * table.width for table in self._task.tables])
        return weight * DType.FP32.size_bytes * numbers / self._task.batch_size

    def _cuts(self, held: Int64s, smaller: int) -> list[tuple[_Cut, ...]]:
        """By limits: tables at *held* by the cut with least work of those that exceed them least.

        Limits of lookups and of vectors are the first axis, ways to cut by columns the second,
        tables the third.
        """
        own_limit, sent_limit = np.array(list(product(_OWN_LIMITS, _SENT_LIMITS))).T[
            ..., None, None
        ]
        most_own = np.maximum(own_limit * self._own[held].sum() / self._place_count, _LITTLE)
        most_sent = np.maximum(sent_limit * self._sent[held].sum() / self._place_count, _LITTLE)
        most_bytes = max(1, self._task.max_shard_bytes // smaller)
        lookups, sent = self._lookups_of_way[:, held], self._sent_of_way[:, held]
        # More pieces than places would not make a rank's part smaller.
        most = np.minimum(self._rows[held], self._place_count // self._columns)
        above = np.maximum(lookups / most_own, self._sizes[held] / self._columns / most_bytes)
        by_rows = np.maximum(1, np.minimum(np.ceil(above), most))
        over = np.maximum(np.maximum(above / by_rows, sent / most_sent), 1.0)
        work = self._columns * (by_rows * sent + lookups)
        is_shut = np.broadcast_to(self._is_shut[:, held], work.shape)
        # Among equals the fewest columns, which come first.
        chosen = np.lexsort((work, over, is_shut), axis=1)[:, :1]
        rows = np.take_along_axis(by_rows, chosen, axis=1)[:, 0].astype(np.int64)
        columns = self._columns[chosen[:, 0], 0]
        return [
            tuple(zip(held.tolist(), *of_limits, strict=True))
            for of_limits in zip(columns.tolist(), rows.tolist(), strict=True)
        ]

    def _place(self, cuts: tuple[_Cut, ...], copied: tuple[int, ...]) -> Candidate | None:
        """A rank for each piece of *cuts*; None where one has no room."""
        own, sent, sizes, weights = np.concatenate([self._pieces(cut) for cut in cuts], axis=1)
        room, count, everywhere = self._task.room_bytes, self._place_count, list(copied)
        is_unknown = room >= UNKNOWN_ROOM_BYTES
        limit = max(_ROOM * sizes.sum() / count, sizes.max()) if is_unknown else room
        copied_bytes = 0.0 if is_unknown else float(self._copy_bytes[everywhere].sum())
        loads = [values / max(values.sum(), _LITTLE) for values in (own + sent, weights)]
        # Of equal loads the one with more lookups and bytes: the order of tables decides nothing.
        order = np.lexsort((np.arange(len(own)), -weights, -own, -np.maximum(*loads)))
        placer = Placer(count, limit, Rule.LEAST_PEAK, used=copied_bytes, is_forced=is_unknown)
        places = placer.place(order, sizes, own, sent)
        if (places == NOWHERE).any():
            return None
        shared = self._own[everywhere].sum() / count + self._summed_work[everywhere].sum()
        launches = bool(copied) * _COPY_BYTES + (self._per_place > 1) * _STEP_BYTES
        if self._weight > ONE_HOST_WEIGHT:
            launches += _PEER_BYTES * (count - 1)
        busiest = float(placer.work.max(axis=1).sum())
        work = busiest + float(shared) + launches / self._task.batch_size
        return Candidate(cuts, places, self._per_place, copied, work, self._view)

    def _pieces(self, cut: _Cut) -> Floats:
        """By piece of one table: what a sample makes it look up and send, its bytes and weights.

        Of the ranks of a place, the one with most to do counts.
        """
        if cut not in self._pieces_of:
            if cut not in self._known:
                self._known[cut] = self._cut_table(cut)
            table, found = self._task.tables[cut[0]], self._known[cut]
            # Rows that are read once are everywhere, whatever the hot ones draw.
            fresh = self._fresh[cut[0]] * found.row_shares
            row_bytes = np.array(found.width * table.dtype.size_bytes)
            own = self._own_work(row_bytes, found.lookups, fresh)
            sent = np.full(len(found.starts), self._sent_work(found.width))
            largest = [
                np.maximum.reduceat(one, found.starts)
                for one in (own, found.sizes, found.row_shares * table.size_bytes / cut[1])
            ]
            self._pieces_of[cut] = np.stack([largest[0], sent, *largest[1:]])
        return self._pieces_of[cut]

    def _cut_table(self, cut: _Cut) -> _TablePieces:
        task, like = self._task, self._like[cut[0]]
        table = task.tables[cut[0]]
        width = table.width // cut[1]
        (_, held, _), (first_row, held_like, starts) = (
            self._spread(one, cut) for one in (table, like)
        )
        lookups = table.pooling_factor * like.shares_of(first_row, held_like)
        size_of = {
            count: replace(table, rows=count, width=width).held_bytes(task.optimizer)
            for count in np.unique(held).tolist()
        }
        sizes = np.array([size_of[count] for count in held.tolist()], dtype=np.float64)
        vectors = table.features if table.is_pooled else lookups
        sizes += task.buffer_bytes(0.0, lookups)
        sizes += task.batch_size * task.number_bytes * width * vectors
        return _TablePieces(lookups, held_like / like.rows, sizes, starts, width)

    def _spread(self, table: EmbeddingTable, cut: _Cut) -> tuple[Int64s, Int64s, Int64s]:
        """First row and rows of *table* on every rank that shares a piece, and first ranks."""
        pieces = cut_table(cut[0], table, columns=cut[1], rows=cut[2])
        shards = [spread_over(piece, 0, self._per_place) for piece in pieces]
        rows = [(shard.first_row, shard.rows) for of_piece in shards for shard in of_piece]
        return *np.array(rows).T, np.cumsum([0, *map(len, shards[:-1])])
