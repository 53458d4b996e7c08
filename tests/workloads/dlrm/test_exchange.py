"""Bytes that ranks exchange for embedding tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.collective import Collective, CollectiveKind
from embeddings.distribution import Zipf
from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import build_named_plan
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.graph.audit import check_job
from perfmodel.stacks.capabilities import RowSums
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.exchange import (
    Exchanges,
    RowExchange,
    as_exchanged,
    build_exchanges,
    sent_by_members,
)
from perfmodel.workloads.jobs import build_job


def _exchanges(
    plan: ShardingPlan, local_batch: int, row_sums: RowSums = RowSums.REDUCE_SCATTER
) -> Exchanges:
    return build_exchanges(
        plan,
        local_batch=local_batch,
        index_dtype=DType.INT64,
        exchange_dtype=DType.FP16,
        row_sums=row_sums,
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
    task = ShardingTask(
        tuple(tables), rank_count, UNKNOWN_ROOM_BYTES, 2**16, max_shard_bytes=max_shard
    )
    plan = build_named_plan("balanced", task)
    exchanges = _exchanges(plan, 16, RowSums.ALL_TO_ALL)
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


def test_partial_sums_are_added_in_the_host_and_travel_along_the_rails():
    # Two hosts of two ranks; table a by rows over host 0, table b by rows over host 1.
    tables = (EmbeddingTable("a", 10, 4, 3.0), EmbeddingTable("b", 10, 8, 1.0))
    shards = (
        Shard(0, 0, 0, 5, 0, 4), Shard(0, 1, 5, 5, 0, 4),
        Shard(1, 2, 0, 5, 0, 8), Shard(1, 3, 5, 5, 0, 8),
    )  # fmt: skip
    plan = ShardingPlan(tables, 4, shards, ranks_per_host=2, summed_in_host=(0, 1))
    exchanges = _exchanges(plan, 5)
    assert not exchanges.has_direct
    first, second = exchanges.of_hosts
    # Host 0 reduces the sums of 20 samples x 4 numbers x 2 bytes, and gathers their gradients.
    assert first.inside == Collective(CollectiveKind.REDUCE_SCATTER, 160, DType.FP16)
    assert second.inside_back == Collective(CollectiveKind.ALL_GATHER, 320, DType.FP16)
    assert exchanges.by_rows is None
    assert first.summed_width == 0
    assert _exchanges(plan, 5).of_hosts[0].across == first.across
    exchanges = _exchanges(plan, 5, RowSums.ALL_TO_ALL)
    first, second = exchanges.of_hosts
    # Rank 0 hands rank 1 partial sums of 2 hosts x 5 samples x 4 numbers x 2 bytes.
    assert first.inside.byte_matrix == ((0, 80), (80, 0))
    assert second.inside.byte_matrix == ((0, 160), (160, 0))
    # Of three draws from two equal halves at least one is in a half for 1 - 1/8 of the samples; of
    # one draw for 1/2 of them. Only their gradients are fetched: 7/8 of 80 and half of 160.
    assert first.inside_back.byte_matrix == ((0, 70), (70, 0))
    assert second.inside_back.byte_matrix == ((0, 80), (80, 0))
    # Host 0 sends 5 samples x 4 numbers x 2 bytes along each rail, host 1 twice as much.
    assert first.across.byte_matrix == second.across.byte_matrix == ((0, 40), (80, 0))
    assert first.across_back.byte_matrix == ((0, 80), (40, 0))
    # Directly every rank would send its partial sums to the three others.
    direct = _exchanges(replace(plan, summed_in_host=()), 5)
    assert direct.pooled.byte_matrix[0] == (0, 40, 40, 40)


def test_a_framework_without_reductions_sums_rows_inside_hosts_first():
    tables = (EmbeddingTable("a", 40, 4), EmbeddingTable("b", 10, 8))
    shards = (*(Shard(0, rank, 10 * rank, 10, 0, 4) for rank in range(4)), Shard(1, 0, 0, 10, 0, 8))
    plan = ShardingPlan(tables, 4, shards, ranks_per_host=2)
    found = as_exchanged(plan, RowSums.ALL_TO_ALL)
    assert found.summed_in_host == (0,)
    exchanges = _exchanges(found, 5, RowSums.ALL_TO_ALL)
    # 2 hosts x 5 samples x 4 numbers x 2 bytes in each host; then a host's 5 x 4 x 2 to the other.
    assert [one.inside.byte_matrix for one in exchanges.of_hosts] == [((0, 80), (80, 0))] * 2
    assert exchanges.of_hosts[0].across.byte_matrix == ((0, 40), (40, 0))
    # Only table b is sent directly: 5 x 8 x 2.
    assert exchanges.pooled.byte_matrix == ((0, 80, 80, 80), *[(0, 0, 0, 0)] * 3)
    alone = replace(plan, ranks_per_host=None)
    assert as_exchanged(alone, RowSums.ALL_TO_ALL) is alone
    assert as_exchanged(plan, RowSums.REDUCE_SCATTER) is plan


def test_rows_over_all_ranks_are_summed_by_one_reduction_and_over_a_few_sent_like_vectors():
    # Table a by rows over all three ranks, b by rows over two of them, c whole.
    tables = tuple(
        EmbeddingTable(name, 30, width) for name, width in zip("abc", (4, 8, 16), strict=True)
    )
    shards = (
        *(Shard(0, rank, 10 * rank, 10, 0, 4) for rank in range(3)),
        *(Shard(1, rank, 15 * rank, 15, 0, 8) for rank in range(2)),
        Shard(2, 2, 0, 30, 0, 16),
    )
    plan = ShardingPlan(tables, 3, shards)
    found = _exchanges(plan, 5)
    # 3 ranks x 5 samples x 4 numbers x 2 bytes of partial sums on every rank.
    assert found.by_rows == RowExchange(
        Collective(CollectiveKind.REDUCE_SCATTER, 120, DType.FP16),
        Collective(CollectiveKind.ALL_GATHER, 120, DType.FP16),
    )
    # 5 samples x 2 bytes x 8 numbers of b from ranks 0 and 1, x 16 of c from rank 2.
    assert found.pooled.byte_matrix == ((0, 80, 80), (80, 0, 80), (160, 160, 0))
    assert found.has_direct
    # A rank keeps a third of what it reduces.
    assert sent_by_members(found.by_rows.sums, 3).tolist() == [80, 80, 80]
    alike = _exchanges(plan, 5, RowSums.ALL_TO_ALL)
    assert alike.by_rows is None
    assert alike.pooled.byte_matrix == ((0, 120, 120), (120, 0, 120), (200, 200, 0))
    only = ShardingPlan(tables[:1], 3, shards[:3])
    assert not _exchanges(only, 5).has_direct


def test_a_table_with_fewer_rows_than_ranks_is_summed_with_the_others_by_rows():
    tables = (EmbeddingTable("a", 30, 4), EmbeddingTable("b", 2, 8), EmbeddingTable("c", 1, 8))
    plan = build_named_plan("row_wise", ShardingTask(tables, 3, UNKNOWN_ROOM_BYTES, 15))
    found = _exchanges(plan, 5)
    assert found.by_rows is not None
    # a and b: 15 samples x (4 + 8) numbers x 2 bytes; c has one row and nothing to sum.
    assert found.by_rows.sums.size_bytes == 360
    assert found.pooled.size_bytes == 2 * 5 * 8 * 2


def test_only_rare_rows_travel_where_frequent_ones_are_everywhere():
    table = EmbeddingTable("t", 1000, 8, 1.0, distribution=Zipf(1.0))
    shards = (Shard(0, 0, 0, 500, 0, 8), Shard(0, 1, 500, 500, 0, 8))
    plan = ShardingPlan((table,), 2, shards, frequent_rows=(133,))
    matrix = np.array(_exchanges(plan, 1000).pooled.byte_matrix)
    # 27 % of 1,000 samples ask for a rare row, half of them on each rank: 8 numbers x 2 bytes.
    assert matrix.sum() == pytest.approx(1000 * 0.269 * 16, rel=0.02)


def test_a_job_with_sums_in_hosts_is_sound_and_sends_less_between_hosts():
    spec = load_workload("dlrm_mlperf", ["embedding.rows=[40000, 50000, 60000]", "batch=64"])
    shards = tuple(
        Shard(place, 2 * (place % 2) + half, table.rows // 2 * half, table.rows // 2, 0, 128)
        for place, table in enumerate(spec.embedding.tables())
        for half in range(2)
    )
    plan = ShardingPlan(
        spec.embedding.tables(), 4, shards, ranks_per_host=2, summed_in_host=(0, 1, 2)
    )
    job = build_job(spec, rank_count=4, ranks_per_host=2, plan=plan)
    check_job(job)
    assert sorted(group.name for group in job.groups) == [
        "dense", "embedding exchange", "host 0", "host 1", "rail 0", "rail 1",
    ]  # fmt: skip


def test_rare_rows_travel_in_two_steps_too():
    table = EmbeddingTable("t", 1000, 8, 1.0, distribution=Zipf(1.0))
    shards = tuple(Shard(0, rank, 250 * rank, 250, 0, 8) for rank in range(4))
    plan = ShardingPlan(
        (table,), 4, shards, ranks_per_host=2, summed_in_host=(0,), frequent_rows=(133,)
    )
    exchanges = _exchanges(plan, 1000)
    assert not exchanges.has_direct
    # 27 % of 1,000 samples ask for a rare row: half of them in each host, 8 numbers x 2 bytes.
    across = np.array(exchanges.of_hosts[0].across.byte_matrix)
    assert across[0, 1] == pytest.approx(1000 * 0.269 / 2 * 16, rel=0.05)
    # Inside the host a rank hands on what it holds for the samples of both hosts.
    inside = np.array(exchanges.of_hosts[0].inside.byte_matrix)
    assert inside.sum() == pytest.approx(2 * across[0, 1], rel=0.01)


def test_tables_without_pooling_send_every_vector_from_the_rank_that_has_its_row():
    # 6 rows per sample; whole on rank 0, or half of the rows on each rank.
    table = EmbeddingTable("s", 100, 4, 6.0, is_pooled=False)
    whole = ShardingPlan((table,), 2, (Shard(0, 0, 0, 100, 0, 4),))
    halves = ShardingPlan(
        (table,), 2, (Shard(0, 0, 0, 50, 0, 4), Shard(0, 1, 50, 50, 0, 4)), summed_in_host=(0,)
    )
    # 5 samples x 6 rows x 4 numbers x 2 bytes.
    assert _exchanges(whole, 5).pooled.byte_matrix == ((0, 240), (0, 0))
    split = _exchanges(halves, 5)
    assert split.pooled.byte_matrix == ((0, 120), (120, 0))
    # Nothing is summed, over all ranks or inside hosts.
    assert split.by_rows is None
    assert split.of_hosts == ()


def test_features_that_share_a_table_get_a_vector_each():
    table = EmbeddingTable("shared", 100, 4, 6.0, features=3)
    assert (table.vectors(5), table.sample_numbers) == (15, 12)
    plan = ShardingPlan((table,), 2, (Shard(0, 0, 0, 100, 0, 4),))
    assert _exchanges(plan, 5).pooled.byte_matrix == ((0, 120), (0, 0))
    by_rows = ShardingPlan((table,), 2, (Shard(0, 0, 0, 50, 0, 4), Shard(0, 1, 50, 50, 0, 4)))
    found = _exchanges(by_rows, 5).by_rows
    assert found is not None
    # 10 samples x 3 features x 4 numbers x 2 bytes.
    assert found.sums.size_bytes == 240
