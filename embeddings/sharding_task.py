"""ShardingTask: what a sharder is asked, and placing pieces greedily, which many do.

The dearest piece goes first, to the rank that has least to do among those with
room; a tie goes to the rank with less memory used, then to the lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def whole(self, ranks: Sequence[int], name: str) -> ShardingPlan:
        """The table-wise plan that puts table i on ranks[i]."""
        shards = tuple(
            Shard(place, ranks[place], 0, table.rows, 0, table.width)
            for place, table in enumerate(self.tables)
        )
        return self._plan(shards, name)

    def plan(
        self, shards: Sequence[Shard], name: str, *, data_parallel: Sequence[int] = ()
    ) -> ShardingPlan:
        """The plan of *shards*, with the tables at *data_parallel* on every rank."""
        return self._plan(tuple(sorted(shards)), name, tuple(data_parallel))

    @property
    def host_count(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.rank_count // (self.ranks_per_host or self.rank_count))

    def _plan(
        self, shards: tuple[Shard, ...], name: str, data_parallel: tuple[int, ...] = ()
    ) -> ShardingPlan:
        return ShardingPlan(
            tables=self.tables,
            rank_count=self.rank_count,
            shards=shards,
            data_parallel=data_parallel,
            name=name,
            ranks_per_host=self.ranks_per_host,
        )


def place_greedily(costs: Sequence[float], sizes: Sequence[int], task: ShardingTask) -> list[int]:
    """A rank for every piece: dearest first, to the rank with least cost that has room."""
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
