"""Exchanges: how many bytes every rank sends every other for the embedding tables.

Row i of a matrix is what rank i sends. A piece of a table needs the indices
of the whole batch and returns one vector per sample as wide as the piece; pieces
by rows each return a partial sum. Tables that a plan sums inside hosts are
exchanged in two steps: the ranks of a host hand each other their partial sums,
each for the samples of its own rail, and the sums go to the ranks at the same
place in the other hosts. Vectors of rows that are copied to every rank are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.collective import Collective, CollectiveKind
from embeddings.plan import Shard, ShardingPlan
from perfmodel.base.dtypes import DType

LENGTH_BYTES = DType.INT32.size_bytes


@dataclass(frozen=True, slots=True)
class HostExchange:
    """The two steps of tables that are summed inside one host, and their way back.

    *inside* is between its ranks, *across* between the ranks at one place in
    all hosts. *summed_width* is how many numbers per sample are partial sums there.
    """

    inside: Collective
    inside_back: Collective
    across: Collective
    across_back: Collective
    summed_width: int


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The three all-to-alls of an iteration, and those of tables summed inside each host."""

    indices: Collective
    pooled: Collective
    gradients: Collective
    of_hosts: tuple[HostExchange, ...] = ()

    @property
    def has_direct(self) -> bool:
        """Whether vectors are sent from rank to rank directly."""
        return not self.of_hosts or self.pooled.size_bytes > 0


def build_exchanges(
    plan: ShardingPlan,
    *,
    local_batch: int,
    index_dtype: DType,
    exchange_dtype: DType,
    first_rank_width: int = 0,
) -> Exchanges:
    """The exchanges of *plan* when every rank has *local_batch* samples.

    Rank 0 sends *first_rank_width* more numbers per sample, and receives their gradients.
    """
    in_host = plan.summed_places
    pieces = plan.pieces
    # Rounded per piece, so that the sum does not depend on the order of pieces.
    lookups = plan.by_rank([round(local_batch * table.pooling_factor) for table in pieces.tables])
    held = np.bincount(pieces.rank, minlength=plan.rank_count)
    lengths = lookups if plan.frequent_rows else local_batch * held
    index_bytes = lookups * index_dtype.size_bytes + lengths * LENGTH_BYTES
    numbers = np.array(
        [
            sent_numbers(
                plan, (shard for shard in shards if shard.table not in in_host), samples=local_batch
            )
            for shards in plan.shards_of_rank
        ],
        dtype=np.int64,
    )
    numbers[0] += local_batch * first_rank_width
    pooled_bytes = numbers * exchange_dtype.size_bytes
    # Indices go to the ranks that vectors come from.
    _, indices = _there_and_back(index_bytes, index_dtype)
    of_hosts = _of_hosts(plan, local_batch, exchange_dtype) if in_host else ()
    return Exchanges(indices, *_there_and_back(pooled_bytes, exchange_dtype), of_hosts)


def sent_numbers(plan: ShardingPlan, shards: Iterable[Shard], *, samples: int) -> int:
    """Numbers that *shards* send to a rank with *samples* samples.

    Where frequent rows are on every rank, a vector is sent only to a sample that
    needs a row of the piece.
    """
    if not plan.frequent_rows:
        return samples * sum(shard.width for shard in shards)
    return sum(
        round(samples * min(1.0, plan.lookups_of_shards[shard])) * shard.width for shard in shards
    )


def empty_exchanges() -> Exchanges:
    """Empty exchanges, a placeholder for those of a plan that is not chosen yet."""
    nothing = Collective(CollectiveKind.ALL_TO_ALL, size_bytes=0)
    return Exchanges(nothing, nothing, nothing)


def _of_hosts(plan: ShardingPlan, local_batch: int, dtype: DType) -> tuple[HostExchange, ...]:
    per_host = plan.ranks_per_host or plan.rank_count
    hosts = plan.rank_count // per_host
    width = np.zeros(plan.rank_count)
    for shard in plan.shards:
        if shard.table in plan.summed_places:
            width[shard.rank] += shard.width * _asked_ratio(plan, [shard])
    across = np.zeros(hosts)
    for (host, _, _), shards in shards_by_host(plan).items():
        across[host] += shards[0].width * _asked_ratio(plan, shards)
    vector_bytes = local_batch * dtype.size_bytes
    between = _there_and_back(np.rint(vector_bytes * across), dtype)
    # Each rank of a host is handed partial sums for its own samples and those of the ranks at its
    # place in the other hosts.
    return tuple(
        HostExchange(
            *_there_and_back(np.rint(vector_bytes * hosts * of_ranks), dtype),
            *between,
            summed_width=round(float(of_ranks.sum())),
        )
        for of_ranks in width.reshape(hosts, per_host)
    )


def shards_by_host(plan: ShardingPlan) -> dict[tuple[int, int, int], list[Shard]]:
    """Pieces that are summed inside a host, by host, table and first column."""
    found: dict[tuple[int, int, int], list[Shard]] = {}
    for shard in plan.shards:
        if shard.table in plan.summed_places:
            columns = (plan.host_of(shard.rank), shard.table, shard.first_column)
            found.setdefault(columns, []).append(shard)
    return found


def _asked_ratio(plan: ShardingPlan, shards: Iterable[Shard]) -> float:
    """The share of samples that receive a vector from *shards*.

    Where frequent rows are on every rank, those are the samples that need another row.
    """
    if not plan.frequent_rows:
        return 1.0
    return min(1.0, sum(plan.lookups_of_shards[shard] for shard in shards))


def _there_and_back(
    sent_bytes: NDArray[np.int64] | NDArray[np.float64], dtype: DType
) -> tuple[Collective, Collective]:
    """Each rank sends its *sent_bytes* to every other, and the same the other way round."""
    columns = sent_bytes.astype(np.int64)[:, np.newaxis]
    matrix = columns * ~np.eye(len(columns), dtype=bool)
    there, back = (
        Collective(
            CollectiveKind.ALL_TO_ALL,
            size_bytes=int(way.sum(axis=1).max()),
            dtype=dtype,
            byte_matrix=tuple(tuple(row) for row in way.tolist()),
        )
        for way in (matrix, matrix.T)
    )
    return there, back
