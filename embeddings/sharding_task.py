"""ShardingTask: the question to a sharder, and the one placer that all sharders use.

A sharder cuts tables into pieces by rows and columns and states the work of each piece, the
order in which pieces are placed, and a `Rule` by which each of them gets a rank with room.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.plan_document import find_unrunnable
from embeddings.popularity import Floats, Int64s
from embeddings.table import NARROWEST, EmbeddingTable
from perfmodel.base.compiling import compiled
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB

UNKNOWN_ROOM_BYTES = 2**60
"""Room of a rank whose memory is not known."""
Number = TypeVar("Number", float, Floats)
NOWHERE = -1
"""Rank of a piece for which no rank has room."""


@dataclass(frozen=True, slots=True)
class ShardingTask:
    """What a sharder is asked: place *tables* on *rank_count* ranks with *room_bytes* each.

    *room_bytes* is for pieces: weights, optimizer state and, for each sample of the batch,
    *number_bytes* of buffers per number in vectors and *key_bytes* per lookup. *seed* decides only
    the random sharder. *data_parallel_below_bytes*, *min_width* and *max_shard_bytes* steer the
    balanced sharder alone: tables below the first are copied to every rank, and pieces have at
    least so many columns and at most so many bytes of weights. Tables may be cut and placed as
    they state themselves, and such that *framework* can run the plan, if one is named.
    """

    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    room_bytes: int
    batch_size: int
    optimizer: str = "sgd"
    ranks_per_host: int | None = None
    seed: int = 0
    data_parallel_below_bytes: int = 0
    min_width: int = NARROWEST
    max_shard_bytes: int = 24 * 2**30
    number_bytes: int = 0
    key_bytes: int = 0
    framework: str = ""

    def __post_init__(self) -> None:
        if not self.tables or self.rank_count < 1:
            raise PlanError("sharding task: needs at least one table and one rank.")

    @property
    def is_constrained(self) -> bool:
        """Whether anything limits how tables are cut and where they are."""
        return bool(self.framework) or any(table.is_constrained for table in self.tables)

    @property
    def splits_evenly(self) -> bool:
        """Whether rows are divided over all ranks, in order, or not at all."""
        return self.framework == "torchrec"

    def kinds_of(self, table: EmbeddingTable, *, in_host: bool = False) -> frozenset[ShardingKind]:
        """How *table* may be cut, where partial sums are added inside hosts or not."""
        refused = _REFUSED.get(self.framework, frozenset())
        if in_host and self.splits_evenly:
            refused = frozenset()
        return frozenset(
            kind
            for kind in ShardingKind
            if kind not in refused
            and (not table.sharding_types or kind.value in table.allowed_kinds)
        )

    def allows(self, table: EmbeddingTable, kind: ShardingKind, ranks: Sequence[int]) -> bool:
        """Whether *table* may be cut as *kind* and its pieces, in order, be on *ranks*.

        Nothing is added inside hosts.
        """
        everywhere = list(range(self.rank_count))
        is_even = kind is not ShardingKind.ROW_WISE or list(ranks) == everywhere
        return (
            kind in self.kinds_of(table)
            and (is_even or not self.splits_evenly)
            and (not table.ranks or set(ranks or everywhere) <= set(table.ranks))
        )

    @property
    def host_count(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.rank_count // (self.ranks_per_host or self.rank_count))

    @property
    def sizes(self) -> list[int]:
        """Bytes of every table with its optimizer state."""
        return [table.held_bytes(self.optimizer) for table in self.tables]

    @property
    def needs(self) -> list[int]:
        """Bytes that every table needs on the rank that holds it."""
        return [self.needed_bytes(table) for table in self.tables]

    def needed_bytes(self, piece: EmbeddingTable) -> int:
        """Bytes that *piece* needs on its rank: weights, state and buffers."""
        buffers = self.buffer_bytes(piece.sample_numbers, piece.pooling_factor)
        return piece.held_bytes(self.optimizer) + int(buffers)

    def buffer_bytes(self, sample_numbers: float, lookups: Number) -> Number:
        """Buffers of a piece with *sample_numbers* in vectors and *lookups* per sample."""
        numbers = self.batch_size * self.number_bytes * sample_numbers
        return numbers + self.batch_size * self.key_bytes * lookups

    def copied_bytes(self, table: EmbeddingTable) -> int:
        """Bytes of *table* on every rank: with its dense gradient, and the bucket it is in."""
        return table.held_bytes(self.optimizer) + 2 * table.size_bytes

    def whole(self, ranks: Sequence[int], name: str) -> ShardingPlan:
        """The table-wise plan that puts table i on ranks[i]."""
        shards = [
            Shard(place, ranks[place], 0, table.rows, 0, table.width)
            for place, table in enumerate(self.tables)
        ]
        return self.plan(shards, name)

    def plan(
        self,
        shards: Sequence[Shard],
        name: str,
        *,
        data_parallel: Sequence[int] = (),
        summed_in_host: Sequence[int] = (),
        frequent_rows: Sequence[int] = (),
    ) -> ShardingPlan:
        """The plan of *shards*, with the tables at *data_parallel* on every rank.

        All sharders make their plans here, so that none breaks the constraints of a table.
        """
        plan = ShardingPlan(
            tables=self.tables,
            rank_count=self.rank_count,
            shards=tuple(sorted(shards)),
            data_parallel=tuple(data_parallel),
            name=name,
            ranks_per_host=self.ranks_per_host,
            summed_in_host=tuple(summed_in_host),
            frequent_rows=tuple(frequent_rows),
        )
        return _keep_constraints(plan, self)


_REFUSED = {
    "torchrec": frozenset({ShardingKind.TABLE_ROW_WISE, ShardingKind.GRID}),
    "hugectr": frozenset({ShardingKind.COLUMN_WISE, ShardingKind.GRID}),
}
"""What frameworks cannot run, unless partial sums are added inside hosts (`find_unrunnable`)."""


def find_broken(plan: ShardingPlan, framework: str = "") -> tuple[int, ...]:
    """The places of tables whose constraints *plan* does not keep, or *framework* cannot run."""
    refused = find_unrunnable(plan, framework) if framework else ()
    return tuple(
        place
        for place, table in enumerate(plan.tables)
        if place in refused or (table.is_constrained and not _is_kept(plan, place))
    )


def _is_kept(plan: ShardingPlan, place: int) -> bool:
    table = plan.tables[place]
    held = {shard.rank for shard in plan.shards_of_table[place]} or set(range(plan.rank_count))
    is_kind = not table.sharding_types or plan.kinds[place].value in table.allowed_kinds
    return is_kind and (not table.ranks or held <= set(table.ranks))


def _keep_constraints(plan: ShardingPlan, task: ShardingTask) -> ShardingPlan:
    """*plan* with each table whose constraints it breaks placed by the first kind that is allowed.

    The largest table goes first, to the ranks that hold the fewest bytes.
    """
    broken = find_broken(plan, task.framework) if task.is_constrained else ()
    if not broken:
        return plan
    kept = [shard for shard in plan.shards if shard.table not in broken]
    copied = [place for place in plan.data_parallel if place not in broken]
    for place in sorted(broken, key=lambda place: (-plan.tables[place].size_bytes, place)):
        load = [0] * plan.rank_count
        for shard in kept:
            load[shard.rank] += plan.tables[shard.table].dtype.bytes_of(shard.rows * shard.width)
        shards = _place_as_allowed(plan, place, load, task)
        kept += shards
        copied += [] if shards else [place]
    rows = tuple(0 if place in broken else count for place, count in enumerate(plan.frequent_rows))
    return replace(
        plan,
        shards=tuple(sorted(kept)),
        data_parallel=tuple(sorted(copied)),
        summed_in_host=tuple(place for place in plan.summed_in_host if place not in broken),
        frequent_rows=rows if any(rows) else (),
    )


def _place_as_allowed(
    plan: ShardingPlan, place: int, load: Sequence[int], task: ShardingTask
) -> list[Shard]:
    """Pieces of the table at *place* by the first kind that can be done; none if it is copied."""
    table, count = plan.tables[place], plan.rank_count
    ranks = list(table.ranks or range(count))
    if ranks[-1] >= count:
        raise PlanError(
            f"table {table.name!r}: its ranks must be from 0 to {count - 1}, got {ranks[-1]}. "
            "Name others, or take more GPUs."
        )
    emptiest = sorted(ranks, key=lambda rank: (load[rank], rank))
    of_host = [rank for rank in ranks if plan.host_of(rank) == plan.host_of(emptiest[0])]
    # Over all ranks it would be row-wise.
    of_host = of_host if len(of_host) < count else of_host[:1]
    columns = max(
        n for n in range(1, len(ranks) + 1) if n == 1 or _divides(table, n, task.min_width)
    )
    ways = {
        ShardingKind.TABLE_WISE: (1, 1, emptiest),
        ShardingKind.COLUMN_WISE: (columns, 1, emptiest),
        ShardingKind.ROW_WISE: (1, min(len(ranks), table.rows), ranks),
        ShardingKind.TABLE_ROW_WISE: (1, min(len(of_host), table.rows), of_host),
    }
    own = plan.kinds[place]
    # What was cut because it is large stays cut.
    own = own if own in task.kinds_of(table) else ShardingKind.ROW_WISE
    words = table.allowed_kinds or (own, ShardingKind.TABLE_WISE)
    for kind in map(ShardingKind, words):
        if kind not in task.kinds_of(table):
            continue
        if kind is ShardingKind.DATA_PARALLEL and len(ranks) == count:
            return []
        if kind in ways:
            by_columns, by_rows, on = ways[kind]
            pieces = cut_table(place, table, columns=by_columns, rows=by_rows)
            placed = on[: len(pieces)]
            if (len(pieces) > 1 or kind is ShardingKind.TABLE_WISE) and task.allows(
                table, kind, placed
            ):
                return [piece.on_rank(rank) for piece, rank in zip(pieces, placed, strict=True)]
    by = f" under {task.framework}" if task.framework else ""
    raise PlanError(
        f"table {table.name!r}: may be {' or '.join(table.sharding_types) or 'anything'} on "
        f"{len(ranks)} of {count} ranks{by}, and none of these can be made. "
        "Allow another sharding type."
    )


def _divides(table: EmbeddingTable, columns: int, min_width: int) -> bool:
    return table.width % columns == 0 and table.width // columns >= min_width


class Rule(IntEnum):
    """Which rank with room gets the next piece; of equal ones the lowest."""

    LEAST_WORK = 0
    """The one with least to do."""
    LEAST_WORK_THEN_BYTES = 1
    """The same; of equals the one with fewest bytes."""
    LEAST_PEAK = 2
    """The one that keeps the sum over parts of the most work least; of equals that with least."""


class Placer:
    """Places pieces one after the other on ranks with *room* bytes and at most *most* pieces each.

    *work* and *used* are what ranks have to do, in two parts, and hold already.
    """

    def __init__(
        self,
        rank_count: int,
        room: float,
        rule: Rule,
        *,
        used: float = 0.0,
        most: int = sys.maxsize,
    ) -> None:
        self.work = np.zeros((2, rank_count))
        self.used = np.full(rank_count, used)
        self._limits = float(room), most, rule

    def place(
        self, order: ArrayLike, sizes: ArrayLike, *work: ArrayLike, spans: ArrayLike = 1
    ) -> Int64s:
        """The rank of every piece, or NOWHERE from the first one on that has no room.

        *work* is one or two parts. A piece with a span above one needs that many ranks side by
        side, and gets the first of them.
        """
        of_size = np.asarray(sizes, dtype=np.float64)
        of_work = np.zeros((2, len(of_size)))
        of_work[: len(work)] = np.asarray(work, dtype=np.float64)
        of_span = np.broadcast_to(np.asarray(spans, dtype=np.int64), of_size.shape).copy()
        return _place_in_order(
            np.asarray(order, dtype=np.int64), of_size, of_work, of_span,
            self.work, self.used, *self._limits,
        )  # fmt: skip


@compiled
def _place_in_order(
    order: Int64s,
    sizes: Floats,
    work: Floats,
    spans: Int64s,
    done: Floats,
    used: Floats,
    room: float,
    most: int,
    rule: int,
) -> Int64s:
    ranks = np.full(len(sizes), NOWHERE)
    own, sent = done[0], done[1]
    peak_own, peak_sent = own.max(), sent.max()
    held = np.zeros(len(used), dtype=np.int64)
    for piece in order:
        best, least, tie = NOWHERE, np.inf, np.inf
        for first in range(0, len(used), spans[piece]):
            load, held_bytes = own[first] + sent[first], used[first]
            for rank in range(first + 1, first + spans[piece]):
                load, held_bytes = max(load, own[rank] + sent[rank]), max(held_bytes, used[rank])
            if held_bytes + sizes[piece] > room or held[first] >= most:
                continue
            second = held_bytes if rule == Rule.LEAST_WORK_THEN_BYTES else 0.0
            if rule == Rule.LEAST_PEAK:
                second = load
                load = max(peak_own, own[first] + work[0, piece])
                load += max(peak_sent, sent[first] + work[1, piece])
            if load < least or (load == least and second < tie):
                best, least, tie = first, load, second
        if best == NOWHERE:
            break
        ranks[piece] = best
        for rank in range(best, best + spans[piece]):
            used[rank] += sizes[piece]
            own[rank] += work[0, piece]
            sent[rank] += work[1, piece]
            held[rank] += 1
            peak_own, peak_sent = max(peak_own, own[rank]), max(peak_sent, sent[rank])
    return ranks


def place_greedily(costs: Sequence[float], sizes: Sequence[int], task: ShardingTask) -> list[int]:
    """A rank for every piece: most expensive first, on the rank with least cost that has room."""
    placer = Placer(task.rank_count, task.room_bytes, Rule.LEAST_WORK_THEN_BYTES)
    order = sorted(range(len(costs)), key=lambda piece: -costs[piece])
    ranks = placer.place(order, sizes, costs)
    left = next((piece for piece in order if ranks[piece] == NOWHERE), None)
    if left is not None:
        raise PlanError(
            f"sharder: no rank has room for a piece of {sizes[left] / BYTES_PER_GIB:.1f} GiB; "
            f"the emptiest of {task.rank_count} has "
            f"{(task.room_bytes - placer.used.min()) / BYTES_PER_GIB:.1f} GiB left. "
            "Use more ranks, or a sharder that splits tables."
        )
    return [int(rank) for rank in ranks]


def spread_rows(
    tables: Sequence[EmbeddingTable], *, rank_count: int, left_out: Sequence[int] = ()
) -> list[Shard]:
    """Every table row-wise over all ranks; those with fewer rows over the next ranks in turn."""
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
    """The pieces of the table at *place*, column-wise and then row-wise, all on rank 0 for now."""
    width = table.width // columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in _iter_bounds(table.rows, rows)
    ]


def spread_over(piece: Shard, place: int, count: int) -> list[Shard]:
    """*piece* row-wise over the *count* ranks of *place*; fewer if it has fewer rows."""
    table, _, first_row, rows, first_column, width = piece
    return [
        Shard(table, place * count + number, first_row + first, after - first, first_column, width)
        for number, (first, after) in enumerate(_iter_bounds(rows, min(count, rows)))
    ]


def _iter_bounds(rows: int, parts: int) -> pairwise[tuple[int, int]]:
    return pairwise([rows * part // parts for part in range(parts + 1)])
