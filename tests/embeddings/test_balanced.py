"""The balanced placement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embeddings.balanced import PlacementRule, build_balanced_plan, exchange_weight
from embeddings.plan import ShardingKind
from embeddings.plan_memory import check_fits
from embeddings.table import EmbeddingTable

tables = st.lists(
    st.builds(
        EmbeddingTable,
        st.just("t"),
        rows=st.integers(1, 10**6),
        width=st.sampled_from([1, 16, 64, 128]),
        pooling_factor=st.floats(0, 100),
    ),
    min_size=1,
    max_size=20,
)


@given(tables=tables, rank_count=st.integers(1, 20), max_shard=st.integers(1000, 10**9))
def test_every_table_is_placed_exactly_once(tables, rank_count, max_shard):
    rule = PlacementRule(max_shard_bytes=max_shard, data_parallel_below_bytes=5000)
    plan = build_balanced_plan(tables, rank_count=rank_count, rule=rule)
    # The plan checks itself; here: nothing is both copied and placed, nothing is left out.
    placed = {shard.table for shard in plan.shards}
    assert placed.isdisjoint(plan.data_parallel)
    assert placed | set(plan.data_parallel) == set(range(len(tables)))


def test_a_hot_table_is_split_by_rows_and_a_wide_one_by_columns():
    hot = EmbeddingTable("hot", 1000, 128, pooling_factor=100)
    wide = EmbeddingTable("wide", 1000, 4096)
    cold = [EmbeddingTable(f"cold{place}", 1000, 128) for place in range(7)]
    plan = build_balanced_plan([hot, *cold], rank_count=4)
    assert plan.kinds[0] is ShardingKind.ROW_WISE
    assert len({shard.rank for shard in plan.shards if shard.table == 0}) == 4
    assert build_balanced_plan([wide, *cold], rank_count=4).kinds[0] is ShardingKind.COLUMN_WISE


def test_no_few_ranks_do_all_the_work():
    # Lookups of the multi-hot Criteo tables, one of them with 100 a sample.
    lookups = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
    tables = [EmbeddingTable(f"t{p}", 10**6, 128, float(n)) for p, n in enumerate(lookups)]
    rule = PlacementRule(exchange_weight=exchange_weight(64, 8))
    plan = build_balanced_plan(tables, rank_count=64, rule=rule)
    assert all(plan.shards_of_rank)
    numbers = [
        sum(plan.table_of(shard).pooling_factor * shard.width for shard in shards)
        for shards in plan.shards_of_rank
    ]
    assert max(numbers) < 3 * sum(numbers) / 64


def test_tables_that_fit_only_by_rows_are_spread_by_rows():
    # 3 x 10 MB in 4 ranks with 8 MB each: no rank can hold a table.
    tables = [EmbeddingTable(f"t{place}", 10**7 // 4, 1) for place in range(3)]
    rule = PlacementRule(room_bytes=8 * 10**6)
    plan = build_balanced_plan(tables, rank_count=4, rule=rule)
    check_fits(plan, room_bytes=8 * 10**6, optimizer="sgd")


def test_a_piece_above_the_limit_is_split_by_rows():
    table = EmbeddingTable("long", 1000, 16)
    # 1000 x 16 x 4 bytes = 64,000: three pieces of at most 25,000 would do, four have less to do.
    rule = PlacementRule(max_shard_bytes=25_000)
    plan = build_balanced_plan([table], rank_count=4, rule=rule)
    assert plan.kinds[0] is ShardingKind.ROW_WISE
    assert sorted(shard.rows for shard in plan.shards) == [250] * 4
