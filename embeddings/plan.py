"""ShardingPlan: which rank holds which piece of which table.

A plan places every number of every table exactly once, or, for a
data-parallel table, once on every rank. It is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, count, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddings.popularity import Int64s
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.base.faults import FaultList


class ShardingKind(Enum):
    """How a table is spread over ranks; the value is the word used in files.

    TABLE_ROW_WISE is row-wise over the ranks of one host; GRID is column-wise, and
    each column is row-wise.
    """

    TABLE_WISE = "table_wise"
    ROW_WISE = "row_wise"
    COLUMN_WISE = "column_wise"
    TABLE_ROW_WISE = "table_row_wise"
    GRID = "grid"
    DATA_PARALLEL = "data_parallel"


class Shard(NamedTuple):
    """Rows and columns of one table that one rank holds; a tuple, as plans have a million."""

    table: int
    rank: int
    first_row: int
    rows: int
    first_column: int
    width: int

    def overlaps(self, other: Shard) -> bool:
        """Whether the two pieces share a number of the same table."""
        return (
            self.first_row < other.first_row + other.rows
            and other.first_row < self.first_row + self.rows
            and self.first_column < other.first_column + other.width
            and other.first_column < self.first_column + self.width
        )

    def on_rank(self, rank: int) -> Shard:
        """The same piece on another rank."""
        return Shard(self.table, rank, self.first_row, self.rows, self.first_column, self.width)


PieceKey = tuple[int, int, int, int]
"""What distinguishes pieces: place of the table, key row, rows and width."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanPieces:
    """The different pieces among shards: *keys* and *tables*; shard k is *number*[k] on *rank*[k].

    Equal pieces of a table are one, however many ranks hold them.
    """

    keys: tuple[PieceKey, ...]
    tables: tuple[EmbeddingTable, ...]
    number: Int64s
    rank: Int64s


