"""The balanced placement."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from embeddings.balanced import find_candidates
from embeddings.distribution import Zipf
from embeddings.plan import ShardingKind, ShardingPlan
from embeddings.sharders import build_named_plan
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask
from embeddings.table import EmbeddingTable
from tests.embeddings.holding import bytes_by_rank

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


def _plan(tables: list[EmbeddingTable], rank_count: int, **details: int) -> ShardingPlan:
    where = {"room_bytes": UNKNOWN_ROOM_BYTES, "batch_size": 2**16} | details
    return build_named_plan("balanced", ShardingTask(tuple(tables), rank_count, **where))


@given(tables=tables, rank_count=st.integers(1, 20), max_shard=st.integers(1000, 10**9))
def test_every_table_is_placed_exactly_once(tables, rank_count, max_shard):
    limits = {"max_shard_bytes": max_shard, "data_parallel_below_bytes": 5000}
    plan = _plan(tables, rank_count, **limits)
    # The plan checks itself; here: nothing is both copied and placed, nothing is left out.
    placed = {shard.table for shard in plan.shards}
    assert placed.isdisjoint(plan.data_parallel)
    assert placed | set(plan.data_parallel) == set(range(len(tables)))


def test_a_hot_table_is_split_by_rows_and_a_wide_one_by_columns():
    hot = EmbeddingTable("hot", 1000, 128, pooling_factor=100)
    wide = EmbeddingTable("wide", 1000, 4096)
    cold = [EmbeddingTable(f"cold{place}", 1000, 128) for place in range(7)]
    plan = _plan([hot, *cold], 4)
    assert plan.kinds[0] is ShardingKind.ROW_WISE
    assert len({shard.rank for shard in plan.shards if shard.table == 0}) == 4
    assert _plan([wide, *cold], 4).kinds[0] is ShardingKind.COLUMN_WISE


def test_no_few_ranks_do_all_the_work():
    # Lookups of the multi-hot Criteo tables, one of them with 100 a sample.
    lookups = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
    tables = [EmbeddingTable(f"t{p}", 10**6, 128, float(n)) for p, n in enumerate(lookups)]
    plan = _plan(tables, 64)
    assert all(plan.shards_of_rank)
    numbers = [
        sum(plan.table_of(shard).pooling_factor * shard.width for shard in shards)
        for shards in plan.shards_of_rank
    ]
    assert max(numbers) < 3 * sum(numbers) / 64


def test_vectors_are_dealt_as_evenly_as_lookups():
    # One rank may look ten times as much up as others if all send the same; 26 vectors on 13
    # ranks are two each, however the lookups lie.
    lookups = [20.0, 1.0] * 13
    tables = [EmbeddingTable(f"t{p}", 10**6, 64, n) for p, n in enumerate(lookups)]
    plan = _plan(tables, 13, min_width=64, ranks_per_host=1)
    widths = [sum(shard.width for shard in shards) for shards in plan.shards_of_rank]
    assert max(widths) == min(widths) == 128


def test_small_tables_are_copied_where_their_vectors_cost_more_than_their_gradients():
    small = [EmbeddingTable(f"small{place}", 100, 128) for place in range(20)]
    large = [EmbeddingTable(f"large{place}", 10**6, 128) for place in range(4)]

    def copied(batch_size: int) -> tuple[int, ...]:
        return _plan([*small, *large], 16, batch_size=batch_size, ranks_per_host=1).data_parallel

    # The gradients of 20 x 100 rows are those of 2,000 samples, however large the batch is.
    assert copied(2**20) == tuple(range(20))
    assert copied(64) == ()


def test_few_busy_tables_are_summed_inside_their_hosts():
    tables = [EmbeddingTable(f"t{place}", 10**6, 64, 100.0) for place in range(4)]
    plan = _plan(tables, 16, batch_size=2**18, ranks_per_host=4)
    assert plan.summed_in_host == (0, 1, 2, 3)
    # A table a host, by rows over its four ranks.
    hosts = [
        {plan.host_of(shard.rank) for shard in plan.shards if shard.table == t} for t in range(4)
    ]
    assert sorted(hosts, key=min) == [{0}, {1}, {2}, {3}]
    assert len(plan.shards) == 16
    # Hosts that do not divide the ranks are none.
    odd = _plan(tables, 16, batch_size=2**18, ranks_per_host=5)
    assert odd.summed_in_host == ()


def test_tables_that_fit_only_by_rows_are_spread_by_rows():
    # 3 x 10 MB in 4 ranks with 8 MB each: no rank can hold a table.
    tables = [EmbeddingTable(f"t{place}", 10**7 // 4, 1) for place in range(3)]
    plan = _plan(tables, 4, room_bytes=8 * 10**6)
    assert max(bytes_by_rank(plan, optimizer="sgd")) <= 8 * 10**6


def test_a_piece_above_the_limit_is_split_by_rows():
    table = EmbeddingTable("long", 1000, 16)
    # 1000 x 16 x 4 bytes = 64,000: three pieces of at most 25,000 would do, four have less to do.
    plan = _plan([table], 4, max_shard_bytes=25_000)
    assert plan.kinds[0] is ShardingKind.ROW_WISE
    assert sorted(shard.rows for shard in plan.shards) == [250] * 4


def test_a_larger_job_gets_no_candidate_that_a_smaller_one_does_not_get():
    skewed = [
        EmbeddingTable(f"z{p}", 300 * 7**p, 64, 9.0 * p + 1, distribution=Zipf(1.05))
        for p in range(5)
    ]
    even = [EmbeddingTable(f"u{p}", 900 * 5**p, 64, 40.0 / (p + 1)) for p in range(5)]
    small = ShardingTask((*skewed, *even), 8, UNKNOWN_ROOM_BYTES, batch_size=4096, ranks_per_host=4)
    more_rows = tuple(replace(table, rows=2 * table.rows) for table in small.tables)

    def found(task):
        return {(one.cuts, one.per_place, one.places.tobytes()) for one in find_candidates(task)}

    assert found(replace(small, tables=more_rows)) <= found(small)


def test_a_table_with_fewer_rows_than_ranks_is_cut_by_its_rows():
    tables = (EmbeddingTable("few", 3, 64, 90.0), EmbeddingTable("many", 10**6, 64))
    task = ShardingTask(tables, 8, UNKNOWN_ROOM_BYTES, batch_size=4096, ranks_per_host=4)
    plans = [one.to_plan(task) for one in find_candidates(task)]
    assert max(len({shard.first_row for shard in plan.shards_of_table[0]}) for plan in plans) == 3
