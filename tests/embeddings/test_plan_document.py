"""TorchRec's plan format, written, read back and checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.plan_document import (
    from_plan_document,
    list_unrunnable,
    load_plan_document,
    to_plan_document,
)
from embeddings.sharders import SHARDERS, ShardingTask
from embeddings.table import EmbeddingTable, TableMemory
from perfmodel.base.errors import PlanError

TABLES = (EmbeddingTable("t1", 100, 64), EmbeddingTable("t2", 8, 32), EmbeddingTable("t3", 50, 16))


def _shard(offsets, sizes, placement):
    return {"shard_offsets": offsets, "shard_sizes": sizes, "placement": placement}


def _document():
    return {
        "sparse_arch.embedding_bag_collection": {
            "t1": {
                "sharding_type": "row_wise",
                "compute_kernel": "fused",
                "ranks": [0, 1],
                "sharding_spec": {
                    "shards": [
                        _shard([0, 0], [50, 64], "rank:0/cuda:0"),
                        _shard([50, 0], [50, 64], "rank:1/cuda:1"),
                    ]
                },
            },
            "t2": {
                "sharding_type": "data_parallel",
                "compute_kernel": "dense",
                "ranks": [0, 1],
                "sharding_spec": None,
            },
            "t3": {
                "sharding_type": "table_wise",
                "compute_kernel": "fused",
                "ranks": [1],
                "sharding_spec": {"shards": [_shard([0, 0], [50, 16], "rank:1/cuda:1")]},
            },
        }
    }


def test_a_hand_made_file_loads(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(_document()))
    plan = load_plan_document(tmp_path / "mine.json", tables=TABLES, rank_count=2)
    assert plan.kinds == (
        ShardingKind.ROW_WISE,
        ShardingKind.DATA_PARALLEL,
        ShardingKind.TABLE_WISE,
    )
    assert plan.name == "mine"


tables = st.lists(
    st.tuples(st.integers(1, 10**5), st.sampled_from([8, 64, 128, 256]), st.floats(0.1, 100)),
    min_size=1,
    max_size=12,
)


@given(shapes=tables, rank_count=st.integers(1, 9), name=st.sampled_from(sorted(SHARDERS)))
def test_written_and_read_back_a_plan_is_the_same(shapes, rank_count, name):
    of_task = tuple(
        EmbeddingTable(f"t{place}", rows, width, pooling)
        for place, (rows, width, pooling) in enumerate(shapes)
    )
    task = ShardingTask(of_task, rank_count, 10**12, 512)
    plan = SHARDERS[name](task)
    text = json.dumps(to_plan_document(plan))
    again = from_plan_document(
        json.loads(text), tables=of_task, rank_count=rank_count, document=plan.name
    )
    assert again == plan


def _change(path, value):
    content = _document()
    part = content["sparse_arch.embedding_bag_collection"]
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (_change(["t3"], None), "table 't3': missing from the plan"),
        (_change(["t9"], {"sharding_type": "data_parallel"}), "t9: no such table"),
        (_change(["t1", "sharding_spec"], {}), "t1.sharding_spec.shards: must be given"),
        (
            _change(["t3", "sharding_spec", "shards", 0, "placement"], "cuda:1"),
            "like rank:1/cuda:1",
        ),
        (_change(["t3", "sharding_spec", "shards", 0, "shard_sizes"], [50]), "must have 2 entries"),
        (_change(["t3", "sharding_spec", "shards", 0, "shard_sizes"], [49, 16]), "do not add up"),
        (_change(["t1", "ranks"], [0, 0]), "t1: ranks must be the ranks"),
        ([], "must be a mapping of keys"),
        ({"a": 1}, "a: must be a mapping of keys"),
        ({"a": {"t1": 1}}, "a.t1: must be a mapping of keys"),
    ],
)
def test_a_faulty_file_is_refused(content, fault):
    with pytest.raises(PlanError) as error:
        from_plan_document(content, tables=TABLES, rank_count=2)
    assert fault in str(error.value)
    # A fault is not followed by others that are only its consequence.
    assert ": 1 fault" in str(error.value) or "\n" not in str(error.value)


def test_a_table_in_two_modules_is_placed_twice():
    content = _document()
    content["other"] = {"t2": {"sharding_type": "data_parallel"}}
    with pytest.raises(PlanError, match="placed twice"):
        from_plan_document(content, tables=TABLES, rank_count=2)


def test_a_rank_beyond_the_last_is_refused():
    with pytest.raises(PlanError, match="rank 0 to 0, got 1"):
        from_plan_document(_document(), tables=TABLES, rank_count=1)


def test_pieces_by_rows_inside_one_host_are_table_row_wise():
    content = _document()
    plan = from_plan_document(content, tables=TABLES, rank_count=4, ranks_per_host=2)
    assert isinstance(plan, ShardingPlan)
    assert plan.kinds[0] is ShardingKind.TABLE_ROW_WISE


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            _change(["t3", "sharding_spec", "shards", 0, "placement"], None),
            "placement: must be given",
        ),
        (_change(["t3", "sharding_spec", "shards", 0], [1]), "shards[0]: must be a mapping"),
        (
            _change(["t3", "sharding_spec", "shards", 0, "shard_offsets"], [0, 0.0]),
            "shard_offsets[1]: must be",
        ),
        (_change(["t3", "sharding_spec", "shards", 0, "shard_offsets"], "00"), "must be a list"),
        (_change(["t3", "sharding_spec", "shards"], []), "must have 1 entries or more"),
        (_change(["t3", "sharding_spec"], 5), "must be a mapping of keys"),
        (_change(["t3", "sharding_spec", "shards", 0, "placement"], {"rank": True}), "like rank"),
        ({}, "must have 1 entries or more"),
    ],
)
def test_a_faulty_piece_is_refused(content, fault):
    with pytest.raises(PlanError) as error:
        from_plan_document(content, tables=TABLES, rank_count=2)
    assert fault in str(error.value)
    assert ": 1 fault" in str(error.value)


def test_ranks_may_be_left_out_and_placements_may_be_mappings():
    content = _change(["t1", "ranks"], None)
    [parameters] = content.values()
    parameters["t3"]["sharding_spec"]["shards"][0]["placement"] = {"rank": 1}
    plan = from_plan_document({"plan": content}, tables=TABLES, rank_count=2)
    assert plan == from_plan_document(_document(), tables=TABLES, rank_count=2)


@pytest.mark.parametrize(
    ("ranks", "per_host", "is_summed"),
    [(4, 2, True), (2, 2, False), (4, None, False), (5, 2, False)],
)
def test_partial_sums_are_added_in_hosts_of_one_size(ranks, per_host, is_summed):
    content = _change(["t1", "sharding_type"], "table_row_wise")
    plan = from_plan_document(content, tables=TABLES, rank_count=ranks, ranks_per_host=per_host)
    assert plan.summed_in_host == ((0,) if is_summed else ())
    plain = from_plan_document(
        _document(), tables=TABLES, rank_count=ranks, ranks_per_host=per_host
    )
    assert plain.summed_in_host == ()


def test_a_document_says_kernels_devices_and_sums_of_hosts():
    tables = (TABLES[0], replace(TABLES[1], memory=TableMemory.HOST_CACHED), TABLES[2])
    rows = (Shard(0, 2, 0, 50, 0, 64), Shard(0, 3, 50, 50, 0, 64))
    shards = (*rows, Shard(1, 1, 0, 8, 0, 32))
    plan = ShardingPlan(tables, 4, shards, data_parallel=(2,), ranks_per_host=2)
    summed = replace(plan, summed_in_host=(0,))
    [written], [of_sums] = (to_plan_document(one).values() for one in (plan, summed))
    assert [one["compute_kernel"] for one in written.values()] == [
        "fused", "fused_uvm_caching", "dense",
    ]  # fmt: skip
    assert [one["sharding_type"] for one in written.values()] == [
        "row_wise", "table_wise", "data_parallel",
    ]  # fmt: skip
    assert [one["ranks"] for one in written.values()] == [[2, 3], [1], [0, 1, 2, 3]]
    assert of_sums["t1"]["sharding_type"] == "table_row_wise"
    assert written["t3"]["sharding_spec"] is None

    def devices(document):
        [module] = document.values()
        return [shard["placement"] for shard in module["t1"]["sharding_spec"]["shards"]]

    assert devices(to_plan_document(plan)) == ["rank:2/cuda:0", "rank:3/cuda:1"]
    assert devices(to_plan_document(plan, gpus_per_host=3)) == ["rank:2/cuda:2", "rank:3/cuda:0"]
    assert devices(to_plan_document(replace(plan, ranks_per_host=None)))[1] == "rank:3/cuda:3"


@pytest.mark.parametrize(
    ("ranks", "frequent", "is_refused"),
    [((0, 1, 2, 3), (), False), ((1, 0, 2, 3), (), True), ((0, 1, 2), (), True),
     ((0, 1, 2, 3), (0,), False), ((0, 1, 2, 3), (5,), True), ((0,), (5,), True),
     ((3,), (), False)],
)  # fmt: skip
def test_rows_in_order_over_all_ranks_and_whole_copies_can_be_run(ranks, frequent, is_refused):
    table = EmbeddingTable("t", 12, 4)
    size = 12 // len(ranks)
    shards = tuple(Shard(0, rank, size * n, size, 0, 4) for n, rank in enumerate(ranks))
    plan = ShardingPlan((table,), 4, shards, frequent_rows=frequent)
    assert list_unrunnable(plan) == (("t",) if is_refused else ())
