"""Bytes that ranks exchange for embedding tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embeddings.balanced import PlacementRule, build_balanced_plan
from embeddings.plan import Shard, ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.workloads.dlrm.exchange import build_exchanges


def _exchanges(plan: ShardingPlan, local_batch: int):
    return build_exchanges(
        plan, local_batch=local_batch, index_dtype=DType.INT64, exchange_dtype=DType.FP16
    )


def test_bytes_of_two_tables_by_hand():
    tables = (EmbeddingTable("a", 10, 4, 3.0), EmbeddingTable("b", 10, 8))
    plan = ShardingPlan(
        tables, 2, (Shard(0, 0, 0, 10, 0, 4), Shard(1, 1, 0, 10, 0, 8)), name="by hand"
    )
    exchanges = _exchanges(plan, 5)
    # Rank 0 sends 5 samples x 4 numbers x 2 bytes, rank 1 sends 5 x 8 x 2.
    assert exchanges.pooled.byte_matrix == ((0, 40), (80, 0))
    assert exchanges.gradients.byte_matrix == ((0, 80), (40, 0))
    # To rank 0 go 5 x 3 indices of 8 bytes and 5 lengths of 4; to rank 1 5 x 1 and 5.
    assert exchanges.indices.byte_matrix == ((0, 60), (140, 0))
    assert exchanges.pooled.size_bytes == 80


@given(
    pooling=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    rank_count=st.integers(2, 6),
    max_shard=st.sampled_from([2**30, 2000]),
)
def test_gradients_return_the_way_the_vectors_came(pooling, rank_count, max_shard):
    tables = [EmbeddingTable(f"t{place}", 100, 64, pool) for place, pool in enumerate(pooling)]
    rule = PlacementRule(max_shard_bytes=max_shard)
    plan = build_balanced_plan(tables, rank_count=rank_count, rule=rule)
    exchanges = _exchanges(plan, 16)
    pooled = np.array(exchanges.pooled.byte_matrix)
    gradients = np.array(exchanges.gradients.byte_matrix)
    assert (pooled == gradients.T).all()
    # What all ranks send is what all ranks receive, and nobody sends to itself.
    assert pooled.sum(axis=1).sum() == pooled.sum(axis=0).sum()
    assert (np.diag(pooled) == 0).all()
    # Every rank gets a vector of every piece it does not hold, for each of its samples.
    width = sum(shard.width for shard in plan.shards)
    own = [sum(shard.width for shard in held) for held in plan.shards_of_rank]
    assert pooled.sum(axis=0).tolist() == [16 * 2 * (width - held) for held in own]
