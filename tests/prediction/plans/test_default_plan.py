"""The default placement is the fastest of the plans that were replayed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embeddings.balanced import find_candidates
from embeddings.plan import ShardingKind
from embeddings.sharders import build_named_plan
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.making import RankTask, make_plans
from perfmodel.planning.question import RankQuestion
from perfmodel.prediction.plans.default_plan import (
    choose_default_plan,
    find_default,
    place_tables,
)
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import Setting, build_question
from perfmodel.stacks.profiles import load_stack
from tests.planning.settings import plan_setting


def _contended_ns(evaluator, plan):
    setting = Setting(evaluator.spec, evaluator.cluster, evaluator.stack, plan=plan)
    return predict(build_question(setting), executor=SerialExecutor()).period_ns


def test_none_of_the_fastest_candidates_is_faster_than_the_default_placement():
    evaluator, task = plan_setting(12, "l4_pcie", batch=16384)
    plans = [candidate.to_plan(task) for candidate in find_candidates(task)]
    chosen = choose_default_plan(evaluator, task)
    times_ns = evaluator.measure(plans).times.period_ns
    fastest = [plans[place] for place in times_ns.argsort()[:5]]
    taken_ns = _contended_ns(evaluator, chosen.plan)
    assert taken_ns <= min(_contended_ns(evaluator, plan) for plan in fastest)
    assert f"of {len(plans)} candidates" in chosen.reason


def test_a_machine_without_peers_copies_tables_where_the_rule_sums_them_inside_hosts():
    evaluator, task = plan_setting(10, "v100_pcie", 2, 4, batch=16384)
    first = find_candidates(task)[0].to_plan(task)
    chosen = choose_default_plan(evaluator, task)
    by_rule_ns, taken_ns = evaluator.measure([first, chosen.plan]).times.period_ns
    assert taken_ns < 0.9 * by_rule_ns
    copied = chosen.plan.kinds.count(ShardingKind.DATA_PARALLEL)
    assert f"{copied} data_parallel" in chosen.reason or not copied


def test_predict_and_rank_place_tables_alike():
    evaluator, task = plan_setting(6, "quad_a100", batch=4096)
    spec, cluster, stack = evaluator.spec, evaluator.cluster, evaluator.stack
    question = RankQuestion(workload="", topology="", sharders=("balanced",))
    made = make_plans(question, RankTask(evaluator, task), None, lambda *_: None)
    found = find_default(spec, cluster, stack, task.tables)
    assert made.plans == (found.plan,)
    asked = build_question(Setting(spec, cluster, stack))
    assert asked.chosen == (found.reason,)
    assert build_question(Setting(spec, cluster, stack, plan=found.plan)).chosen == ()


def test_a_placement_is_left_to_a_sharder_that_is_named_and_to_stacks_without_frames():
    evaluator, task = plan_setting(6, "quad_a100", batch=4096)
    spec, cluster, stack = evaluator.spec, evaluator.cluster, evaluator.stack
    named = spec.model_copy(
        update={"sharding": spec.sharding.model_copy(update={"sharder": "size_greedy"})}
    )
    assert build_question(Setting(named, cluster, stack)).chosen == ()
    assert find_default(spec, cluster, load_stack("ngc_dlrm_2020"), task.tables) is None
    by_name = place_tables("size_greedy", evaluator, task)
    assert by_name.plan == build_named_plan("size_greedy", task)
    assert by_name.reason == "Tables are placed by the sharder size_greedy."


def test_tables_that_fit_nowhere_are_spread_by_rows():
    evaluator, task = plan_setting(6, "quad_a100", batch=4096)
    chosen = choose_default_plan(evaluator, replace(task, room_bytes=1))
    assert "nothing else fits" in chosen.reason
    assert set(chosen.plan.kinds) == {ShardingKind.ROW_WISE}


@pytest.mark.parametrize(
    ("key", "tables", "seed"),
    [("rows", 9, 3), ("pooling_factors", 9, 3), ("width", 9, 3), ("rows", 16, 0)],
)
def test_a_smaller_job_is_not_placed_worse_than_a_larger_one(key, tables, seed):
    small, task = plan_setting(tables, "l4_pcie", batch=8192, seed=seed)
    section = small.spec.embedding
    values = getattr(section, key)
    larger, larger_task = plan_setting(
        tables, "l4_pcie", batch=8192, seed=seed, **{key: [2 * value for value in values]}
    )
    times_ns = [
        one.measure([choose_default_plan(one, of).plan]).times.period_ns[0]
        for one, of in ((small, task), (larger, larger_task))
    ]
    assert times_ns[0] <= 1.002 * times_ns[1]


def test_contention_decides_between_a_fast_plan_and_one_with_calmer_ranks():
    # Whole tables save a kernel of the host, and keep two ranks busy three times as long.
    evaluator, task = plan_setting(13, "a30_pcie", batch=16384, seed=5)
    plans = [candidate.to_plan(task) for candidate in find_candidates(task)]
    fastest = plans[int(evaluator.measure(plans).times.period_ns.argmin())]
    chosen = choose_default_plan(evaluator, task).plan
    assert _contended_ns(evaluator, chosen) <= _contended_ns(evaluator, fastest)


def test_no_plan_is_faster_than_the_rest_of_its_iteration():
    evaluator, task = plan_setting(8, "quad_a100", batch=256)
    plans = [candidate.to_plan(task) for candidate in find_candidates(task)]
    flat = [plan for plan in plans if not plan.data_parallel]
    times_ns = evaluator.measure(flat).times.period_ns
    frames = {evaluator.catalog.columns_of(plan).frame_key for plan in flat}
    # A batch this small is bound by host work, whatever the plan is.
    assert min(map(evaluator.rest_ns, frames)) == times_ns.min()


def test_small_tables_are_copied_on_one_host_whose_links_are_slow():
    evaluator, task = plan_setting(12, "v100_pcie", batch=8192, seed=3)
    chosen = choose_default_plan(evaluator, task).plan
    assert chosen.data_parallel
