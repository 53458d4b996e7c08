"""How fast plans are judged and found; deselected unless benchmarks are asked for."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from embeddings.sharders import SHARDERS, build_named_plan
from perfmodel.costs.stack_files import load_stack
from perfmodel.execution import open_executor
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.question import RankQuestion, build_task
from perfmodel.planning.rank_plans import judge_assignments
from perfmodel.planning.search import PlanSearch, SearchLimit
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import build_spec
from topologies import build_cluster, load_topology

STACK = load_stack("pytorch_eager")


def _setting(tables: int, hosts: int, batch: int):
    spec = build_spec(tables, batch=batch)
    cluster = build_cluster(load_topology("dgx_a100"), hosts=hosts)
    task = build_task(spec, spec.embedding.tables(), cluster)
    return PlanEvaluator(spec, cluster, STACK), task


@pytest.mark.benchmark
def test_two_thousand_plans_of_100_tables_on_128_ranks_are_judged_a_second():
    evaluator, task = _setting(100, 16, 65536)
    ranks = np.random.default_rng(0).integers(0, 128, (2048, 100)).astype(np.int32)
    evaluator.measure_assignments(task, ranks[:128])
    # Time of this process, because others may share the machine.
    begin = time.process_time()
    evaluator.measure_assignments(task, ranks)
    rate = 2048 / (time.process_time() - begin)
    print(f"{rate:.0f} plans a second")
    assert rate > 2000


@pytest.mark.benchmark
@pytest.mark.ray
def test_two_ray_workers_judge_3200_plans_a_second(tmp_path):
    chance = random.Random(0)
    lines = [
        f"t{place},{int(10 ** chance.uniform(2, 6))},128,{chance.uniform(1, 60):.2f}"
        for place in range(100)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["name,rows,width,pooling_factor", *lines]))
    question = RankQuestion(
        topology="dgx_a100", hosts=16, tables=str(tmp_path / "t.csv"), overrides=("batch=65536",)
    )
    ranks = np.random.default_rng(0).integers(0, 128, (16, 1024, 100)).astype(np.int32)
    chunks = list(ranks)
    with open_executor("ray", workers=2) as executor:
        executor.map(judge_assignments, question, chunks[:4])
        begin = time.monotonic()
        executor.map(judge_assignments, question, chunks)
        rate = 1024 * len(chunks) / (time.monotonic() - begin)
    print(f"{rate:.0f} plans a second on two workers")
    assert rate > 3200


@pytest.mark.benchmark
def test_a_search_of_1000_tables_on_1024_ranks_beats_every_sharder_in_a_minute():
    evaluator, task = _setting(1000, 128, 65536)
    plans = [build_named_plan(name, task) for name in SHARDERS]
    begin = time.process_time()
    search = PlanSearch(evaluator, task, mode=Mode.PERIOD, seed=0)
    outcome = search.run(plans, SearchLimit(seconds=45))
    took = time.process_time() - begin
    named = evaluator.measure(plans).time_ns(Mode.PERIOD)
    print(f"{outcome.time_ns / 1e6:.3f} ms against {named.min() / 1e6:.3f} ms in {took:.0f} s")
    assert outcome.time_ns < named.min()
    assert took < 60
