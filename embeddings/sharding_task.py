"""ShardingTask: the question to a sharder, and what sharders have in common.

Tables are cut into pieces by rows and columns, and pieces are placed greedily:
the most expensive first, on the rank with least cost among those with room. A
tie goes to the rank with less memory used, then to the lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB

UNKNOWN_ROOM_BYTES = 2**60
"""Room of a rank whose memory is not known."""


@dataclass(frozen=True, slots=True)
class ShardingTask:
    """What a sharder is asked: place *tables* on *rank_count* ranks with *room_bytes* each.

    *room_bytes* is for weights and optimizer state. *seed* decides only the
    random sharder. The last three steer the balanced sharder alone: tables below
    *data_parallel_below_bytes* are copied to every rank, and pieces have at least
    *min_width* columns and at most *max_shard_bytes* of weights.
    """

    tables: tuple[EmbeddingTable, ...]
    rank_count: int
    room_bytes: int
    batch_size: int
    optimizer: str = "sgd"
    ranks_per_host: int | None = None
    seed: int = 0
    data_parallel_below_bytes: int = 0
    min_width: int = 32
    max_shard_bytes: int = 24 * 2**30

    def __post_init__(self) -> None:
        if not self.tables or self.rank_count < 1:
            raise PlanError("sharding task: needs at least one table and one rank.")

    @property
    def host_count(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.rank_count // (self.ranks_per_host or self.rank_count))

    @property
    def sizes(self) -> list[int]:
        """Bytes of every table with its optimizer state."""
        return [table.held_bytes(self.optimizer) for table in self.tables]

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
        """The plan of *shards*, with the tables at *data_parallel* on every rank."""
        return ShardingPlan(
            tables=self.tables,
            rank_count=self.rank_count,
            shards=tuple(sorted(shards)),
            data_parallel=tuple(data_parallel),
            name=name,
            ranks_per_host=self.ranks_per_host,
            summed_in_host=tuple(summed_in_host),
            frequent_rows=tuple(frequent_rows),
        )


def place_greedily(costs: Sequence[float], sizes: Sequence[int], task: ShardingTask) -> list[int]:
    """A rank for every piece: most expensive first, on the rank with least cost that has room."""
    work, used = np.zeros(task.rank_count), np.zeros(task.rank_count)
    ranks = [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
        is_roomy = used + sizes[piece] <= task.room_bytes
        if not is_roomy.any():
            raise PlanError(
                f"sharder: no rank has room for a piece of {sizes[piece] / BYTES_PER_GIB:.1f} GiB; "
                f"the emptiest of {task.rank_count} has "
                f"{(task.room_bytes - used.min()) / BYTES_PER_GIB:.1f} GiB left. "
                "Take more ranks, or a sharder that splits tables."
            )
        least = np.where(is_roomy, work, np.inf)
        rank = int(np.where(least == least.min(), used, np.inf).argmin())
        work[rank] += costs[piece]
        used[rank] += sizes[piece]
        ranks[piece] = rank
    return ranks


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
    width = table.width // columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(columns)
        for first, after in _iter_bounds(table.rows, rows)
    ]


def spread_over(piece: Shard, place: int, count: int) -> list[Shard]:
    """*piece* by rows over the *count* ranks of *place*; fewer where it has fewer rows."""
    table, _, first_row, rows, first_column, width = piece
    return [
        Shard(table, place * count + number, first_row + first, after - first, first_column, width)
        for number, (first, after) in enumerate(_iter_bounds(rows, min(count, rows)))
    ]


def _iter_bounds(rows: int, parts: int) -> pairwise[tuple[int, int]]:
    return pairwise([rows * part // parts for part in range(parts + 1)])
