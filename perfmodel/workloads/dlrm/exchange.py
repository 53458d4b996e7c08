"""Exchanges: how many bytes every rank sends every other for the embedding tables.

Row i of a matrix is what rank i sends. A piece of a table needs the indices of the whole batch and
returns one vector per sample as wide as the piece; row-wise pieces each return a partial sum. For a
table row-wise over all ranks a reduce-scatter adds these up, and an all-gather returns the
gradients. Where the framework has no such reduction, they are summed inside hosts. Partial sums of
a table row-wise over a few ranks, or inside one host without that reduction, are sent like vectors.
Tables that a plan sums inside hosts are exchanged in two steps: the ranks of a host add up their
partial sums, each for the samples of its own rail, and the sums go to the ranks at the same place
in the other hosts. Where kernels do this, not collectives, a rank fetches only the gradients of
samples that had a row of its piece. Vectors of rows that are copied to every rank are not sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectives.collective import Collective, CollectiveKind
from embeddings.plan import Shard, ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.stacks.capabilities import RowSums

LENGTH_BYTES = DType.INT32.size_bytes


@dataclass(frozen=True, slots=True)
class HostExchange:
    """The two steps of tables that are summed inside one host, and their way back.

    *inside* is between its ranks, *across* between the ranks at one place in
    all hosts. *summed_width* is how many numbers per sample a kernel adds up there: none if the
    collective does it.
    """

    inside: Collective
    inside_back: Collective
    across: Collective
    across_back: Collective
    summed_width: int


@dataclass(frozen=True, slots=True)
class RowExchange:
    """The reduction of partial sums over all ranks, and the gather of their gradients."""

    sums: Collective
    gradients: Collective


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The three all-to-alls of an iteration, and what row-wise tables need in addition.

    *by_rows* is for tables that are summed over all ranks, *of_hosts* for those summed inside each
    host. Unless it *has_direct* vectors, nothing is sent by *pooled* and *gradients*.
    """

    indices: Collective
    pooled: Collective
    gradients: Collective
    by_rows: RowExchange | None = None
    of_hosts: tuple[HostExchange, ...] = ()
    has_direct: bool = True


def is_by_rows(plan: ShardingPlan, shard: Shard) -> bool:
    """Whether *shard* has only some rows of its columns, so that its vectors are partial sums."""
    table = plan.tables[shard.table]
    return table.is_pooled and shard.rows < table.rows


def adds_in_collectives(plan: ShardingPlan, row_sums: RowSums) -> bool:
    """Whether collectives add partial sums; vectors that only some samples need rule that out."""
    return row_sums is RowSums.REDUCE_SCATTER and not plan.frequent_rows


def most_row_pieces(table: EmbeddingTable, rank_count: int) -> int:
    """Row-wise pieces of a table over all of *rank_count* ranks; a small one has fewer rows."""
    return min(rank_count, table.rows)


def as_exchanged(plan: ShardingPlan, row_sums: RowSums) -> ShardingPlan:
    """*plan* as a framework runs it that adds up partial sums as *row_sums* says.

    One that sends them adds those of row-wise tables inside hosts first, if there are several.
    """
    per_host = plan.ranks_per_host or plan.rank_count
    is_even = 1 < per_host < plan.rank_count and plan.rank_count % per_host == 0
    if row_sums is RowSums.REDUCE_SCATTER or not is_even:
        return plan
    in_host = _spread_places(plan).union(plan.summed_in_host)
    return replace(plan, summed_in_host=tuple(sorted(in_host)))


def reduced_places(plan: ShardingPlan, row_sums: RowSums) -> frozenset[int]:
    """The tables of *plan* that a collective over all ranks adds up."""
    return _spread_places(plan) if adds_in_collectives(plan, row_sums) else frozenset()


