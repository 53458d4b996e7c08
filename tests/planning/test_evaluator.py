"""Condensed plans take the nanoseconds of a full prediction."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import SHARDERS, build_named_plan
from perfmodel.base.errors import PlanError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.pricing import price_job
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.plans.evaluator import PlanEvaluator, PlanMeasures, lookups_of_ranks_ns
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.prediction.scenario import Interference
from perfmodel.stacks.capabilities import RowSums
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.dlrm.memory import dlrm_memory
from tests.planning.settings import (
    STACK,
    measure_assignments,
    plan_setting,
    predict_plan,
    random_plan,
)


def measure_as_predicted(evaluator: PlanEvaluator, plans: list[ShardingPlan]) -> PlanMeasures:
    """Measure *plans*, and compare their times with those of full predictions."""
    found = evaluator.measure(plans)
    full = [predict_plan(evaluator.spec, evaluator.cluster, plan) for plan in plans]
    assert found.times.period_ns.tolist() == [answer.period_ns for answer in full]
    assert found.times.isolated_ns.tolist() == [answer.isolated_ns for answer in full]
    return found


@pytest.mark.parametrize(
    ("topology", "hosts", "ranks_per_host", "tables", "batch", "count", "embedding"),
    [("quad_a100", 1, None, 6, 16384, 60, {}), ("quad_a100", 1, 2, 3, 131072, 8, {}),
     ("dgx_h100", 2, 2, 5, 32768, 30, {"optimizer": "rowwise_adagrad"}),
     ("dgx1_v100", 1, None, 12, 65536, 20, {"exchange_dtype": "fp16"}),
     ("dgx_h100", 2, 2, 4, 4096, 12,
      {"exchange_dtype": "fp16", "pooled": [False, True, False, True],
       "dtype": ["fp16", "fp32", "fp16", "fp32"], "pooling_deviations": [3.0, 0.0, 0.0, 1.0]}),
     ("dgx_a100", 2, None, 10, 65536, 10, {}), ("dgx_a100", 16, None, 100, 65536, 4, {})],
)  # fmt: skip
def test_random_plans_take_the_nanoseconds_of_a_full_prediction(
    topology, hosts, ranks_per_host, tables, batch, count, embedding
):
    evaluator, task = plan_setting(
        tables, topology, hosts, ranks_per_host, batch=batch, **embedding
    )
    chance = random.Random(3)
    plans = [random_plan(task, chance) for _ in range(count)]
    found = measure_as_predicted(evaluator, plans)
    assert len(set(found.times.period_ns.tolist())) > count // 4


def test_plans_with_exchanges_in_steps_take_the_nanoseconds_of_a_full_prediction():
    evaluator, task = plan_setting(6, "dgx_h100", 2, 2)
    names = ("hugectr_auto", "row_wise", "hugectr_hybrid", "balanced")
    plans = [build_named_plan(name, task) for name in names]
    assert plans[0].summed_in_host
    assert plans[2].frequent_rows
    found = measure_as_predicted(evaluator, plans)
    alone = evaluator.measure(plans[1:2])
    assert alone.busiest_ns[0] == found.busiest_ns[1]
    assert alone.peak_bytes[0] == found.peak_bytes[1]
    whole = build_dlrm_job(evaluator.spec, plan=plans[0], stack=STACK)
    of_ranks_ns = lookups_of_ranks_ns(price_job(whole, cluster=evaluator.cluster, stack=STACK))
    assert found.busiest_ns[0] == max(of_ranks_ns) > min(of_ranks_ns)
    needed = dlrm_memory(evaluator.spec, rank_count=4, plan=plans[0])
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
    evaluator, task = plan_setting(3, ranks_per_host=2, batch=64)
    tables = task.tables
    whole = [Shard(place, 0, 0, table.rows, 0, table.width) for place, table in enumerate(tables)]
    rows = tables[1].rows
    by_rows = [
        Shard(1, 0, 0, rows // 2, 0, tables[1].width),
        Shard(1, 1, rows // 2, rows - rows // 2, 0, tables[1].width),
    ]
    half = tables[2].width // 2
    by_columns = [Shard(2, rank, 0, tables[2].rows, rank * half, half) for rank in range(2)]

    def widths(*shards: Shard, ranks: int = 3) -> tuple[int, int]:
        plan = ShardingPlan(tables, ranks, tuple(shards), (), "some")
        found = evaluator.catalog.columns_of(plan)
        assert found.frame_key == ((), found.partial_width > 0, found.reduced_width > 0, True)
        return found.partial_width, found.reduced_width

    assert widths(*whole) == (0, 0)
    assert widths(*whole[:2], *by_columns) == (0, 0)
    assert widths(whole[0], *by_rows, whole[2]) == (2 * tables[1].width, 0)
    # Over all ranks they are summed by a collective, each number once.
    assert widths(whole[0], *by_rows, whole[2], ranks=2) == (0, tables[1].width)


@pytest.mark.parametrize("hosts", [1, 2])
def test_rows_over_all_ranks_are_added_as_the_stack_does(hosts):
    evaluator, task = plan_setting(4, "dgx_h100", hosts, 2, batch=4096)
    plan = build_named_plan("row_wise", task)
    lean = replace(STACK, tables=replace(STACK.tables, row_sums=RowSums.ALL_TO_ALL))
    sending = PlanEvaluator(evaluator.spec, evaluator.cluster, lean)
    asked = PredictOptions(interference=Interference.LEFT_OUT, samples=0, is_explained=False)
    for one in (evaluator, sending):
        setting = Setting(one.spec, one.cluster, one.stack, asked, plan=plan)
        full = predict(build_question(setting), executor=SerialExecutor())
        assert one.measure([plan]).times.period_ns[0] == full.period_ns
    frames = [one.catalog.columns_of(plan).frame_key for one in (evaluator, sending)]
    assert frames == [((), False, True, False), ((), True, False, True)]


def test_memory_is_that_of_a_full_prediction():
    evaluator, task = plan_setting(6, optimizer="adam")
    for name in SHARDERS:
        plan = build_named_plan(name, task)
        full = dlrm_memory(evaluator.spec, rank_count=4, plan=plan)
        peak = int(evaluator.measure([plan]).peak_bytes[0])
        # Index buffers are rounded a piece here and a rank there.
        assert peak == pytest.approx(max(memory.total_bytes for memory in full), abs=1000)


def test_plans_are_measured_in_any_order_and_company():
    evaluator, task = plan_setting(6)
    chance = random.Random(5)
    plans = [random_plan(task, chance) for _ in range(70)]
    together = evaluator.measure(plans).times.period_ns
    backwards = plan_setting(6)[0].measure(plans[::-1]).times.period_ns
    assert np.array_equal(together, backwards[::-1])
    assert int(evaluator.measure([plans[7]]).times.period_ns[0]) == together[7]


def test_assignments_of_whole_tables_are_measured_like_plans():
    evaluator, task = plan_setting(6)
    ranks = np.random.default_rng(0).integers(0, 4, (70, 6)).astype(np.int32)
    quick = measure_assignments(evaluator, task, ranks)
    slow = evaluator.measure([task.whole(row, "w") for row in ranks.tolist()])
    assert np.array_equal(quick.times.period_ns, slow.times.period_ns)
    assert np.array_equal(quick.peak_bytes, slow.peak_bytes)


def test_renaming_ranks_of_a_host_does_not_change_the_time():
    evaluator, task = plan_setting(8)
    ranks = [0, 0, 1, 1, 2, 3, 3, 3]
    renamed = [(rank + 1) % 4 for rank in ranks]
    found = evaluator.measure([task.whole(ranks, "a"), task.whole(renamed, "b")])
    assert found.times.period_ns[0] == found.times.period_ns[1]


def test_a_single_rank_has_nothing_to_compare():
    with pytest.raises(PlanError, match="two ranks"):
        plan_setting(3, ranks_per_host=1)


def test_all_tables_on_every_rank_is_no_exchange_to_compare():
    evaluator, task = plan_setting(2, batch=64)
    with pytest.raises(PlanError, match="data-parallel"):
        evaluator.measure([ShardingPlan(task.tables, 4, (), (0, 1), "copied")])
