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

Candidates to be replayed are made for several batches,
and from the proportions of tables alone: a larger job gets the same plans to choose from.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from embeddings.piece_work import ONE_HOST_WEIGHT, BatchView, Cut, PieceWork
from embeddings.plan import ShardingKind, ShardingPlan
from embeddings.popularity import Floats, Int64s
from embeddings.sharding_task import (
    NOWHERE,
    Placer,
    Rule,
    ShardingTask,
    cut_table,
    spread_over,
    spread_rows,
)
from embeddings.table import EmbeddingTable

_OWN_LIMITS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 64.0)
_SENT_LIMITS = (0.5, 1.0, 2.0, 64.0)
"""Lookups and vectors of a piece at most, over the mean of a rank."""
_COPY_COUNTS = (*range(1, 17), 20, 24, 32, 48, 64, 128, 256, 1024)
_COPY_LIMIT = 4.0
"""How many tables are copied, those with fewest rows first; and what a copy costs at most, over a
rank's share of what it saves."""
_SMALLER_SHARDS = (1, 4, 16)
_LITTLE = 1e-9
_ROWS = 2**28
_DRAWS = (1.0, 1 / 8, 1 / 64, 0.0, 8.0)
_SLOWNESS = (1.0, 8.0)
"""Rows of all tables, to which they are scaled, and what candidates are made for: lookups of a
batch over these rows, and time of a byte that is sent over that of usual links."""
_MOST_VIEWED = 5_000
"""Tables over all that candidates are made for. Of thousands of tables few plans are replayed."""
_COPY_BYTES, _STEP_BYTES, _PEER_BYTES = 5e8, 2e8, 2.4e7
"""Launching a second lookup and its update, a second step of the exchanges, and a message to one
other place with its answer: 0.17, 0.07 and 0.008 ms, in bytes of device memory."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementCandidate:
    """How tables are cut, where pieces are, the tables that all ranks have, and the work.

    A place is *per_place* ranks that share its pieces row-wise. *view* is what it was made for.
    """

    cuts: tuple[Cut, ...]
    places: Int64s
    per_place: int
    copied: tuple[int, ...]
    work: float
    view: BatchView

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


def find_candidates(task: ShardingTask) -> list[PlacementCandidate]:
    """All plans to be replayed that fit. Neither batch nor sizes decide how they are made."""
    tables, ranks = task.tables, task.rank_count
    scale = _ROWS / sum(table.rows for table in tables)
    # A table with fewer rows than ranks is cut into fewer pieces.
    like = [
        table if table.rows < ranks else replace(table, rows=max(round(scale * table.rows), ranks))
        for table in tables
    ]
    samples = _ROWS / max(sum(table.pooling_factor for table in tables), _LITTLE)
    views = [BatchView(one * samples, other) for other in _SLOWNESS for one in _DRAWS]
    return _find(task, like, views[: max(1, _MOST_VIEWED // len(tables))])


def _find(
    task: ShardingTask, like: Sequence[EmbeddingTable], views: Sequence[BatchView]
) -> list[PlacementCandidate]:
    """Plans for *views*, with the rows of tables *like* those of *task*; least work first."""
    per_places = [1]
    per_host = task.ranks_per_host
    if per_host is not None and 1 < per_host < task.rank_count:
        per_places += [per_host] if task.rank_count % per_host == 0 else []
    found: list[PlacementCandidate] = []
    for per_place in per_places:
        known: dict[Cut, Floats] = {}
        for view in views:
            work = PieceWork(task, like, per_place, view, known)
            found += _Placer(task, per_place, view, work).found()
    # Among those that are equal but for rounding, the first, which copies and sums less.
    ordered = sorted(found, key=lambda one: float(f"{one.work:.9g}"))
    # The same pieces at the same places are one plan.
    different: dict[Hashable, PlacementCandidate] = {}
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
    for one in _find(task, task.tables, [BatchView(task.batch_size, 1.0)]):
        yield one.to_plan(task)
    yield plan_by_rows(task)


def always_copied(task: ShardingTask) -> tuple[int, ...]:
    """The tables that are below the size from which a table is not copied to every rank."""
    return tuple(
        place
        for place, table in enumerate(task.tables)
        if task.rank_count > 1 and table.size_bytes < task.data_parallel_below_bytes
        if ShardingKind.DATA_PARALLEL in task.kinds_of(table)
    )


class _Placer:
    """Copies, cuts and places the tables of a task, on places of *per_place* ranks, for a *view*.

    Pieces cost *work*.
    """

    def __init__(
        self, task: ShardingTask, per_place: int, view: BatchView, work: PieceWork
    ) -> None:
        self._task, self._per_place, self._view, self._work = task, per_place, view, work
        self._place_count = task.rank_count // per_place
        self._sizes = np.array([table.size_bytes for table in task.tables]) / per_place
        # By number of columns that tables are cut into, and by table: the work of a piece.
        most = min(self._place_count, int(work.widths.max()))
        self._columns = 2 ** np.arange(most.bit_length())[:, None]
        is_even, widths = work.widths % self._columns == 0, work.widths // self._columns
        # By table: whether it may be copied, and cut by columns, by rows, and by both.
        in_host = per_place > 1
        kinds = [task.kinds_of(table, in_host=in_host) for table in task.tables]
        by_columns = ShardingKind.GRID if in_host else ShardingKind.COLUMN_WISE
        wanted = (ShardingKind.DATA_PARALLEL, by_columns, ShardingKind.ROW_WISE, ShardingKind.GRID)
        may = np.array([[kind in of_table for kind in wanted] for of_table in kinds]).T
        self._may_copy, may_columns, may_rows, may_both = may
        if in_host and task.splits_evenly:
            # Sums inside hosts of rows over several hosts are no plan of it.
            may_rows = may_both = np.zeros_like(may_rows)
        self._may_divide = np.where(self._columns > 1, may_both, may_rows)
        is_wide = is_even & (widths >= task.min_width) & may_columns
        self._is_shut = ~is_wide & (self._columns > 1)
        self._lookups_of_way, self._sent_of_way = work.of_columns(self._columns)
        self._own, self._sent = self._lookups_of_way[0], self._sent_of_way[0]

    def found(self) -> list[PlacementCandidate]:
        """One plan for every way of copying and cutting that fits."""
        copies = self._copies()
        for smaller in _SMALLER_SHARDS:
            found: dict[tuple[Cut, ...], PlacementCandidate | None] = {}
            for copied in copies:
                held = np.setdiff1d(np.arange(len(self._work.rows)), copied)
                for cuts in self._cuts(held, smaller):
                    if cuts not in found:
                        found[cuts] = self._place(cuts, copied)
            if fitting := [one for one in found.values() if one is not None]:
                return fitting
        return []

    def _copies(self) -> list[tuple[int, ...]]:
        """Sets of tables that may be copied to every rank, the smallest first.

        Over fast links inside one host vectors cost too little for it to pay.
        """
        found = dict.fromkeys([always_copied(self._task)])
        if self._work.weight > ONE_HOST_WEIGHT:
            cost = self._work.summed * self._place_count / self._sent
            cost = np.where(self._may_copy, cost, np.inf)
            limits = np.sort(cost[cost < _COPY_LIMIT])
            for count in _COPY_COUNTS[: np.searchsorted(_COPY_COUNTS, len(limits), "right")]:
                also = np.union1d(np.flatnonzero(cost <= limits[count - 1]), next(iter(found)))
                found[tuple(map(int, also))] = None
        return [copied for copied in found if len(copied) < len(self._work.rows)]

    def _cuts(self, held: Int64s, smaller: int) -> list[tuple[Cut, ...]]:
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
        most = np.minimum(self._work.rows[held], self._place_count // self._columns)
        most = np.where(self._may_divide[:, held], most, 1)
        above = np.maximum(lookups / most_own, self._sizes[held] / self._columns / most_bytes)
        by_rows = np.maximum(1, np.minimum(np.ceil(above), most))
        if self._task.splits_evenly:
            by_rows = np.where(by_rows > 1, most, by_rows)
        over = np.maximum(np.maximum(above / by_rows, sent / most_sent), 1.0)
        work = self._columns * (by_rows * sent + lookups)
        # One piece is never shut. Among equals the fewest columns, which come first.
        over = np.where(self._is_shut[:, held], np.inf, over)
        work = np.where(over == over.min(axis=1, keepdims=True), work, np.inf)
        chosen = work.argmin(axis=1)[:, None]
        rows = np.take_along_axis(by_rows, chosen, axis=1)[:, 0].astype(np.int64)
        columns = self._columns[chosen[:, 0], 0]
        return [
            tuple(zip(held.tolist(), *of_limits, strict=True))
            for of_limits in zip(columns.tolist(), rows.tolist(), strict=True)
        ]

    def _place(self, cuts: tuple[Cut, ...], copied: tuple[int, ...]) -> PlacementCandidate | None:
        """A rank for each piece of *cuts*; None where one has no room."""
        own, sent, sizes, weights = self._work.of_cuts(cuts)
        room, count, everywhere = self._task.room_bytes, self._place_count, list(copied)
        copied_bytes = sum(self._task.copied_bytes(self._task.tables[place]) for place in copied)
        loads = [values / max(values.sum(), _LITTLE) for values in (own + sent, weights)]
        # Of equal loads the one with more lookups and bytes: the order of tables decides nothing.
        order = np.lexsort((np.arange(len(own)), -weights, -own, -np.maximum(*loads)))
        placer = Placer(count, room, Rule.LEAST_PEAK, used=copied_bytes)
        places = placer.place(order, sizes, own, sent)
        if (places == NOWHERE).any():
            return None
        shared = self._own[everywhere].sum() / count + self._work.summed[everywhere].sum()
        launches = bool(copied) * _COPY_BYTES + (self._per_place > 1) * _STEP_BYTES
        if self._work.weight > ONE_HOST_WEIGHT:
            launches += _PEER_BYTES * (count - 1)
        busiest = float(placer.work.max(axis=1).sum())
        work = busiest + float(shared) + launches / self._task.batch_size
        return PlacementCandidate(cuts, places, self._per_place, copied, work, self._view)
