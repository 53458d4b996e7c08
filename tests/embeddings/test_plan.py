"""Sharding plans are complete or refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.balanced import spread_rows
from embeddings.distribution import UNIFORM, Zipf, popularity_of
from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.popularity import HOT_ROWS
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError

TABLE = EmbeddingTable("a", 10, 8, pooling_factor=5.0)


def _plan(*shards: Shard, data_parallel: tuple[int, ...] = ()) -> ShardingPlan:
    return ShardingPlan((TABLE,), 4, shards, data_parallel)


@pytest.mark.parametrize(
    ("shards", "kind"),
    [
        ((Shard(0, 1, 0, 10, 0, 8),), ShardingKind.TABLE_WISE),
        ((Shard(0, 0, 0, 4, 0, 8), Shard(0, 1, 4, 6, 0, 8)), ShardingKind.ROW_WISE),
        ((Shard(0, 0, 0, 10, 0, 4), Shard(0, 1, 0, 10, 4, 4)), ShardingKind.COLUMN_WISE),
        (
            tuple(Shard(0, r + 2 * c, 5 * r, 5, 4 * c, 4) for r in range(2) for c in range(2)),
            ShardingKind.GRID,
        ),
    ],
)
def test_the_kind_follows_from_the_pieces(shards, kind):
    assert _plan(*shards).kinds[0] is kind


def test_a_data_parallel_table_has_no_pieces():
    assert _plan(data_parallel=(0,)).kinds[0] is ShardingKind.DATA_PARALLEL
    with pytest.raises(PlanError, match="has no shards"):
        _plan(Shard(0, 0, 0, 10, 0, 8), data_parallel=(0,))


def test_a_piece_by_rows_is_asked_for_its_share():
    plan = _plan(Shard(0, 0, 0, 4, 0, 8), Shard(0, 1, 4, 6, 0, 8))
    # 4 of 10 rows: 4 / 10 of 5 lookups.
    assert [plan.table_of(shard).pooling_factor for shard in plan.shards] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("shards", "fault"),
    [
        ((), "got 0 places for 80 numbers"),
        ((Shard(0, 0, 0, 10, 0, 4),), "got 40 places"),
        ((Shard(0, 4, 0, 10, 0, 8),), "rank 0 to 3, got 4"),
        ((Shard(1, 0, 0, 10, 0, 8),), "table 0 to 0, got 1"),
        ((Shard(0, 0, 0, 11, 0, 8),), "inside 10 x 8"),
        ((Shard(0, 0, 0, 5, 0, 8), Shard(0, 1, 4, 5, 0, 8)), "ranks 0 and 1 overlap"),
    ],
)
def test_a_plan_that_is_not_whole_is_refused(shards, fault):
    with pytest.raises(PlanError) as error:
        _plan(*shards)
    assert fault in str(error.value)


def test_the_piece_with_the_hottest_row_is_asked_for_most():
    table = EmbeddingTable("t", 1000, 8, 10.0, distribution=Zipf(1.2))
    shards = tuple(Shard(0, rank, 250 * rank, 250, 0, 8) for rank in range(4))
    plan = ShardingPlan((table,), 4, shards)
    asked = [plan.table_of(shard).pooling_factor for shard in shards]
    assert sum(asked) == pytest.approx(10.0)
    # One piece has the hottest row, and the next ones are dealt over the others.
    hottest = table.popularity.hottest_share
    assert max(asked) > 10 * hottest
    assert max(asked) > 1.3 * sorted(asked)[-2] > sorted(asked)[-2] > 0.1 * 10.0
    rows = [plan.table_of(shard).popularity.rows for shard in shards]
    assert rows == pytest.approx([250.0] * 4)


@given(rows=st.integers(1, 200), cuts=st.integers(1, 9), exponent=st.floats(0, 3))
def test_pieces_by_rows_share_all_lookups_and_hold_no_more_rows_than_they_have(
    rows, cuts, exponent
):
    table = EmbeddingTable("t", rows, 4, 7.0, distribution=Zipf(exponent))
    bounds = [rows * piece // cuts for piece in range(cuts + 1)]
    pieces = [
        table.piece(first_row=first, rows=after - first, width=4)
        for first, after in pairwise(bounds)
        if after > first
    ]
    assert sum(piece.pooling_factor for piece in pieces) == pytest.approx(7.0)
    for piece in pieces:
        assert piece.popularity.rows <= piece.rows * (1 + 1e-9) + (rows > 64)


def test_numbers_a_sample_gets_are_those_of_tables_that_others_hold():
    tables = (TABLE, EmbeddingTable("b", 10, 3))
    plan = ShardingPlan(tables, 4, (Shard(1, 0, 0, 10, 0, 3),), data_parallel=(0,))
    assert plan.received_width == 3


@pytest.mark.parametrize("number", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("field", ["pooling_factor", "pooling_deviation"])
def test_a_table_is_asked_finitely_often(field, number):
    with pytest.raises(PlanError, match="must be from 0 to"):
        EmbeddingTable("a", 10, 8, **{field: number})
    assert EmbeddingTable("a", 10, 8, **{field: 0.0})


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("rows", 0, 1),
        ("width", 0, 1),
        ("rows", 10**12 + 1, 10**12),
        ("width", 2**24 + 1, 2**24),
        ("cached_ratio", 0.0, 1.0),
        ("cached_ratio", 1.5, 0.5),
    ],
)
def test_a_table_has_rows_numbers_and_a_share_that_is_cached(field, wrong, right):
    sizes = {"rows": 10, "width": 8}
    with pytest.raises(PlanError, match=field.replace("_", " ")):
        EmbeddingTable("a", **{**sizes, field: wrong})
    assert EmbeddingTable("a", **{**sizes, field: right})


@pytest.mark.parametrize("exponent", [0.0, 1.05])
def test_pieces_that_are_alike_are_made_once_and_are_what_their_shards_are(exponent):
    of = Zipf(exponent) if exponent else UNIFORM
    table = EmbeddingTable("skewed", 100_000, 8, pooling_factor=20.0, distribution=of)
    plan = ShardingPlan((table,), 512, tuple(spread_rows([table], rank_count=512)))
    # 100,000 rows over 512 ranks are 195 or 196 each; 64 rows are dealt one by one.
    assert len(plan.pieces.tables) <= 2 + (HOT_ROWS if exponent else 0)
    ranks = [plan.table_of(shard) for shard in plan.shards]
    assert [tables[0] for tables in plan.tables_of_rank] == ranks
    asked = plan.pieces.by_rank([piece.pooling_factor for piece in plan.pieces.tables])
    assert asked.sum() == pytest.approx(20.0)
    assert asked.tolist() == [piece.pooling_factor for piece in ranks]


@given(exponent=st.floats(0.3, 2.0), rows=st.integers(2, 10**7), share=st.floats(0.01, 0.999))
def test_the_window_of_a_cache_touches_as_many_rows_as_it_holds(exponent, rows, share):
    popularity = popularity_of(Zipf(exponent), rows)
    capacity = share * popularity.rows
    window = popularity.window_draws(capacity)
    assert popularity.distinct_rows(window) == pytest.approx(capacity, rel=1e-9)
