"""Exchanges: how many bytes every rank sends every other for the embedding tables.

Row i of a matrix is what rank i sends. A piece of a table needs the indices
of the whole batch and gives back one vector a sample as wide as the piece;
pieces by rows each give a partial sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.collective import Collective, CollectiveKind
from embeddings.plan import ShardingPlan
from perfmodel.base.dtypes import DType

LENGTH_BYTES = DType.INT32.size_bytes


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The three all-to-alls of an iteration."""

    indices: Collective
    pooled: Collective
    gradients: Collective


def build_exchanges(
    plan: ShardingPlan,
    *,
    local_batch: int,
    index_dtype: DType,
    exchange_dtype: DType,
    first_rank_width: int = 0,
) -> Exchanges:
    """The exchanges of *plan* when every rank has *local_batch* samples.

    Rank 0 sends *first_rank_width* numbers a sample more, and gets gradients of them.
    """
    pooled_bytes = np.zeros(plan.rank_count, dtype=np.int64)
    index_bytes = np.zeros(plan.rank_count, dtype=np.int64)
    for rank, shards in enumerate(plan.shards_of_rank):
        width = sum(shard.width for shard in shards) + (0 if rank else first_rank_width)
        # Rounded a piece, so that the sum does not depend on the order of pieces.
        lookups = sum(round(local_batch * plan.table_of(shard).pooling_factor) for shard in shards)
        pooled_bytes[rank] = local_batch * width * exchange_dtype.size_bytes
        index_bytes[rank] = (
            lookups * index_dtype.size_bytes + local_batch * len(shards) * LENGTH_BYTES
        )
    to_others = ~np.eye(plan.rank_count, dtype=bool)
    pooled = pooled_bytes[:, np.newaxis] * to_others
    indices = index_bytes[np.newaxis, :] * to_others
    return Exchanges(
        indices=_all_to_all(indices, index_dtype),
        pooled=_all_to_all(pooled, exchange_dtype),
        gradients=_all_to_all(pooled.T, exchange_dtype),
    )


def empty_exchanges() -> Exchanges:
    """Exchanges of nothing, to stand for those of a plan that is not chosen yet."""
    nothing = Collective(CollectiveKind.ALL_TO_ALL, size_bytes=0)
    return Exchanges(nothing, nothing, nothing)


def _all_to_all(matrix: NDArray[np.int64], dtype: DType) -> Collective:
    return Collective(
        CollectiveKind.ALL_TO_ALL,
        size_bytes=int(matrix.sum(axis=1).max()),
        dtype=dtype,
        byte_matrix=tuple(tuple(row) for row in matrix.tolist()),
    )
