"""Named sharders, and whether their plans fit."""

from __future__ import annotations

import pytest

from embeddings.distribution import Zipf
from embeddings.plan import Shard, ShardingPlan
from embeddings.plan_memory import bytes_by_rank, check_fits
from embeddings.sharders import (
    PAPER_SHARDERS,
    SHARDERS,
    ShardingTask,
    build_named_plan,
    norm_lookup_cost,
    place_greedily,
    size_lookup_cost,
)
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.errors import PlanError

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
    [
        ("naive", [0, 1, 0, 1]),
        ("naive_chunk", [0, 0, 1, 1]),
        # Sizes 1000, 900, 20, 10: a to 0, c to 1, d to 1 (900), b to 1 (920).
        ("size_greedy", [0, 1, 1, 1]),
        # Lookups 50, 40, 2, 1: b to 0, c to 1, d to 1 (40), a to 1 (42).
        ("lookup_greedy", [1, 0, 1, 1]),
    ],
)
def test_sharders_place_as_their_names_say(name, ranks):
    assert _ranks(build_named_plan(name, _task(*FOUR))) == ranks


def test_every_paper_sharder_is_there_and_repeats_itself():
    assert len(PAPER_SHARDERS) == 7
    for name in SHARDERS:
        assert build_named_plan(name, _task(*FOUR)) == build_named_plan(name, _task(*FOUR))


def test_an_unknown_sharder_is_refused():
    with pytest.raises(PlanError, match="must be one of naive"):
        build_named_plan("magic", _task(*FOUR))


def test_skewed_tables_count_less_when_repeats_are_left_out():
    even = EmbeddingTable("e", 10**6, 8, 10.0)
    skewed = EmbeddingTable("s", 10**6, 8, 10.0, distribution=Zipf(1.2))
    assert norm_lookup_cost(skewed, _task(even)) < norm_lookup_cost(even, _task(even))
    # 8 x 10 x log10(10**6).
    assert size_lookup_cost(even, _task(even)) == pytest.approx(480)


def test_a_full_rank_is_passed_over_and_a_full_machine_is_an_error():
    # 32 bytes a row: 3200 bytes each; room for one a rank.
    tables = [EmbeddingTable(f"t{place}", 100, 8, 9.0 - place) for place in range(3)]
    assert _ranks(build_named_plan("lookup_greedy", _task(*tables[:2], room=3200))) == [0, 1]
    with pytest.raises(PlanError, match="no rank has room"):
        build_named_plan("lookup_greedy", _task(*tables, room=3200))


def test_a_dear_table_is_split_by_the_planner_like_sharder():
    plan = build_named_plan(
        "torchrec_like", _task(EmbeddingTable("hot", 100, 128, 100.0), *FOUR, ranks=4)
    )
    assert len([shard for shard in plan.shards if shard.table == 0]) > 1


def test_optimizer_state_counts_towards_memory():
    plan = build_named_plan("naive", _task(EmbeddingTable("a", 1000, 8), ranks=1))
    # 1000 x 8 x 4 = 32,000 bytes; row-wise state 4 bytes a row; Adam two more of each.
    sizes = [
        int(bytes_by_rank(plan, optimizer=optimizer)[0])
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    ]
    assert sizes == [32_000, 36_000, 64_000, 96_000]


def test_a_host_table_takes_only_its_cache():
    table = EmbeddingTable("h", 1000, 8, memory=TableMemory.HOST_CACHED, cached_ratio=0.25)
    plan = build_named_plan("naive", _task(table, ranks=1))
    assert bytes_by_rank(plan, optimizer="sgd").tolist() == [8_000]


def test_a_plan_that_does_not_fit_says_where_what_and_what_to_do():
    big = EmbeddingTable("user_id", 2**26, 128)
    small = EmbeddingTable("day", 7, 128)
    plan = ShardingPlan(
        (small, big), 4, (Shard(0, 1, 0, 7, 0, 128), Shard(1, 3, 0, 2**26, 0, 128)), name="greedy-7"
    )
    check_fits(plan, room_bytes=32 * GIB, optimizer="sgd")
    with pytest.raises(PlanError) as error:
        check_fits(plan, room_bytes=16 * GIB, optimizer="sgd")
    # 2**26 x 128 x 4 bytes = 32 GiB.
    assert "plan 'greedy-7' does not fit: rank 3 needs 32.0 GiB for tables, has 16.0 GiB" in str(
        error.value
    )
    assert "table 'user_id', table-wise, 32.0 GiB" in str(error.value)
    assert "row-wise or column-wise over more ranks" in str(error.value)


def test_a_tie_goes_to_the_rank_with_less_memory_used_then_to_the_lower_one():
    task = _task(*FOUR, ranks=3, room=100)
    # 5 to rank 0 (a tie of all, the lowest), 4 to 1, 4 to 2; work 5, 4, 4 and used 1, 9, 2:
    # the last goes to rank 2, which used less than rank 1.
    assert place_greedily([5, 4, 4, 1], [1, 9, 2, 1], task) == [0, 1, 2, 2]
    # Nothing used more: the lower one of ranks 1 and 2.
    assert place_greedily([5, 4, 4, 1], [1, 2, 2, 1], task) == [0, 1, 2, 1]


def test_of_pieces_that_cost_the_same_the_first_is_placed_first():
    task = _task(*FOUR, ranks=2, room=100)
    assert place_greedily([3, 3, 3], [1, 1, 1], task) == [0, 1, 0]
