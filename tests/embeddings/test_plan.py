"""Sharding plans are complete or refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.distribution import UNIFORM, Zipf, popularity_of
from embeddings.plan import Shard, ShardingKind, ShardingPlan, is_regular
from embeddings.popularity import HOT_ROWS, RowRange, has_hot_row, hot_rows
from embeddings.sharding_task import spread_rows
from embeddings.table import EmbeddingTable, TableMemory
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
        ((), "got 0 placements for 80 elements"),
        ((Shard(0, 0, 0, 10, 0, 4),), "got 40 placements"),
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
    [("rows", 0, 1), ("width", 0, 1), ("rows", 10**12 + 1, 10**12),
     ("width", 2**24 + 1, 2**24), ("cached_ratio", 0.0, 1.0), ("cached_ratio", 1.5, 0.5)],
)  # fmt: skip
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
    asked = plan.by_rank([piece.pooling_factor for piece in plan.pieces.tables])
    assert asked.sum() == pytest.approx(20.0)
    assert asked.tolist() == [piece.pooling_factor for piece in ranks]


@given(exponent=st.floats(0.3, 2.0), rows=st.integers(2, 10**7), share=st.floats(0.01, 0.999))
def test_the_window_of_a_cache_touches_as_many_rows_as_it_holds(exponent, rows, share):
    popularity = popularity_of(Zipf(exponent), rows)
    capacity = share * popularity.rows
    window = popularity.window_draws(capacity)
    assert popularity.distinct_rows(window) == pytest.approx(capacity, rel=1e-9)


@pytest.mark.parametrize(
    "shard",
    [Shard(0, 0, 0, 10, 1, 8), Shard(0, 0, 0, 10, -1, 8), Shard(0, 0, 1, 10, 0, 8),
     Shard(0, 0, -1, 10, 0, 8), Shard(0, 0, 0, 0, 0, 8), Shard(0, 0, 0, 10, 0, 0),
     Shard(0, -1, 0, 10, 0, 8), Shard(-1, 0, 0, 10, 0, 8)],
)  # fmt: skip
def test_a_piece_lies_inside_its_table_on_a_rank_that_exists(shard):
    with pytest.raises(PlanError) as error:
        _plan(shard)
    # What is wrong with the piece is said, and not that the table is missing as well.
    assert ": 1 fault" in str(error.value)


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [(Shard(0, 0, 0, 4, 0, 4), Shard(0, 0, 3, 4, 3, 4), True),
     (Shard(0, 0, 0, 4, 0, 4), Shard(0, 0, 4, 4, 0, 4), False),
     (Shard(0, 0, 0, 4, 0, 4), Shard(0, 0, 0, 4, 4, 4), False),
     (Shard(0, 0, 2, 1, 2, 1), Shard(0, 0, 0, 9, 0, 9), True)],
)  # fmt: skip
def test_pieces_overlap_where_they_share_rows_and_columns(first, second, is_shared):
    assert first.overlaps(second) is second.overlaps(first) is is_shared


# Four quarters of 10 x 8, one of them as two.
QUARTERS = (
    Shard(0, 0, 0, 5, 0, 4), Shard(0, 1, 5, 5, 0, 4), Shard(0, 2, 0, 5, 4, 4),
    Shard(0, 3, 5, 5, 4, 2), Shard(0, 0, 5, 5, 6, 2),
)  # fmt: skip


def test_pieces_that_are_not_cut_straight_through_are_compared_two_by_two():
    assert not is_regular(TABLE, QUARTERS)
    assert _plan(*QUARTERS).kinds[0] is ShardingKind.GRID
    for place in range(5):
        with pytest.raises(PlanError, match="do not add up"):
            _plan(*QUARTERS[:place], *QUARTERS[place + 1 :])
    twice = Shard(0, 2, 4, 2, 3, 1)
    with pytest.raises(PlanError, match="ranks 0 and 2 overlap"):
        _plan(*QUARTERS, twice)


@pytest.mark.parametrize(
    ("shards", "is_straight"),
    [
        (QUARTERS[:3], False),
        (((0, 0, 0, 10, 0, 8),), True),
        (((0, 0, 0, 10, 0, 7),), False),
        (((0, 0, 0, 9, 0, 8),), False),
        (((0, 0, 0, 10, 1, 7),), False),
        (((0, 0, 4, 6, 0, 8), (0, 0, 0, 4, 0, 8)), True),
        (((0, 0, 4, 6, 0, 8), (0, 0, 0, 5, 0, 8)), False),
        (((0, 0, 0, 4, 0, 4), (0, 0, 4, 6, 0, 4), (0, 0, 0, 10, 4, 4)), True),
        (((0, 0, 0, 4, 0, 4), (0, 0, 4, 6, 0, 3), (0, 0, 0, 10, 4, 4)), False),
        ((), False),
    ],
)
def test_columns_each_cut_by_rows_are_known_at_a_glance(shards, is_straight):
    assert is_regular(TABLE, [Shard(*shard) for shard in shards]) is is_straight


def test_by_rows_over_one_host_of_several_is_told_apart():
    rows = (Shard(0, 2, 0, 4, 0, 8), Shard(0, 3, 4, 6, 0, 8))
    hosts = {1: ShardingKind.ROW_WISE, 2: ShardingKind.TABLE_ROW_WISE, 4: ShardingKind.ROW_WISE}
    for per_host, kind in hosts.items():
        plan = ShardingPlan((TABLE,), 4, rows, ranks_per_host=per_host)
        assert plan.kinds == (kind,)
        assert [plan.host_of(rank) for rank in range(4)] == [rank // per_host for rank in range(4)]
    assert [_plan(*rows).host_of(rank) for rank in (0, 3)] == [0, 0]


@pytest.mark.parametrize(
    ("more", "fault"),
    [({"frequent_rows": (1, 2)}, "one number per table, got 2"),
     ({"summed_in_host": (1,)}, "must name tables that exist"),
     ({"summed_in_host": (-1,)}, "must name tables that exist"),
     ({"summed_in_host": (0,), "ranks_per_host": 3}, "got 4 ranks and 3 per host"),
     ({"data_parallel": (1,)}, "must name tables that exist, got 1"),
     ({"data_parallel": (-1,)}, "must name tables that exist, got -1")],
)  # fmt: skip
def test_what_is_said_of_tables_is_said_of_those_there_are(more, fault):
    whole = (Shard(0, 1, 0, 10, 0, 8),)
    with pytest.raises(PlanError, match=fault):
        ShardingPlan((TABLE,), 4, whole, **more)
    ShardingPlan((TABLE,), 4, whole, frequent_rows=(1,), summed_in_host=(0,), ranks_per_host=2)
    ShardingPlan((TABLE,), 4, whole, ranks_per_host=3)


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_frequent_rows_are_copied_unless_they_are_none_or_all(count):
    plan = ShardingPlan((TABLE,), 4, (Shard(0, 1, 0, 10, 0, 8),), frequent_rows=(count,))
    is_split = count in (1, 9)
    assert [table.rows for table in plan.copied_tables] == [count] * is_split
    # Uniform rows are asked for alike: the others draw the rest of 5 lookups.
    assert plan.held_tables[0].pooling_factor == pytest.approx(5 - 0.5 * count * is_split)


@pytest.mark.parametrize(
    ("pooling", "is_pooled", "is_summed"),
    [(1.0, True, False), (1.5, True, True), (2.0, True, True), (2.0, False, False)],
)
def test_the_parts_of_a_table_share_its_lookups_and_their_spread(pooling, is_pooled, is_summed):
    table = EmbeddingTable("t", 10, 8, pooling, pooling_deviation=3.0, is_pooled=is_pooled)
    frequent, rare = table.split_by_popularity(4)
    # Four of ten rows that are asked for alike.
    assert (frequent.rows, rare.rows) == (4, 10)
    assert frequent.pooling_factor == pytest.approx(0.4 * pooling)
    assert rare.pooling_factor == pytest.approx(0.6 * pooling)
    assert frequent.pooling_deviation == pytest.approx(1.2)
    assert rare.pooling_deviation == pytest.approx(1.8)
    # Of a sample that asks for one row one part alone has it: nothing to sum.
    assert frequent.is_pooled is rare.is_pooled is is_summed


def test_a_piece_by_rows_takes_its_share_of_lookups_and_of_their_spread():
    table = EmbeddingTable("t", 10, 8, 5.0, pooling_deviation=3.0)
    piece = table.piece(first_row=6, rows=4, width=2)
    assert (piece.rows, piece.width, piece.whole, piece.first_row) == (4, 2, table, 0)
    assert (piece.pooling_factor, piece.pooling_deviation) == pytest.approx((2.0, 1.2))
    assert piece.popularity.rows == 4
    whole = table.piece(first_row=0, rows=10, width=2)
    assert (whole.pooling_deviation, whole.piece_of) == (3.0, None)


def test_pieces_without_hot_rows_are_alike_and_said_to_lie_past_the_end():
    table = EmbeddingTable("t", 6400, 8, 5.0, distribution=Zipf(1.1))
    # One of 64 hot rows in every hundred.
    found = table.key_rows(np.arange(0, 6400, 10), np.full(640, 10)).tolist()
    assert found.count(6400) == 640 - 64
    assert all(row in (place, 6400) for row, place in zip(found, range(0, 6400, 10), strict=True))
    assert table.key_rows(np.array([0]), np.array([6400])).tolist() == [0]


@pytest.mark.parametrize(("ratio", "device_bytes"), [(1.0, 40), (0.5, 20), (0.33, 14), (0.01, 1)])
def test_a_cache_has_room_for_its_share_of_bytes_and_no_part_of_one(ratio, device_bytes):
    table = EmbeddingTable("t", 10, 1, memory=TableMemory.HOST_CACHED, cached_ratio=ratio)
    assert (table.size_bytes, table.device_bytes) == (40, device_bytes)
    assert replace(table, memory=TableMemory.DEVICE).device_bytes == 40


def test_fewer_than_64_rows_are_dealt_by_their_places_all_the_same():
    # Bits reversed, 0, 32, 16, 48, 8 and 40 of 64, are in this order among themselves.
    assert tuple(hot_rows(6, 0)) == (0, 3, 2, 5, 1, 4)
    assert tuple(hot_rows(6, 2)) == (2, 5, 4, 1, 3, 0)
    assert tuple(hot_rows(640, 5)[:4]) == (5, 325, 165, 485)
    assert len(hot_rows(640, 5)) == HOT_ROWS == len(set(hot_rows(64, 9)))


@pytest.mark.parametrize(
    ("first_row", "rows", "is_hot"),
    [(5, 1, True), (6, 4, False), (6, 9, False), (6, 10, True), (14, 1, False), (15, 1, True)],
)
def test_a_range_has_a_hot_row_from_its_first_to_before_its_end(first_row, rows, is_hot):
    # 64 of 640 rows: every tenth, from the fifth on.
    assert has_hot_row(RowRange(first_row, rows, 640, 5)) == is_hot
