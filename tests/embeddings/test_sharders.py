"""Named sharders, and whether their plans fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embeddings.distribution import Zipf, observe
from embeddings.framework_sharders import (
    PlacementOption,
    even_pieces,
    list_options,
    piece_seconds,
    place_options,
)
from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.sharders import (
    PAPER_SHARDERS,
    SHARDERS,
    build_named_plan,
    norm_lookup_cost,
    size_lookup_cost,
)
from embeddings.sharding_task import ShardingTask, place_greedily, spread_over, spread_rows
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.errors import PlanError
from tests.embeddings.holding import bytes_by_rank

GIB = 2**30


def _task(*tables: EmbeddingTable, ranks: int = 2, room: int = 10**12) -> ShardingTask:
    return ShardingTask(tables, ranks, room, 1024)


def _ranks(plan: ShardingPlan) -> list[int]:
    return [shard.rank for shard in sorted(plan.shards)]


FOUR = (
    EmbeddingTable("a", 1000, 8, 1.0),
    EmbeddingTable("b", 10, 8, 50.0),
    EmbeddingTable("c", 900, 8, 40.0),
    EmbeddingTable("d", 20, 8, 2.0),
)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("naive", [0, 1, 0, 1]), ("naive_chunk", [0, 0, 1, 1]),
     # Sizes 1000, 900, 20, 10: a to 0, c to 1, d to 1 (900), b to 1 (920).
     ("size_greedy", [0, 1, 1, 1]),
     # Lookups 50, 40, 2, 1: b to 0, c to 1, d to 1 (40), a to 1 (42).
     ("lookup_greedy", [1, 0, 1, 1])],
)  # fmt: skip
def test_sharders_place_as_their_names_say(name, ranks):
    assert _ranks(build_named_plan(name, _task(*FOUR))) == ranks


def test_every_paper_sharder_is_there_and_repeats_itself():
    assert len(PAPER_SHARDERS) == 7
    for name in SHARDERS:
        assert build_named_plan(name, _task(*FOUR)) == build_named_plan(name, _task(*FOUR))
    with pytest.raises(PlanError, match="must be one of naive"):
        build_named_plan("magic", _task(*FOUR))


def test_a_full_rank_is_passed_over_and_a_full_machine_is_an_error():
    # 32 bytes a row: 3200 bytes each; room for one a rank.
    tables = [EmbeddingTable(f"t{place}", 100, 8, 9.0 - place) for place in range(3)]
    assert _ranks(build_named_plan("lookup_greedy", _task(*tables[:2], room=3200))) == [0, 1]
    with pytest.raises(PlanError, match="no rank has room"):
        build_named_plan("lookup_greedy", _task(*tables, room=3200))


def test_the_planner_splits_a_table_that_is_dearer_than_a_ranks_share():
    plan = build_named_plan(
        "torchrec", _task(EmbeddingTable("hot", 100, 128, 100.0), *FOUR, ranks=4)
    )
    assert plan.kinds[0] is ShardingKind.ROW_WISE


def test_the_planner_sums_tables_by_rows_of_a_host_inside_it():
    tables = [EmbeddingTable(f"t{place}", 10**6, 128, 50.0) for place in range(4)]
    task = replace(_task(*tables, ranks=8, room=10**12), ranks_per_host=4)
    plan = build_named_plan("torchrec", task)
    for place in plan.summed_in_host:
        assert plan.kinds[place] is ShardingKind.TABLE_ROW_WISE
    assert plan.summed_in_host


CRITEO = (
    (40000000, 3), (39060, 2), (17295, 1), (7424, 2), (20265, 6), (3, 1), (7122, 1), (1543, 1),
    (63, 1), (40000000, 7), (3067956, 3), (405282, 8), (10, 1), (2209, 6), (11938, 9), (155, 5),
    (4, 1), (976, 1), (14, 1), (40000000, 12), (40000000, 100), (40000000, 27), (590152, 10),
    (12973, 3), (108, 1), (36, 1),
)  # fmt: skip


def _criteo(ranks: int, per_host: int) -> ShardingTask:
    tables = tuple(
        EmbeddingTable(f"t{place}", rows, 128, float(lookups))
        for place, (rows, lookups) in enumerate(CRITEO)
    )
    return ShardingTask(tables, ranks, 150 * 10**9, 55296, "adagrad", per_host)


def test_lookups_are_even_on_one_host_and_small_tables_stand_everywhere():
    plan = build_named_plan("hugectr_auto", _criteo(8, 8))
    # As HugeCTR's own plan for 8 x B200 has it.
    assert plan.data_parallel == (3, 5, 6, 7, 8, 12, 13, 15, 16, 17, 18, 24, 25)
    pieces = [shard.table for shard in plan.shards]
    assert (pieces.count(20), pieces.count(21), pieces.count(19)) == (4, 2, 1)
    asked = plan.by_rank([piece.pooling_factor for piece in plan.pieces.tables])
    assert max(asked) < 1.2 * sum(asked) / 8
    assert not plan.summed_in_host


def test_tables_go_to_hosts_and_by_rows_over_the_ranks_of_a_host():
    plan = build_named_plan("hugectr_auto", _criteo(64, 8))
    assert set(plan.summed_in_host) | set(plan.data_parallel) == set(range(26))
    for place in plan.summed_in_host:
        hosts = {plan.host_of(shard.rank) for shard in plan.shards if shard.table == place}
        ranks = {shard.rank for shard in plan.shards if shard.table == place}
        assert len(ranks) == 8 * len(hosts)
    asked = plan.by_rank([piece.pooling_factor for piece in plan.pieces.tables])
    assert max(asked) < 1.5 * sum(asked) / 64


def test_rows_that_every_rank_expects_stand_on_every_rank():
    table = EmbeddingTable("t", 1000, 8, 1.0, distribution=Zipf(1.0))
    task = replace(_task(table, ranks=4, room=10**9), batch_size=4000)
    plan = build_named_plan("hugectr_hybrid", task)
    # 1,000 samples a rank: 1000 / (7.485 i) >= 1 up to the 133rd row.
    assert plan.frequent_rows == (133,)
    frequent, rare = plan.copied_tables[0], plan.held_tables[0]
    assert frequent.pooling_factor + rare.pooling_factor == pytest.approx(1.0)
    # H(133) / H(1000) = 5.471 / 7.485.
    assert frequent.pooling_factor == pytest.approx(0.731, abs=0.002)
    asked = sum(plan.table_of(shard).pooling_factor for shard in plan.shards)
    assert asked == pytest.approx(rare.pooling_factor)


sizes = st.lists(
    st.tuples(st.integers(1, 10**8), st.sampled_from([1, 8, 16, 64, 128, 256])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=250, deadline=None)
@given(
    shapes=sizes,
    ranks=st.integers(1, 32),
    slack=st.floats(1.0, 3.0),
    optimizer=st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "adam"]),
)
def test_a_plan_is_found_wherever_rows_over_ranks_fit(shapes, ranks, slack, optimizer):
    tables = tuple(
        EmbeddingTable(f"t{place}", rows, width, 1.0 + place % 7)
        for place, (rows, width) in enumerate(shapes)
    )
    task = ShardingTask(tables, ranks, 1, 4096, optimizer)
    needed = max(bytes_by_rank(build_named_plan("row_wise", task), optimizer=optimizer))
    room = int(needed * slack)
    for name in ("balanced", "row_wise"):
        plan = build_named_plan(name, replace(task, room_bytes=room))
        assert max(bytes_by_rank(plan, optimizer=optimizer)) <= room


def test_optimizer_state_counts_towards_memory():
    plan = build_named_plan("naive", _task(EmbeddingTable("a", 1000, 8), ranks=1))
    # 1000 x 8 x 4 = 32,000 bytes; row-wise state 4 bytes a row; Adam two more of each.
    sizes = [
        bytes_by_rank(plan, optimizer=optimizer)[0]
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    ]
    assert sizes == [32_000, 36_000, 64_000, 96_000]
    # Of a table in host memory only its cache counts.
    table = EmbeddingTable("h", 1000, 8, memory=TableMemory.HOST_CACHED, cached_ratio=0.25)
    plan = build_named_plan("naive", _task(table, ranks=1))
    assert bytes_by_rank(plan, optimizer="sgd") == [8_000]


def test_a_tie_goes_to_the_rank_with_less_memory_used_then_to_the_lower_one():
    task = _task(*FOUR, ranks=3, room=100)
    # 5 to rank 0 (a tie of all, the lowest), 4 to 1, 4 to 2; work 5, 4, 4 and used 1, 9, 2:
    # the last goes to rank 2, which used less than rank 1.
    assert place_greedily([5, 4, 4, 1], [1, 9, 2, 1], task) == [0, 1, 2, 2]
    # Nothing used more: the lower one of ranks 1 and 2.
    assert place_greedily([5, 4, 4, 1], [1, 2, 2, 1], task) == [0, 1, 2, 1]
    # Of pieces that cost the same the first is placed first.
    assert place_greedily([3, 3, 3], [1, 1, 1], replace(task, rank_count=2)) == [0, 1, 0]


@pytest.mark.parametrize(("tables", "ranks"), [((), 1), (FOUR, 0)])
def test_a_task_has_tables_and_ranks(tables, ranks):
    with pytest.raises(PlanError, match="at least one table and one rank"):
        ShardingTask(tables, ranks, 1, 1)


@pytest.mark.parametrize(("per_host", "hosts"), [(None, 1), (1, 7), (3, 3), (4, 2), (7, 1), (8, 1)])
def test_ranks_fill_hosts_the_last_perhaps_in_part(per_host, hosts):
    assert replace(_task(*FOUR, ranks=7), ranks_per_host=per_host).host_count == hosts


@pytest.mark.parametrize(("room", "pieces"), [(12_800, 1), (12_799, 2), (6_400, 2), (6_399, 4)])
def test_tables_are_halved_until_two_pieces_fit_beside_each_other(room, pieces):
    # 100 rows of 64 bytes, and a rank's share of lookups each.
    task = _task(*(EmbeddingTable(f"t{n}", 100, 16, 1.0) for n in range(4)), ranks=4)
    found = even_pieces(replace(task, room_bytes=room), range(4), 2, 0.0)
    assert len(found) == 4 * pieces


@pytest.mark.parametrize(("lookups", "pieces"), [(4.3, 1), (5.0, 2), (50.0, 3)])
def test_tables_are_halved_until_lookups_are_even_and_not_beyond_ranks(lookups, pieces):
    # Shares are (lookups + 8) / 3; a tenth above is let be: 4.4 for 4.3 + 7.7, 4.77 for 5.
    tables = [EmbeddingTable("t", 100, 16, lookups), EmbeddingTable("u", 100, 16, 8.0)]
    task = _task(*tables, ranks=3, room=10**9)
    assert [one.table for one in even_pieces(task, (0, 1), 2, 0.0)].count(0) == pieces


def test_a_piece_of_a_host_is_dealt_over_its_ranks():
    piece = Shard(4, 0, 10, 5, 2, 8)
    assert spread_over(piece, place=2, count=2) == [
        Shard(4, 4, 10, 2, 2, 8),
        Shard(4, 5, 12, 3, 2, 8),
    ]
    # Fewer rows than ranks: one each.
    assert [one.rank for one in spread_over(piece._replace(rows=3), place=1, count=8)] == [8, 9, 10]


def test_what_a_piece_takes_in_the_planners_eyes_by_hand():
    table = EmbeddingTable("t", 1000, 256, 10.0)
    task = ShardingTask((table,), 8, 10**9, 100, ranks_per_host=4)
    sent = 100 * 256 * 4

    def seconds(way, count, of=task):
        return piece_seconds(of, table, way, count)

    def compute_s(lookups, width):
        return 3 * (lookups * (8 + 4 * width) + 100 * width * 4) / 897e9

    one_host, alone = replace(task, ranks_per_host=8), replace(task, rank_count=1)
    whole = compute_s(1000, 256)
    assert seconds(ShardingKind.TABLE_WISE, 1) == pytest.approx(whole + 2 * sent / 12.5e9)
    assert seconds(ShardingKind.TABLE_WISE, 1, one_host) == pytest.approx(whole + 2 * sent / 600e9)
    assert seconds(ShardingKind.TABLE_WISE, 1, replace(alone, ranks_per_host=1)) == pytest.approx(
        whole
    )
    half = compute_s(1000, 128)
    assert seconds(ShardingKind.COLUMN_WISE, 2) == pytest.approx(half + sent / 12.5e9)
    assert seconds(ShardingKind.ROW_WISE, 8) == pytest.approx(
        compute_s(125, 256) + 2 * sent / 12.5e9
    )
    # By rows of a host: sums inside it, and of two hosts' eight ranks each sends a quarter.
    inside = 2 * (sent / 600e9 + sent / 4 / 12.5e9)
    assert seconds(ShardingKind.TABLE_ROW_WISE, 4) == pytest.approx(compute_s(250, 256) + inside)


@pytest.mark.parametrize(
    ("rows", "width", "ranks", "per_host", "ways"),
    [(1000, 128, 1, 1, {"table_wise": (1, 1)}),
     (1000, 256, 1, 1, {"table_wise": (1, 1), "column_wise": (2, 1)}),
     (1000, 255, 8, 8, {"table_wise": (1, 1), "row_wise": (1, 8)}),
     (1000, 257, 8, 8, {"table_wise": (1, 1), "row_wise": (1, 8)}),
     (8, 128, 8, 8, {"table_wise": (1, 1), "row_wise": (1, 8)}),
     (7, 128, 8, 8, {"table_wise": (1, 1)}),
     (7, 128, 8, 4, {"table_wise": (1, 1), "table_row_wise": (1, 4)}),
     (4, 128, 8, 4, {"table_wise": (1, 1), "table_row_wise": (1, 4)}),
     (3, 128, 8, 4, {"table_wise": (1, 1)}),
     (9, 128, 8, 1, {"table_wise": (1, 1), "row_wise": (1, 8)}),
     (9, 128, 8, 3, {"table_wise": (1, 1), "row_wise": (1, 8)}),
     (3, 128, 4, 2, {"table_wise": (1, 1), "table_row_wise": (1, 2)})],
)  # fmt: skip
def test_the_ways_that_are_open_to_a_table(rows, width, ranks, per_host, ways):
    task = ShardingTask((EmbeddingTable("t", rows, width),), ranks, 10**9, 64, "sgd", per_host)
    found = list_options(task, 0)
    assert {one.way.value: (one.columns, one.rows) for one in found} == ways
    for one in found:
        assert one.piece_bytes == -(-rows // one.rows) * (width // one.columns) * 4
        assert one.count == one.columns * one.rows
    totals = [one.seconds * one.count for one in found]
    assert totals == sorted(totals)


def test_the_planner_fills_ranks_to_the_last_byte():
    # Two tables of 64 bytes a row; each fits a rank exactly, or not by a byte.
    tables = [EmbeddingTable(f"t{place}", 1, 16) for place in range(2)]
    assert _ranks(build_named_plan("torchrec", _task(*tables, room=64))) == [0, 1]
    with pytest.raises(PlanError, match="no rank has room for a piece of table 't0'"):
        build_named_plan("torchrec", _task(*tables, room=63))
    rows = [EmbeddingTable("r", 2, 16, 1000.0)]
    plan = build_named_plan("torchrec", _task(*rows, room=64))
    assert plan.kinds[0] is ShardingKind.ROW_WISE


@pytest.mark.parametrize(("size", "is_copied"), [(10_000_000 - 64, True), (10_000_000, False)])
def test_small_tables_are_copied_but_never_all_of_them(size, is_copied):
    small = EmbeddingTable("small", size // 64, 16)
    large = EmbeddingTable("large", 10**6, 16)
    plan = build_named_plan("hugectr_auto", _task(small, large))
    assert plan.data_parallel == ((0,) if is_copied else ())
    alone = build_named_plan("hugectr_auto", _task(small, large, ranks=1))
    assert alone.data_parallel == ()
    # The largest of them, of equals the last, is held.
    every = build_named_plan("hugectr_auto", _task(FOUR[1], FOUR[0], FOUR[0], FOUR[3]))
    assert every.data_parallel == (0, 1, 3)


def test_tables_that_every_rank_expects_whole_are_copied_but_for_the_last():
    tiny = [EmbeddingTable(f"t{place}", 4, 8) for place in range(3)]
    task = replace(_task(*tiny), batch_size=8)
    # Four samples a rank expect each of four rows exactly once.
    plan = build_named_plan("hugectr_hybrid", task)
    assert plan.frequent_rows == (4, 4, 4)
    assert plan.data_parallel == (0, 1)
    fewer = build_named_plan("hugectr_hybrid", replace(task, batch_size=7))
    assert (fewer.frequent_rows, fewer.data_parallel) == ((0, 0, 0), ())


@pytest.mark.parametrize(
    ("per_host", "is_summed"), [(None, False), (1, False), (2, True), (4, False)]
)
def test_rows_over_all_ranks_are_summed_in_hosts_of_several(per_host, is_summed):
    task = replace(_task(FOUR[0], FOUR[3], ranks=4), ranks_per_host=per_host)
    plan = build_named_plan("hugectr_hybrid", replace(task, batch_size=1))
    assert plan.summed_in_host == ((0, 1) if is_summed else ())


def _option(
    place: int, way: ShardingKind, seconds: float, size: int, count: int = 1
) -> PlacementOption:
    return PlacementOption(place, way, 1, count, seconds, size)


def test_the_planner_gives_the_next_piece_to_the_least_busy_rank_with_room():
    proposal = [
        _option(0, ShardingKind.TABLE_WISE, 10.0, 64),
        _option(1, ShardingKind.TABLE_WISE, 5.0, 6400),
        _option(2, ShardingKind.TABLE_WISE, 1.0, 3200),
    ]
    task = _task(*FOUR[:3])
    # The third would go to rank 1, where 6,400 + 3,200 bytes are too many.
    assert place_options(replace(task, room_bytes=8000), proposal) == ([[0], [1], [0]], 11.0)
    assert place_options(replace(task, room_bytes=9600), proposal) == ([[0], [1], [1]], 10.0)


def test_the_planner_keeps_pieces_of_a_host_together_behind_those_of_all_ranks():
    proposal = [
        _option(0, ShardingKind.TABLE_ROW_WISE, 3.0, 100, 2),
        _option(1, ShardingKind.TABLE_ROW_WISE, 2.0, 100, 2),
        _option(2, ShardingKind.ROW_WISE, 1.0, 50, 4),
        _option(3, ShardingKind.TABLE_WISE, 4.0, 10),
    ]
    task = replace(_task(*FOUR, ranks=4, room=160), ranks_per_host=2)
    # By rows 1 everywhere; the table to rank 0 (5); then the host of ranks 2 and 3 (4 each); the
    # last to it as well, were there room: to ranks 0 and 1 (7 and 3).
    ranks, busiest = place_options(task, proposal)
    assert ranks == [[2, 3], [0, 1], [0, 1, 2, 3], [0]]
    assert busiest == 7.0
    with pytest.raises(PlanError, match="no rank has room for a piece of table 'b'"):
        place_options(replace(task, room_bytes=159), proposal)
    with pytest.raises(PlanError, match="row-wise tables do not fit"):
        place_options(replace(task, room_bytes=49), [replace(proposal[2], place=0)])
    assert place_options(replace(task, room_bytes=50), [replace(proposal[2], place=0)])[1] == 1.0


def test_tables_with_fewer_rows_than_ranks_go_to_the_next_ranks_in_turn():
    sizes = (2, 2, 7, 3, 2)
    tables = [EmbeddingTable(f"t{place}", rows, 4) for place, rows in enumerate(sizes)]
    found = spread_rows(tables, rank_count=5, left_out=(3,))
    ranks = [[shard.rank for shard in found if shard.table == place] for place in range(5)]
    # One with rows for all begins at rank 0, and the next after it there again.
    assert ranks == [[0, 1], [2, 3], [0, 1, 2, 3, 4], [], [0, 1]]
    assert [shard.rows for shard in found if shard.table == 2] == [1, 1, 2, 1, 2]


def test_what_sharders_count_by_hand():
    even = EmbeddingTable("e", 10**6, 8, 10.0)
    skewed = replace(even, distribution=Zipf(1.2))
    assert norm_lookup_cost(skewed, _task(even)) < norm_lookup_cost(even, _task(even))
    # 8 x 10 x log10(10**6).
    assert size_lookup_cost(even, _task(even)) == pytest.approx(480)
    # One row that 1,024 samples ask for three times each: 8 numbers of it are read a batch.
    table = EmbeddingTable("t", 1, 8, 3.0)
    assert norm_lookup_cost(table, _task(table)) == pytest.approx(8 / 1024)
    # Below ten rows, as for ten: log10 is 1.
    assert size_lookup_cost(table, _task(table)) == pytest.approx(24)
    assert size_lookup_cost(replace(table, rows=100), _task(table)) == pytest.approx(48)


def test_a_table_whose_observed_rows_are_all_frequent_leaves_nothing_to_look_up():
    seen = EmbeddingTable("seen", 10**6, 8, 2.0, distribution=observe(np.array([1, 1, 2, 3])))
    other = EmbeddingTable("other", 10**6, 8)
    plan = build_named_plan("hugectr_hybrid", _task(seen, other, ranks=4))

    # Three rows occur, and every rank expects each of them in every batch.
    assert plan.frequent_rows[0] == 3
    assert sum(plan.lookups_of_shards[s] for s in plan.shards if s.table == 0) == 0


def test_tables_too_large_for_a_rank_are_sliced_by_columns():
    # 100 rows x 8 numbers x 4 bytes and 10 rows: 3,200 and 320 bytes.
    tables = (EmbeddingTable("large", 100, 8), EmbeddingTable("small", 10, 8))
    whole = build_named_plan("size_even", _task(*tables, room=3200))
    assert _ranks(whole) == [0, 1]
    # Halves of 1,600 fit, then of 800 on four ranks; below that nothing can be done.
    halves = build_named_plan("size_even", _task(*tables, room=3199))
    assert [shard.width for shard in halves.shards_of_table[0]] == [4, 4]
    quarters = build_named_plan("size_even", _task(*tables, ranks=4, room=1400))
    assert [shard.width for shard in quarters.shards_of_table[0]] == [2, 2, 2, 2]
    crowded = build_named_plan("size_even", _task(*tables, ranks=4, room=10))
    assert crowded.shards_of_table[0]


def test_pieces_need_room_for_their_buffers_too():
    table = EmbeddingTable("t", 100, 8, 3.0)
    task = replace(_task(table, table), number_bytes=6, key_bytes=16)
    # 3,200 bytes of weights, 1,024 samples x 8 numbers x 6 bytes and x 3 lookups x 16 bytes.
    need = 3200 + 1024 * (8 * 6 + 3 * 16)
    assert task.needs == [need, need]
    # A copy has a dense gradient and a bucket of its size beside it.
    assert task.copied_bytes(table) == 3 * 3200
    for name in ("size_greedy", "balanced", "torchrec", "hugectr_auto"):
        plan = build_named_plan(name, replace(task, room_bytes=need))
        assert sorted(len(held) for held in plan.shards_of_rank)[0] >= 1
    with pytest.raises(PlanError, match="no rank has room"):
        build_named_plan("size_greedy", replace(task, room_bytes=need - 1))
