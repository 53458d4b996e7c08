"""Tables in host memory: which, with what cache, and how many rows a batch fetches."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from embeddings.distribution import Zipf
from embeddings.offloading import (
    build_offloaded_plan,
    exceeds_devices,
    fetched_bytes,
    missed_rows,
    offload_tables,
)
from embeddings.plan_document import from_plan_document, to_plan_document
from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable, TableMemory
from tests.embeddings.holding import bytes_by_rank


def simulated_misses(table: EmbeddingTable, *, batch: int, batches: int) -> float:
    """Rows that a cache of the most recent rows lacks, in the mean over later batches."""
    chance = np.random.default_rng(0)
    weights = 1 / np.arange(1, table.rows + 1) ** 1.05
    cache: OrderedDict[int, None] = OrderedDict()
    found = []
    for _ in range(batches):
        drawn = chance.choice(table.rows, size=batch, p=weights / weights.sum())
        asked = dict.fromkeys(drawn.tolist())
        found.append(sum(row not in cache for row in asked))
        for row in drawn.tolist():
            cache[row] = None
            cache.move_to_end(row)
            if len(cache) > table.cached_ratio * table.rows:
                cache.popitem(last=False)
    return float(np.mean(found[batches // 2 :]))


@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.5])
def test_misses_are_those_of_a_simulated_cache(ratio):
    table = EmbeddingTable("t", 4000, 8, 1.0, distribution=Zipf(1.05), cached_ratio=ratio)
    expected = missed_rows(table.popularity, ratio * table.rows, 500)
    # A batch of 500 may be larger than the smallest cache; recent rows are then those of its end.
    assert simulated_misses(table, batch=500, batches=200) == pytest.approx(expected, rel=0.05)


def test_room_goes_where_it_saves_most_traffic():
    # Both 4,000 bytes; the first is asked for a hundred times as often.
    hot = EmbeddingTable("hot", 100, 10, 100.0)
    cold = EmbeddingTable("cold", 100, 10, 1.0)
    task = ShardingTask((hot, cold), 1, room_bytes=6000, batch_size=10)
    assert exceeds_devices(task)
    first, second = offload_tables(task)
    assert first.memory is TableMemory.DEVICE
    # 5,700 bytes to give away: 1,700 are left, 1,400 are 35 % of the other.
    assert (second.memory, second.cached_ratio) == (TableMemory.HOST_CACHED, 0.35)
    # Ten draws of a hundred rows hit 9.56 different ones; an eager cache of 35 has a third of them.
    assert 40 * 5 < fetched_bytes(second, 10) < 40 * 8
    assert fetched_bytes(first, 10) == 0
    roomy = replace(task, room_bytes=9000)
    assert not exceeds_devices(roomy)
    assert [table.memory for table in offload_tables(roomy)] == [TableMemory.DEVICE] * 2


def test_twice_the_memory_of_all_ranks_gets_a_plan_that_fits_and_survives_a_file():
    tables = tuple(
        EmbeddingTable(f"t{n}", 10_000 * (n + 1), 32, 2.0 + n, distribution=Zipf(1.1))
        for n in range(8)
    )
    sizes = sum(table.size_bytes for table in tables)
    task = ShardingTask(tables, 4, room_bytes=sizes // 8, batch_size=256)
    plan = build_offloaded_plan(task)
    assert plan.name == "host_cached"
    assert max(bytes_by_rank(plan, optimizer="sgd")) <= task.room_bytes
    cached = [table for table in plan.tables if table.memory is TableMemory.HOST_CACHED]
    assert 0 < len(cached) < len(tables)
    document = to_plan_document(plan)
    again = from_plan_document(document, tables=tables, rank_count=4)
    assert again.tables == plan.tables
    [module] = document.values()
    assert module[cached[0].name]["compute_kernel"] == "fused_uvm_caching"
    assert module[cached[0].name]["cache_params"] == {"load_factor": cached[0].cached_ratio}
    module[cached[0].name]["compute_kernel"] = "fused_uvm"
    bare = from_plan_document(document, tables=tables, rank_count=4)
    # Without a cache every row that a batch asks for is fetched.
    table = next(one for one in bare.tables if one.name == cached[0].name)
    rows = float(table.popularity.distinct_rows(256 * table.pooling_factor))
    assert fetched_bytes(table, 256) == pytest.approx(rows * 128, rel=1e-3)