def _spread_places(plan: ShardingPlan) -> frozenset[int]:
    """The tables of *plan* with columns that are split row-wise over all ranks."""
    found = []
    for place, shards in enumerate(plan.shards_of_table):
        table = plan.tables[place]
        most = most_row_pieces(table, plan.rank_count)
        if len(shards) < most or most == 1 or place in plan.summed_places or not table.is_pooled:
            continue
        pieces = Counter(shard.first_column for shard in shards)
        found += [place] if min(pieces.values()) >= most else []
    return frozenset(found)


def build_exchanges(
    plan: ShardingPlan,
    *,
    local_batch: int,
    index_dtype: DType,
    exchange_dtype: DType,
    row_sums: RowSums = RowSums.REDUCE_SCATTER,
    first_rank_width: int = 0,
) -> Exchanges:
    """The exchanges of *plan* when every rank has *local_batch* samples.

    Rank 0 sends *first_rank_width* more numbers per sample, and receives their gradients.
    """
    in_host, reduced = plan.summed_places, reduced_places(plan, row_sums)
    summed = in_host | reduced
    pieces = plan.pieces
    # Rounded per piece, so that the sum does not depend on the order of pieces.
    lookups = plan.by_rank([round(local_batch * table.pooling_factor) for table in pieces.tables])
    held = np.bincount(pieces.rank, minlength=plan.rank_count)
    lengths = lookups if plan.frequent_rows else local_batch * held
    index_bytes = lookups * index_dtype.size_bytes + lengths * LENGTH_BYTES
    numbers = np.array(
        [
            sent_numbers(
                plan,
                (shard for shard in shards if shard.table not in summed),
                samples=local_batch,
            )
            for shards in plan.shards_of_rank
        ],
        dtype=np.int64,
    )
    numbers[0] += local_batch * first_rank_width
    pooled_bytes = numbers * exchange_dtype.size_bytes
    # Indices go to the ranks that vectors come from.
    _, indices = _there_and_back(index_bytes, index_dtype)
    of_hosts: tuple[HostExchange, ...] = ()
    if in_host:
        is_added = adds_in_collectives(plan, row_sums)
        of_hosts = _of_hosts(plan, local_batch, exchange_dtype, is_added=is_added)
    by_rows = None
    if reduced:
        width = sum(plan.tables[place].width * plan.tables[place].features for place in reduced)
        by_rows = build_row_exchange(plan.rank_count * local_batch * width, exchange_dtype)
    return Exchanges(
        indices,
        *_there_and_back(pooled_bytes, exchange_dtype),
        by_rows,
        of_hosts,
        has_direct=bool(numbers.any()) or not (of_hosts or by_rows),
    )


def build_row_exchange(numbers: int, dtype: DType) -> RowExchange:
    """The reduce-scatter of *numbers* partial sums on every rank, and the all-gather back."""
    size_bytes = numbers * dtype.size_bytes
    return RowExchange(
        Collective(CollectiveKind.REDUCE_SCATTER, size_bytes, dtype),
        Collective(CollectiveKind.ALL_GATHER, size_bytes, dtype),
    )


def sent_numbers(plan: ShardingPlan, shards: Iterable[Shard], *, samples: int) -> int:
    """Numbers that *shards* send to a rank with *samples* samples.

    Where frequent rows are on every rank, a vector is sent only to a sample that
    needs a row of the piece.
    """
    if plan.frequent_rows:
        return sum(
            round(samples * min(1.0, plan.lookups_of_shards[shard])) * shard.width
            for shard in shards
        )
    return sum(vectors_of(plan, shard, samples) * shard.width for shard in shards)


def vectors_of(plan: ShardingPlan, shard: Shard, samples: int) -> int:
    """Vectors that *samples* samples get from *shard*; without a sum only those of its rows."""
    table = plan.tables[shard.table]
    if table.is_pooled:
        return samples * table.features
    return round(samples * plan.lookups_of_shards[shard])


