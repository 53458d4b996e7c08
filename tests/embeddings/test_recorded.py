"""Popularities, plans and statistics of a grid of tables, as recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embeddings.distribution import (
    ReuseHistogram,
    RowsByPopularity,
    Uniform,
    Zipf,
    histogram_from_bins,
    observe,
    popularity_of,
)
from embeddings.framework_sharders import list_options
from embeddings.index_data import bin_reuse, build_index_data, describe_data
from embeddings.piece_work import exchange_weight
from embeddings.plan import ShardingPlan
from embeddings.popularity import RowRange
from embeddings.sharders import build_named_plan
from embeddings.sharding_task import UNKNOWN_ROOM_BYTES, ShardingTask, cut_table, spread_rows
from embeddings.table import OPTIMIZERS, EmbeddingTable, Lookup, TableMemory
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from tests import recorded
from tests.embeddings.holding import bytes_by_rank

SEEN = np.array([3, 3, 3, 9, 9, 1, 40, 40, 7, 3])
DISTRIBUTIONS = {
    "uniform": Uniform(),
    "zipf": Zipf(1.05),
    "zipf of one": Zipf(1.0),
    "reuse": ReuseHistogram((0.2, 0.3, 0.5), (1.0, 4.0, 30.0), 2000.0),
    "observed": observe(SEEN),
    "bags": Zipf(1.2, bag=3),
    "few occur": Zipf(0.8, occurring=40),
    "flat": Zipf(0.0),
}
SHARDERS = (
    "naive", "naive_chunk", "random", "size_greedy", "lookup_greedy", "norm_lookup_greedy",
    "size_lookup_greedy", "balanced", "row_wise", "torchrec", "hugectr_auto", "hugectr_hybrid",
)  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "unknown room": {},
    "wide pieces": {"min_width": 16, "batch_size": 64},
    "narrow": {"min_width": 4, "max_shard_bytes": 3_000},
    "little room": {"min_width": 8, "room_bytes": 60_000, "optimizer": "adagrad"},
    "copied": {"data_parallel_below_bytes": 20_000, "room_bytes": 400_000},
    "large batch": {"batch_size": 10**6},
    "larger batch": {"batch_size": 10**7, "room_bytes": 900_000, "min_width": 4},
}
TABLES = tuple(
    EmbeddingTable(
        f"t{number}",
        rows=50 + 37 * number**3,
        width=(8, 16, 64)[number % 3],
        pooling_factor=1.0 + 2.5 * (number % 4),
        distribution=(Uniform(), Zipf(1.1))[number % 2],
    )
    for number in range(9)
)
VARIED = (
    replace(TABLES[3], pooling_deviation=1.5, is_pooled=False),
    replace(TABLES[4], pooling_deviation=2.5, memory=TableMemory.HOST_CACHED, cached_ratio=0.37),
    replace(TABLES[5], pooling_deviation=0.5, pooling_factor=1.0, dtype=DType.FP16),
    replace(TABLES[6], pooling_factor=1.01),
)
WIDE = tuple(
    EmbeddingTable(
        f"w{number}",
        rows=(6, 900, 20_000, 20_000)[number % 4],
        width=(128, 256, 384, 512, 640)[number % 5],
        pooling_factor=(1.0, 40.0, 0.0, 7.5, 150.0, 1.0)[number % 6],
        distribution=(Uniform(), Zipf(1.1))[number % 2],
        dtype=(DType.FP32, DType.FP16)[number // 4 % 2],
    )
    for number in range(8)
)

TASKS = (
    (2, None, 10**9), (4, 2, 10**9), (6, 4, 10**9), (12, 4, 30_000_000), (6, 2, 25_000_000),
    (16, 4, 40_000_000), (8, 8, 3_000_000), (1, 1, 10**9), (12, 4, 30_000_001),
)  # fmt: skip


def values() -> dict[str, Any]:
    """All that is recorded."""
    found: dict[str, Any] = {}
    for name, distribution in DISTRIBUTIONS.items():
        for rows in (60, 50_000):
            found[f"{name} of {rows}"] = _of_popularity(distribution, rows)
    for number, table in enumerate((*TABLES, *VARIED)):
        found[f"table {number}"] = _of_table(table)
    for per_host in (2, 4):
        task = ShardingTask(
            tables=TABLES, rank_count=4, room_bytes=15_000_000, batch_size=64,
            optimizer="adagrad", ranks_per_host=per_host, seed=3,
        )  # fmt: skip
        for name in SHARDERS:
            found[f"plan {name}, {per_host} a host"] = _of_plan(build_named_plan(name, task))
    for number, (ranks, per_host, room_bytes) in enumerate(TASKS):
        optimizer = ("sgd", "adam")[number % 2]
        task = ShardingTask(WIDE, ranks, room_bytes, 4096, optimizer, per_host)
        for name in ("balanced", "torchrec", "hugectr_auto", "hugectr_hybrid"):
            found[f"{name} of wide, {ranks} by {per_host}, {room_bytes}, {optimizer}"] = (
                _or_refused(lambda name=name, task=task: _of_plan(build_named_plan(name, task)))
            )
    found.update(_of_placing())
    found["rows"] = spread_rows(TABLES, rank_count=100, left_out=(2,))
    found["weights"] = [exchange_weight(8, size) for size in (None, 2, 4, 8)]
    found["cuts"] = [
        cut_table(0, TABLES[8], columns=columns, rows=rows)
        for columns, rows in ((1, 1), (2, 1), (1, 3), (2, 2))
    ]
    found["bins"] = [
        bin_reuse(np.array([1, 1, 2, 3, 8, 40])),
        histogram_from_bins(
            tuple(np.arange(17) / 136), tuple(np.arange(17)[::-1] / 136), draws=1000.0, reuse=4.0
        ),
    ]
    data = build_index_data(
        "made up", indices=np.arange(24) % 7, lengths=np.array([[2, 3, 1, 4], [5, 0, 6, 3]])
    )
    found["data"] = [
        describe_data(data, batch_size=2),
        describe_data(data, batch_size=1, batches=3),
        describe_data(data, batch_size=9),
        data.indices_of(1, first=1, count=2),
        data.describe_table(EmbeddingTable("t", 10, 4), 0).pooling_deviation,
    ]
    return found


def _of_placing() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rule in RULES.items():
        for ranks, per_host in ((1, None), (3, None), (8, 8), (8, 2), (8, 3), (16, 4), (24, 8)):
            where = {"room_bytes": UNKNOWN_ROOM_BYTES, "batch_size": 2**16} | rule
            task = ShardingTask(TABLES, ranks, ranks_per_host=per_host, **where)
            plan = build_named_plan("balanced", task)
            found[f"balanced for {name}, {ranks} ranks by {per_host}"] = _of_plan(plan)
    for ranks, per_host in ((1, 1), (4, 4), (8, 4), (6, 1)):
        for room_bytes in (1_200_000, 10**9):
            task = ShardingTask(TABLES, ranks, room_bytes, 64, "adam", per_host)
            for name in ("torchrec", "hugectr_auto"):
                found[f"{name} of {ranks} by {per_host} in {room_bytes}"] = _or_refused(
                    lambda name=name, task=task: _of_plan(build_named_plan(name, task))
                )
        found[f"ways of {ranks} by {per_host}"] = [
            [(one.way, one.seconds * 1e9, one.piece_bytes) for one in list_options(task, place)]
            for place in (0, 5, 8)
        ]
    return found


def _or_refused(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except PlanError as fault:
        return str(fault)


def _of_popularity(distribution: Any, rows: int) -> list[Any]:
    popularity = popularity_of(distribution, rows)
    part = RowRange(first_row=rows // 5, rows=rows // 3, whole_rows=rows)
    piece = popularity.piece(part)
    frequent = RowsByPopularity(distribution, rows, 9, is_frequent=True)
    return [
        popularity.rows, popularity.hottest_share, popularity.rows_expected(500.0),
        [part.sum() for part in popularity.split(7.5)],
        [popularity.distinct_rows(draws) for draws in (1.0, 90.0, 1e5)],
        [popularity.distinct_deviation(draws) for draws in (1.0, 90.0, 1e5)],
        [popularity.new_row_chance(draws) for draws in (1.0, 90.0, 1e5)],
        popularity.window_draws(20.0),
        [popularity.lru_misses(300.0, capacity_rows=room) for room in (1.0, 20.0, 1e6)],
        [popularity.rows_drawn_more_than(times, draws=300.0) for times in (1, 3)],
        [popularity.draws_of_rows_drawn_more_than(times, draws=300.0) for times in (1, 3)],
        piece.share, piece.rows, piece.distinct_rows(50.0),
        frequent.lookup_share, frequent.popularity(9).distinct_rows(40.0),
        replace(frequent, is_frequent=False).popularity(rows).distinct_rows(40.0),
    ]  # fmt: skip


def _of_table(table: EmbeddingTable) -> list[Any]:
    lookup = Lookup((table,), batch_size=64)
    piece = table.piece(first_row=5, rows=20, width=table.width // 2)
    frequent, rare = table.split_by_popularity(10)
    return [
        table.size_bytes, table.device_bytes, lookup.lookup_count(table),
        lookup.distinct_rows(table), piece.pooling_factor, piece.size_bytes,
        piece.popularity.distinct_rows(30.0), frequent.pooling_factor, rare.pooling_factor,
        frequent.rows, rare.rows, frequent.popularity.hottest_share,
        *(one.pooling_deviation for one in (piece, frequent, rare)),
        *(one.is_pooled for one in (piece, frequent, rare)),
        piece.first_row, piece.whole.rows,
        table.key_rows(np.array([0, 0, 7, 31]), np.array([table.rows, 1, 1, 1])).tolist(),
        [one.state_bytes(name) for one in (table, piece) for name in OPTIMIZERS],
    ]  # fmt: skip


def _of_plan(plan: ShardingPlan) -> list[Any]:
    return [
        [(s.table, s.rank, s.first_row, s.rows, s.first_column, s.width) for s in plan.shards],
        plan.data_parallel, plan.summed_in_host, plan.kinds, plan.frequent_rows,
        plan.received_width, bytes_by_rank(plan, optimizer="adagrad"),
        [table.pooling_factor for table in plan.pieces.tables], plan.pieces.number,
        [table.size_bytes for table in plan.held_tables],
        [plan.host_of(rank) for rank in range(plan.rank_count)],
    ]  # fmt: skip


def test_a_grid_of_tables_gives_what_was_recorded(found):
    recorded.check(__file__, found)


def test_one_of_them_by_hand(found):
    # 60 rows alike: one draw sees one row, the hottest has 1/60.
    assert found["uniform of 60"][0] == 60
    assert found["uniform of 60"][1] == pytest.approx(1 / 60)
    assert found["uniform of 60"][4][0] == pytest.approx(1.0)