def find_pieces(tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> PlanPieces:
    """The different pieces among *shards* of *tables*, each made once."""
    number_of: dict[PieceKey, int] = {}
    made: list[EmbeddingTable] = []
    numbers: list[int] = []
    for place, of_table in groupby(shards, itemgetter(0)):
        table, group = tables[place], list(of_table)
        _, _, _, held, _, width = group[0]
        if len(group) == 1 and held == table.rows:
            # Most plans are of whole tables, and thousands of plans are compared.
            number = number_of.setdefault((place, 0, held, width), len(made))
            if number == len(made):
                made.append(table.of_width(width))
            numbers.append(number)
            continue
        first_row, rows, _, widths = _columns(group)[:, 2:].T
        key_rows = table.key_rows(first_row, rows)
        cuts = zip(key_rows.tolist(), rows.tolist(), widths.tolist(), strict=True)
        keys: list[PieceKey] = [(place, *cut) for cut in cuts]
        fresh = [key for key in dict.fromkeys(keys) if key not in number_of]
        number_of.update(zip(fresh, count(len(made)), strict=False))
        made += table.pieces([key[1:] for key in fresh])
        numbers += map(number_of.__getitem__, keys)
    ranks = np.array([shard[1] for shard in shards], dtype=np.int64)
    return PlanPieces(tuple(number_of), tuple(made), np.array(numbers, dtype=np.int64), ranks)


def _columns(shards: Sequence[Shard]) -> Int64s:
    return np.fromiter(chain.from_iterable(shards), np.int64).reshape(-1, len(Shard._fields))


@dataclass(frozen=True)
class ShardingPlan:
    """Every piece of *tables*, and the places in *tables* of those that are data-parallel.

    *ranks_per_host* of None is one host for all ranks. Vectors of the tables
    *summed_in_host* are summed inside a host before they are sent to another.
    *frequent_rows*, one per table where there are any, are the most popular rows
    that every rank has a copy of; lookups of shards are those of the others only, and
    they send no vector to a sample that needs none of them.
    """

    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    shards: tuple[Shard, ...]
    data_parallel: tuple[int, ...] = ()
    name: str = "plan"
    ranks_per_host: int | None = None
    summed_in_host: tuple[int, ...] = ()
    frequent_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        faults = FaultList(f"plan {self.name!r}")
        self._check_exchange(faults)
        for shard in self.shards:
            fault = self._fault_of(shard)
            if fault is not None:
                faults.add(*fault)
        for place in self.data_parallel:
            if not 0 <= place < len(self.tables):
                faults.add("data parallel", f"must name tables that exist, got {place}")
        if not faults.faults:
            for place, table in enumerate(self.tables):
                self._check_cover(place, table, self.shards_of_table[place], faults)
        faults.check(PlanError)

    @cached_property
    def shards_of_table(self) -> tuple[list[Shard], ...]:
        """The pieces of every table."""
        held: tuple[list[Shard], ...] = tuple([] for _ in self.tables)
        for shard in self.shards:
            held[shard.table].append(shard)
        return held

    @cached_property
    def copied_places(self) -> frozenset[int]:
        """The places of data-parallel tables, as a set."""
        return frozenset(self.data_parallel)

    @cached_property
    def summed_places(self) -> frozenset[int]:
        """The places of tables that are summed inside hosts; without sums there is none."""
        return frozenset(place for place in self.summed_in_host if self.tables[place].is_pooled)

    @cached_property
    def received_width(self) -> int:
        """Numbers per sample from tables that are not data-parallel."""
        copied = self.copied_places
        numbers = (t.sample_numbers for place, t in enumerate(self.tables) if place not in copied)
        return round(sum(numbers))

    @cached_property
    def shards_of_rank(self) -> tuple[tuple[Shard, ...], ...]:
        """The pieces every rank holds, by table and place in it; without data-parallel tables."""
        held: list[list[Shard]] = [[] for _ in range(self.rank_count)]
        for shard in sorted(self.shards):
            held[shard.rank].append(shard)
        return tuple(map(tuple, held))

    @cached_property
    def kinds(self) -> tuple[ShardingKind, ...]:
        """How every table is spread."""
        return tuple(
            ShardingKind.DATA_PARALLEL if place in self.copied_places else self._kind(shards)
            for place, shards in enumerate(self.shards_of_table)
        )

    @cached_property
    def held_tables(self) -> tuple[EmbeddingTable, ...]:
        """The tables that shards are pieces of: without rows that every rank has."""
        if not self.frequent_rows:
            return self.tables
        return tuple(
            table.split_by_popularity(count)[1] if 0 < count < table.rows else table
            for table, count in zip(self.tables, self.frequent_rows, strict=True)
        )

    @cached_property
    def copied_tables(self) -> tuple[EmbeddingTable, ...]:
        """What every rank has a copy of: data-parallel tables, and frequent rows of others."""
        frequent = [
            table.split_by_popularity(count)[0]
            for table, count in zip(self.tables, self.frequent_rows, strict=False)
            if 0 < count < table.rows
        ]
        return (*(self.tables[place] for place in self.data_parallel), *frequent)

    def host_of(self, rank: int) -> int:
        """The host that *rank* is on."""
        return rank // (self.ranks_per_host or self.rank_count)

    @cached_property
    def pieces(self) -> PlanPieces:
        """The different pieces among the shards, in their order."""
        return find_pieces(self.held_tables, sorted(self.shards))

    def by_rank(self, of_piece: Sequence[float]) -> NDArray[np.float64]:
        """Sums of *of_piece* by rank; those of whole numbers below 2 ** 53 are exact."""
        weights = np.array(of_piece, dtype=np.float64)[self.pieces.number]
        sums = np.bincount(self.pieces.rank, weights=weights, minlength=self.rank_count)
        return sums.astype(np.float64)

    @cached_property
    def lookups_of_shards(self) -> dict[Shard, float]:
        """Lookups per sample of every shard."""
        lookups = [table.pooling_factor for table in self.pieces.tables]
        of_shards = map(lookups.__getitem__, self.pieces.number.tolist())
        return dict(zip(sorted(self.shards), of_shards, strict=True))

    @cached_property
    def tables_of_rank(self) -> tuple[tuple[EmbeddingTable, ...], ...]:
        """The pieces every rank holds as tables of their own, in the order of its shards."""
        held: list[list[EmbeddingTable]] = [[] for _ in range(self.rank_count)]
        pieces = self.pieces
        for rank, number in zip(pieces.rank.tolist(), pieces.number.tolist(), strict=True):
            held[rank].append(pieces.tables[number])
        return tuple(map(tuple, held))

    def table_of(self, shard: Shard) -> EmbeddingTable:
        """The piece as a table of its own, with the lookups of its rows."""
        return self.held_tables[shard.table].piece(
            first_row=shard.first_row, rows=shard.rows, width=shard.width
        )

    def _check_exchange(self, faults: FaultList) -> None:
        count = len(self.tables)
        if self.frequent_rows and len(self.frequent_rows) != count:
            faults.add(
                "frequent rows", f"must be one number per table, got {len(self.frequent_rows)}"
            )
        if any(not 0 <= place < count for place in self.summed_in_host):
            faults.add("summed in host", "must name tables that exist")
        if self.summed_in_host and self.rank_count % (self.ranks_per_host or self.rank_count):
            faults.add(
                "summed in host",
                f"hosts must have equally many ranks, got {self.rank_count} ranks and "
                f"{self.ranks_per_host} per host",
            )

    def _kind(self, pieces: Sequence[Shard]) -> ShardingKind:
        row_pieces = len({shard.first_row for shard in pieces})
        column_pieces = len({shard.first_column for shard in pieces})
        if row_pieces == 1:
            return ShardingKind.TABLE_WISE if column_pieces == 1 else ShardingKind.COLUMN_WISE
        if column_pieces > 1:
            return ShardingKind.GRID
        per_host = self.ranks_per_host or self.rank_count
        hosts = {self.host_of(shard.rank) for shard in pieces}
        is_inside = len(hosts) == 1 and per_host < self.rank_count
        return ShardingKind.TABLE_ROW_WISE if is_inside else ShardingKind.ROW_WISE

    def _fault_of(self, shard: Shard) -> tuple[str, str] | None:
        """Where and why *shard* is not a piece of a table on a rank, or None."""
        number, rank, first_row, rows, first_column, width = shard
        if not 0 <= number < len(self.tables):
            return "shard", f"must name a table 0 to {len(self.tables) - 1}, got {number}"
        table = self.tables[number]
        if not 0 <= rank < self.rank_count:
            return (
                f"table {table.name!r}",
                f"a shard must be on a rank 0 to {self.rank_count - 1}, got {rank}",
            )
        if (
            rows > 0
            and width > 0
            and 0 <= first_row <= table.rows - rows
            and 0 <= first_column <= table.width - width
        ):
            return None
        got = f"rows {first_row} + {rows}, columns {first_column} + {width}"
        size = f"{table.rows} x {table.width}"
        return f"table {table.name!r}", f"a shard must be inside {size}, got {got}"

    def _check_cover(
        self, place: int, table: EmbeddingTable, pieces: Sequence[Shard], faults: FaultList
    ) -> None:
        where = f"table {table.name!r}"
        if place in self.copied_places:
            if pieces:
                faults.add(
                    where,
                    f"placed twice: a data-parallel table is on every rank and has no shards, "
                    f"got {len(pieces)}. Leave them out",
                )
            return
        if is_regular(table, pieces):
            return
        placed, wanted = sum(shard.rows * shard.width for shard in pieces), table.rows * table.width
        twice = _first_overlap(pieces)
        if twice is not None:
            faults.add(
                where,
                f"placed twice: shards on ranks {twice[0].rank} and {twice[1].rank} overlap. "
                "Place every row and column once",
            )
        elif placed != wanted:
            word = "missing from the plan" if not pieces else "shard sizes do not add up"
            faults.add(
                where,
                f"{word}: every element must be placed once, got {placed} placements for {wanted} "
                f"elements",
            )


def is_regular(table: EmbeddingTable, pieces: Sequence[Shard]) -> bool:
    """Whether *pieces* are columns one after the other, each cut by rows from first to last."""
    # Sorted by first column, then by first row.
    row = column = width = 0
    for shard in sorted(pieces, key=itemgetter(4, 2)):
        if row == 0:
            width = shard.width
        if shard.first_row != row or shard.first_column != column or shard.width != width:
            return False
        row += shard.rows
        if row == table.rows:
            row, column = 0, column + width
    return row == 0 and column == table.width


def _first_overlap(pieces: Sequence[Shard]) -> tuple[Shard, Shard] | None:
    ordered = sorted(pieces, key=lambda shard: (shard.first_row, shard.first_column))
    for number, shard in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.first_row >= shard.first_row + shard.rows:
                break
            if shard.overlaps(other):
                return shard, other
    return None