def sent_by_members(exchange: Collective, count: int) -> NDArray[np.int64]:
    """Bytes that each of *count* members sends to others in the forward exchange."""
    if exchange.byte_matrix is not None:
        rows: NDArray[np.int64] = np.array(exchange.byte_matrix, dtype=np.int64)
        sent: NDArray[np.int64] = rows.sum(axis=1)
        return sent
    # A reduction keeps the share of the member itself.
    return np.full(count, exchange.size_bytes * (count - 1) // count, dtype=np.int64)


def empty_exchanges(like: Exchanges) -> Exchanges:
    """The exchanges that *like* has, all of them empty, for plans that differ in sizes only."""
    nothing = Collective(CollectiveKind.ALL_TO_ALL, size_bytes=0)
    by_rows = None if like.by_rows is None else build_row_exchange(0, like.pooled.dtype)
    return Exchanges(nothing, nothing, nothing, by_rows, has_direct=like.has_direct)


def _of_hosts(
    plan: ShardingPlan, local_batch: int, dtype: DType, *, is_added: bool
) -> tuple[HostExchange, ...]:
    per_host = plan.ranks_per_host or plan.rank_count
    hosts = plan.rank_count // per_host
    # What a rank hands on, and what it fetches back.
    widths = np.zeros((2, plan.rank_count))
    across = np.zeros(hosts)
    for (host, place, _), shards in shards_by_host(plan).items():
        numbers = shards[0].width * plan.tables[place].features
        across[host] += numbers * (_asked_ratio(plan, shards) if plan.frequent_rows else 1)
        for shard in shards:
            ratio = _asked_ratio(plan, [shard])
            widths[:, shard.rank] += numbers * np.array([ratio if plan.frequent_rows else 1, ratio])
    vector_bytes = local_batch * dtype.size_bytes
    between = _there_and_back(vector_bytes * across, dtype)
    if is_added:
        # The host's ranks reduce its sums for the whole batch, each for its own rail.
        batch = plan.rank_count * local_batch
        rows = [build_row_exchange(batch * round(of_host), dtype) for of_host in across.tolist()]
        return tuple(HostExchange(one.sums, one.gradients, *between, 0) for one in rows)
    # Each rank of a host is handed partial sums for its own samples and those of the ranks at its
    # place in the other hosts.
    return tuple(
        HostExchange(
            _there_and_back(vector_bytes * hosts * sent, dtype)[0],
            _there_and_back(vector_bytes * hosts * fetched, dtype)[1],
            *between,
            summed_width=round(float(sent.sum())),
        )
        for sent, fetched in widths.reshape(2, hosts, per_host).swapaxes(0, 1)
    )


def shards_by_host(plan: ShardingPlan) -> dict[tuple[int, int, int], list[Shard]]:
    """Pieces that are summed inside a host, by host, table and first column."""
    found: dict[tuple[int, int, int], list[Shard]] = {}
    for shard in plan.shards:
        if shard.table in plan.summed_places:
            columns = (plan.host_of(shard.rank), shard.table, shard.first_column)
            found.setdefault(columns, []).append(shard)
    return found


def _asked_ratio(plan: ShardingPlan, shards: Sequence[Shard]) -> float:
    """The share of samples that need a row of *shards*, pieces of the same columns of a table.

    Where frequent rows are on every rank, those are the samples that need another row.
    """
    table = plan.tables[shards[0].table]
    draws = max(table.pooling_factor / table.features, 1.0)
    of_sample = sum(plan.lookups_of_shards[shard] for shard in shards) / table.features
    return float(1 - (1 - min(1.0, of_sample / draws)) ** draws)


def _there_and_back(
    sent_bytes: NDArray[np.int64] | NDArray[np.float64], dtype: DType
) -> tuple[Collective, Collective]:
    """Each rank sends its *sent_bytes* to every other, and the same the other way round."""
    columns = np.rint(sent_bytes).astype(np.int64)[:, np.newaxis]
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
