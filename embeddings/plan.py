"""ShardingPlan: which rank holds which piece of which table.

A plan places every number of every table exactly once, or, for a
data-parallel table, once on every rank. It is checked when it is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError


class ShardingKind(Enum):
    """How a table is spread over ranks; the value is the word used in files."""

    TABLE_WISE = "table_wise"
    ROW_WISE = "row_wise"
    COLUMN_WISE = "column_wise"
    GRID = "grid"
    DATA_PARALLEL = "data_parallel"


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Rows and columns of one table that one rank holds."""

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


@dataclass(frozen=True)
class ShardingPlan:
    """Every piece of *tables*, and the places in *tables* of those that are data-parallel."""

    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    shards: tuple[Shard, ...]
    data_parallel: tuple[int, ...] = ()
    name: str = "plan"

    def __post_init__(self) -> None:
        pieces: dict[int, list[Shard]] = defaultdict(list)
        for shard in self.shards:
            self._check_shard(shard)
            pieces[shard.table].append(shard)
        for place, table in enumerate(self.tables):
            self._check_cover(place, table, pieces[place])

    @cached_property
    def shards_of_rank(self) -> tuple[tuple[Shard, ...], ...]:
        """The pieces every rank holds, by table and place in it; data-parallel tables aside."""
        held: list[list[Shard]] = [[] for _ in range(self.rank_count)]
        for shard in sorted(self.shards):
            held[shard.rank].append(shard)
        return tuple(tuple(shards) for shards in held)

    @cached_property
    def kinds(self) -> tuple[ShardingKind, ...]:
        """How every table is spread."""
        pieces: dict[int, list[Shard]] = defaultdict(list)
        for shard in self.shards:
            pieces[shard.table].append(shard)
        return tuple(
            ShardingKind.DATA_PARALLEL if place in self.data_parallel else _kind(pieces[place])
            for place in range(len(self.tables))
        )

    def table_of(self, shard: Shard) -> EmbeddingTable:
        """The piece as a table of its own; it is asked for its share of the rows looked up."""
        table = self.tables[shard.table]
        share = shard.rows / table.rows
        return replace(
            table,
            rows=shard.rows,
            width=shard.width,
            pooling_factor=table.pooling_factor * share,
            whole_rows=table.rows if shard.rows < table.rows else table.whole_rows,
        )

    def _check_shard(self, shard: Shard) -> None:
        if not 0 <= shard.table < len(self.tables):
            raise PlanError(
                f"plan {self.name!r}: a shard must name a table 0 to {len(self.tables) - 1}, "
                f"got {shard.table}."
            )
        table = self.tables[shard.table]
        where = f"plan {self.name!r}, table {table.name!r}"
        if not 0 <= shard.rank < self.rank_count:
            raise PlanError(
                f"{where}: a shard must be on a rank 0 to {self.rank_count - 1}, got {shard.rank}."
            )
        is_inside = (
            shard.rows > 0
            and shard.width > 0
            and 0 <= shard.first_row <= table.rows - shard.rows
            and 0 <= shard.first_column <= table.width - shard.width
        )
        if not is_inside:
            raise PlanError(
                f"{where}: a shard must lie inside {table.rows} x {table.width}, got rows "
                f"{shard.first_row} + {shard.rows}, columns {shard.first_column} + {shard.width}."
            )

    def _check_cover(self, place: int, table: EmbeddingTable, pieces: Sequence[Shard]) -> None:
        where = f"plan {self.name!r}, table {table.name!r}"
        if place in self.data_parallel:
            if pieces:
                raise PlanError(
                    f"{where}: a data-parallel table is on every rank and has no shards, "
                    f"got {len(pieces)}. Leave them out."
                )
            return
        placed = sum(shard.rows * shard.width for shard in pieces)
        if placed != table.rows * table.width:
            raise PlanError(
                f"{where}: every number must be placed once, got {placed} places for "
                f"{table.rows * table.width} numbers."
            )
        ordered = sorted(pieces, key=lambda shard: (shard.first_row, shard.first_column))
        for number, shard in enumerate(ordered):
            for other in ordered[number + 1 :]:
                if other.first_row >= shard.first_row + shard.rows:
                    break
                if shard.overlaps(other):
                    raise PlanError(
                        f"{where}: shards on ranks {shard.rank} and {other.rank} overlap. "
                        "Place every row and column once."
                    )


def _kind(pieces: Sequence[Shard]) -> ShardingKind:
    row_pieces = len({shard.first_row for shard in pieces})
    column_pieces = len({shard.first_column for shard in pieces})
    if row_pieces == 1:
        return ShardingKind.TABLE_WISE if column_pieces == 1 else ShardingKind.COLUMN_WISE
    return ShardingKind.ROW_WISE if column_pieces == 1 else ShardingKind.GRID
