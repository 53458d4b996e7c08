"""Condensed plans take the nanoseconds of a full prediction."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import SHARDERS, ShardingTask, build_named_plan
from perfmodel.base.errors import PlanError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.pricing import price_job
from perfmodel.planning.evaluator import PlanEvaluator, lookups_of_ranks_ns
from perfmodel.planning.making import build_task
from perfmodel.planning.placements import PieceCatalog
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.dlrm.memory import dlrm_memory
from tests.planning.settings import STACK, build_spec, predict_plan, random_plan
from topologies import build_cluster, load_topology


def _cluster(name: str, hosts: int = 1, ranks_per_host: int | None = None):
    return build_cluster(load_topology(name), hosts=hosts, ranks_per_host=ranks_per_host)


@pytest.mark.parametrize(
    ("topology", "hosts", "ranks_per_host", "tables", "batch", "count", "embedding"),
    [
        ("quad_a100", 1, None, 6, 16384, 60, {}),
        ("quad_a100", 1, 2, 3, 131072, 8, {}),
        ("dgx_h100", 2, 2, 5, 32768, 30, {"optimizer": "rowwise_adagrad"}),
        ("dgx1_v100", 1, None, 12, 65536, 20, {"exchange_dtype": "fp16"}),
        ("dgx_a100", 2, None, 10, 65536, 10, {}),
        ("dgx_a100", 16, None, 100, 65536, 4, {}),
    ],
)
def test_random_plans_take_the_nanoseconds_of_a_full_prediction(
    topology, hosts, ranks_per_host, tables, batch, count, embedding
):
    spec = build_spec(tables, batch=batch, **embedding)
    cluster = _cluster(topology, hosts, ranks_per_host)
    task = build_task(spec, spec.embedding.tables(), cluster)
    chance = random.Random(3)
    plans = [random_plan(task, chance) for _ in range(count)]
    evaluator = PlanEvaluator(spec, cluster, STACK)
    found = evaluator.measure(plans)
    for place, plan in enumerate(plans):
        full = predict_plan(spec, cluster, plan)
        assert int(found.times.period_ns[place]) == full.period_ns
        assert int(found.times.isolated_ns[place]) == full.isolated_ns
    assert len(set(found.times.period_ns.tolist())) > count // 4


def test_plans_with_exchanges_in_steps_take_the_nanoseconds_of_a_full_prediction():
    spec = build_spec(6, batch=16384)
    cluster = _cluster("dgx_h100", 2, 2)
    task = build_task(spec, spec.embedding.tables(), cluster)
    names = ("hugectr_auto", "row_wise", "hugectr_hybrid", "balanced")
    plans = [build_named_plan(name, task) for name in names]
    assert plans[0].summed_in_host
    assert plans[2].frequent_rows
    evaluator = PlanEvaluator(spec, cluster, STACK)
    found = evaluator.measure(plans)
    for place, plan in enumerate(plans):
        full = predict_plan(spec, cluster, plan)
        assert int(found.times.period_ns[place]) == full.period_ns
        assert int(found.times.isolated_ns[place]) == full.isolated_ns
    alone = evaluator.measure(plans[1:2])
    assert alone.busiest_ns[0] == found.busiest_ns[1]
    assert alone.peak_bytes[0] == found.peak_bytes[1]
    whole = build_dlrm_job(spec, plan=plans[0], stack=STACK)
    of_ranks_ns = lookups_of_ranks_ns(price_job(whole, cluster=cluster, stack=STACK))
    assert found.busiest_ns[0] == max(of_ranks_ns) > min(of_ranks_ns)
    needed = dlrm_memory(spec, rank_count=4, plan=plans[0])
    assert found.peak_bytes[0] == max(rank.total_bytes for rank in needed)


def test_what_ranks_take_for_lookups_is_the_sum_of_their_own():
    lookup, gemm = FAMILIES.index("embedding"), FAMILIES.index("gemm")
    priced: Any = SimpleNamespace(
        job=SimpleNamespace(rank_count=2),
        rows_of_rank=lambda rank: slice(3 * rank, 3 * rank + 3),
        float_ns=np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
        family=np.array([lookup, gemm, lookup, gemm, gemm, lookup]),
    )
    assert lookups_of_ranks_ns(priced) == [5.0, 32.0]


def test_partial_sums_are_as_wide_as_all_pieces_by_rows():
    spec = build_spec(3, batch=64)
    task = ShardingTask(spec.embedding.tables(), 2, 10**12, 64)
    tables = task.tables
    whole = [Shard(place, 0, 0, table.rows, 0, table.width) for place, table in enumerate(tables)]
    rows = tables[1].rows
    by_rows = [
        Shard(1, 0, 0, rows // 2, 0, tables[1].width),
        Shard(1, 1, rows // 2, rows - rows // 2, 0, tables[1].width),
    ]
    half = tables[2].width // 2
    by_columns = [Shard(2, rank, 0, tables[2].rows, rank * half, half) for rank in range(2)]

    catalog = PieceCatalog(spec, _cluster("quad_a100").device, rank_count=2)

    def width(*shards: Shard) -> tuple[int, bool]:
        found = catalog.columns_of(ShardingPlan(tables, 2, tuple(shards), (), "some"))
        assert found.frame_key[0] == ()
        return found.partial_width, found.frame_key[1]

    assert width(*whole) == (0, False)
    assert width(*whole[:2], *by_columns) == (0, False)
    assert width(whole[0], *by_rows, whole[2]) == (2 * tables[1].width, True)


def test_memory_is_that_of_a_full_prediction():
    spec = build_spec(6, batch=16384, optimizer="adam")
    cluster = _cluster("quad_a100")
    task = build_task(spec, spec.embedding.tables(), cluster)
    evaluator = PlanEvaluator(spec, cluster, STACK)
    for name in SHARDERS:
        plan = build_named_plan(name, task)
        full = dlrm_memory(spec, rank_count=4, plan=plan)
        peak = int(evaluator.measure([plan]).peak_bytes[0])
        # Index buffers are rounded a piece here and a rank there.
        assert peak == pytest.approx(max(memory.total_bytes for memory in full), abs=1000)


def test_plans_are_measured_in_any_order_and_company():
    spec = build_spec(6, batch=16384)
    cluster = _cluster("quad_a100")
    task = build_task(spec, spec.embedding.tables(), cluster)
    chance = random.Random(5)
    plans = [random_plan(task, chance) for _ in range(70)]
    evaluator = PlanEvaluator(spec, cluster, STACK)
    together = evaluator.measure(plans).times.period_ns
    backwards = PlanEvaluator(spec, cluster, STACK).measure(plans[::-1]).times.period_ns
    assert np.array_equal(together, backwards[::-1])
    assert int(evaluator.measure([plans[7]]).times.period_ns[0]) == together[7]


def test_assignments_of_whole_tables_are_measured_like_plans():
    spec = build_spec(6, batch=16384)
    cluster = _cluster("quad_a100")
    task = build_task(spec, spec.embedding.tables(), cluster)
    ranks = np.random.default_rng(0).integers(0, 4, (70, 6)).astype(np.int32)
    evaluator = PlanEvaluator(spec, cluster, STACK)
    quick = evaluator.measure_assignments(task, ranks)
    slow = evaluator.measure([task.whole(row, "w") for row in ranks.tolist()])
    assert np.array_equal(quick.times.period_ns, slow.times.period_ns)
    assert np.array_equal(quick.peak_bytes, slow.peak_bytes)


def test_renaming_ranks_of_a_host_does_not_change_the_time():
    spec = build_spec(8, batch=16384)
    cluster = _cluster("quad_a100")
    task = build_task(spec, spec.embedding.tables(), cluster)
    ranks = [0, 0, 1, 1, 2, 3, 3, 3]
    renamed = [(rank + 1) % 4 for rank in ranks]
    found = PlanEvaluator(spec, cluster, STACK).measure(
        [task.whole(ranks, "a"), task.whole(renamed, "b")]
    )
    assert found.times.period_ns[0] == found.times.period_ns[1]


def test_a_single_rank_has_nothing_to_compare():
    spec = build_spec(3, batch=64)
    with pytest.raises(PlanError, match="two ranks"):
        PlanEvaluator(spec, _cluster("quad_a100", ranks_per_host=1), STACK)


def test_all_tables_on_every_rank_is_no_exchange_to_compare():
    spec = build_spec(2, batch=64)
    cluster = _cluster("quad_a100")
    task = ShardingTask(spec.embedding.tables(), 4, 10**12, 64)
    plan = build_named_plan("naive", task)
    alone = type(plan)(plan.tables, 4, (), (0, 1), "copied")
    with pytest.raises(PlanError, match="data-parallel"):
        PlanEvaluator(spec, cluster, STACK).measure([alone])
