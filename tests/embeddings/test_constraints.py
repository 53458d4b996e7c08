"""Tables with constraints are placed as their file allows, whoever made the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.sharders import SHARDERS, build_named_plan
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask, find_broken
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel.base.errors import PlanError

BIG, SMALL = EmbeddingTable("big", 1000, 128), EmbeddingTable("small", 10, 64)
WHOLE = ShardingPlan((BIG, SMALL), 4, (Shard(0, 0, 0, 1000, 0, 128), Shard(1, 1, 0, 10, 0, 64)))


def with_tables(*tables: EmbeddingTable) -> ShardingPlan:
    return replace(WHOLE, tables=tables)


def conform(plan: ShardingPlan) -> ShardingPlan:
    task = ShardingTask(
        plan.tables, plan.rank_count, UNKNOWN_ROOM_BYTES, 64, ranks_per_host=plan.ranks_per_host
    )
    return task.plan(plan.shards, plan.name)


def test_a_plan_that_keeps_all_constraints_stays_as_it_is():
    plan = with_tables(replace(BIG, sharding_types=("table_wise",), ranks=(0, 2)), SMALL)
    assert conform(plan) == plan


@pytest.mark.parametrize(
    ("kind", "pieces"), [("row_wise", 4), ("column_wise", 4), ("data_parallel", 0)]
)
def test_a_table_is_cut_in_the_way_that_is_allowed(kind, pieces):
    plan = with_tables(replace(BIG, sharding_types=(kind,)), SMALL)
    assert find_broken(plan) == (0,)
    found = conform(plan)
    assert found.kinds[0] is ShardingKind(kind)
    assert len(found.shards_of_table[0]) == pieces
    assert found.shards_of_table[1] == WHOLE.shards_of_table[1]
    assert not find_broken(found)


def test_a_table_moves_to_the_emptiest_of_its_ranks():
    # Rank 1 holds the small table, so rank 3 of the two that are allowed is emptier.
    found = conform(with_tables(replace(BIG, ranks=(1, 3)), SMALL))
    assert [shard.rank for shard in found.shards_of_table[0]] == [3]


def test_rows_go_to_the_ranks_of_one_host_where_only_that_is_allowed():
    plan = replace(
        with_tables(replace(BIG, sharding_types=("table_row_wise",)), SMALL), ranks_per_host=2
    )
    # Host 0 holds the big table now; without it rank 0 is the emptiest.
    assert [shard.rank for shard in conform(plan).shards_of_table[0]] == [0, 1]


def test_what_cannot_be_done_is_said():
    with pytest.raises(PlanError, match="ranks must be from 0 to 3, got 7"):
        conform(with_tables(replace(BIG, ranks=(7,)), SMALL))
    lone = replace(BIG, sharding_types=("row_wise",), ranks=(2,))
    with pytest.raises(PlanError, match="may be row_wise on 1 of 4 ranks"):
        conform(with_tables(lone, SMALL))


@pytest.mark.parametrize("name", list(SHARDERS))
def test_every_sharder_keeps_the_constraints_of_tables(name):
    tables = (
        replace(BIG, sharding_types=("row_wise",)),
        replace(SMALL, ranks=(2, 3)),
        *(replace(BIG, name=f"t{number}") for number in range(3)),
        replace(BIG, name="last", sharding_types=("column_wise", "table_wise"), ranks=(1, 2)),
    )
    plan = build_named_plan(name, ShardingTask(tables, 4, UNKNOWN_ROOM_BYTES, 4096))
    assert not find_broken(plan)
    assert plan.kinds[0] is ShardingKind.ROW_WISE


def test_files_state_constraints_as_lists_or_words(tmp_path):
    yaml = tmp_path / "tables.yaml"
    yaml.write_text(
        "tables:\n  - {name: a, rows: 10, width: 8, sharding_types: [row_wise, grid_shard], "
        "ranks: [0, 2]}\n"
    )
    csv = tmp_path / "tables.csv"
    csv.write_text('name,rows,width,sharding_types,ranks\na,10,8,row_wise+grid_shard,"0,2"\n')
    for path in (yaml, csv):
        (table,) = load_tables(path)
        assert (table.sharding_types, table.ranks) == (("row_wise", "grid"), (0, 2))
    yaml.write_text("tables:\n  - {name: a, rows: 10, width: 8, sharding_types: [by_magic]}\n")
    with pytest.raises(PlanError, match="by_magic"):
        load_tables(yaml)


def test_a_table_too_narrow_to_cut_is_column_wise_in_one_piece():
    narrow, wide = (
        EmbeddingTable(name, rows=64, width=width, sharding_types=("column_wise",))
        for name, width in (("narrow", 32), ("wide", 64))
    )
    task = ShardingTask((narrow, wide), rank_count=2, room_bytes=2**30, batch_size=8)
    plan = build_named_plan("naive", task)
    assert [kind.value for kind in plan.kinds] == ["table_wise", "column_wise"]
    assert not find_broken(plan)
