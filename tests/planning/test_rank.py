"""The ranking: order, reasons, files, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from embeddings.sharders import build_named_plan
from perfmodel import api
from perfmodel.base.errors import OutputError, PlanError
from perfmodel.cli import app
from perfmodel.planning.making import load_task
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.search import PlanSearch
from perfmodel.prediction.scenario import Mode
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.job import choose_plan
from perfmodel.workloads.jobs import apply_stack_defaults, fill
from tests.planning.settings import plan_setting


def _question(tables: str, **changes) -> RankQuestion:
    fields = {"topology": "quad_a100", "overrides": ("batch=16384",), "samples": 8}
    return RankQuestion(tables=tables, **{**fields, **changes})


@pytest.mark.parametrize("stack", ["pytorch_fused", "hugectr"])
@pytest.mark.parametrize("topology", ["quad_a100", "dgx1_v100"])
def test_rank_and_predict_mean_the_same_plan_by_balanced(topology, stack):
    # Its own limits and formats of the stack decide, for every command: 1 MiB tables are copied
    # here.
    words = ("sharding.data_parallel_below=1 MiB", "sharding.min_width=16", "batch=4096")
    question = RankQuestion(topology=topology, workload="dlrm_mlperf", overrides=words, stack=stack)
    evaluator, task, _ = load_task(question)
    cluster = evaluator.cluster
    spec = apply_stack_defaults(load_workload("dlrm_mlperf", words), evaluator.stack)
    chosen = choose_plan(
        fill(spec, sharding=spec.sharding.model_copy(update={"sharder": "balanced"})),
        rank_count=cluster.rank_count,
        stack=evaluator.stack,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
    )

    assert chosen.data_parallel
    assert build_named_plan("balanced", task) == chosen


def test_plans_stand_in_the_order_of_their_times(tables):
    ranking = api.rank(_question(tables))
    fastest = {}
    for plan in ranking.plans:
        fastest.setdefault(plan.place, plan.answer.period_ns)
        # Those that share a place are within a hundredth of each other.
        assert abs(plan.answer.period_ns / fastest[plan.place] - 1) <= 0.0101
    assert list(fastest.values()) == sorted(fastest.values())
    assert ranking.plans[-1].beats_next is None
    for plan in ranking.plans:
        assert plan.answer.interval.low_ns <= plan.answer.period_ns <= plan.answer.interval.high_ns
        assert plan.fits


def test_a_stated_loader_is_shown_apart_and_changes_no_order(tables):
    ready = api.rank(_question(tables, stack="torchrec"))
    assert ready.loader == ()
    loaded = api.rank(
        _question(tables, stack="torchrec", overrides=("batch=16384", "input.load_time=1 s"))
    )
    for one, other in zip(ready.plans, loaded.plans, strict=True):
        assert one.plan.name == other.plan.name
        assert one.answer.iteration_ns == other.answer.iteration_ns
    assert ready.verdict == loaded.verdict
    assert loaded.loader[0].startswith("Your loader takes 1 s per batch")
    assert f"so {len(loaded.plans)} of {len(loaded.plans)} plans wait" in loaded.loader[0]
    short = api.rank(
        _question(tables, stack="torchrec", overrides=("batch=16384", "input.load_time=1 ns"))
    )
    assert short.loader == ("Your loader takes 1 ns per batch, which no plan waits for.",)


def test_nothing_that_fits_is_an_error_and_writes_no_plan(tmp_path):
    huge = tmp_path / "huge.yaml"
    huge.write_text("tables:\n  - {name: huge, rows: 400000000000, width: 128}\n")
    plan, answer = tmp_path / "plan.json", tmp_path / "answer.json"
    result = _run(
        ["rank", "--topology", "quad_a100", "--tables", str(huge), "--batch", "1024", "--samples",
         "2", "--sharder", "row_wise", "--plan-out", str(plan), "--json", str(answer)]
    )  # fmt: skip
    assert isinstance(result.exception, PlanError)
    assert "No plan fits" in str(result.exception)
    assert not plan.exists()
    assert json.loads(answer.read_text())["fits"] is False


def test_a_ranking_saves_the_plan_that_the_command_line_writes(tables, tmp_path):
    ranking = api.rank(_question(tables, sharders=("row_wise", "naive")))
    saved = ranking.save_plan(tmp_path / "plan.json")
    again = api.rank(_question(tables, sharders=(), plan_files=(str(saved),)))
    assert again.plans[0].answer.period_ns == ranking.plans[0].answer.period_ns
    with pytest.raises(OutputError, match="Make it first"):
        ranking.save_plan(tmp_path / "nowhere" / "plan.json")
    cramped = replace(ranking, plans=tuple(replace(one, fits=False) for one in ranking.plans))
    with pytest.raises(PlanError, match=r"No plan fits.*other.json was not written"):
        cramped.save_plan(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_the_search_is_never_worse_than_what_it_starts_from(tables):
    ranking = api.rank(_question(tables, search=0.5, seed=1))
    searched = next(plan for plan in ranking.plans if plan.plan.name == "searched")
    # The search compares plans without contention, and the list counts it.
    assert searched.answer.period_ns <= 1.005 * min(plan.answer.period_ns for plan in ranking.plans)
    assert ranking.plans_judged > len(ranking.plans)


def test_the_same_question_twice_has_the_same_answer_and_says_how_it_was_found(tables):
    first, second = (api.rank(_question(tables)) for _ in range(2))
    assert [plan.plan for plan in first.plans] == [plan.plan for plan in second.plans]
    # Plans within one percent of each other are ties.
    times = [plan.answer.iteration_ns for plan in first.plans]
    assert all(earlier <= 1.01 * later for earlier, later in pairwise(times))
    assert first.facts == (
        "quad_a100: 1 host, 4 ranks",
        (
            "tables.yaml, with the dense part of dlrm_dcnv2 (4.24 M parameters): 5 tables, "
            "0.1 GiB of weights"
        ),
        "batch 16,384, 4,096 samples per rank",
        "stack hugectr",
    )
    full = first.assumptions[-1]
    assert full.startswith("Listed plans are predicted in full")
    assert "include contention" in full
    for plan in first.plans:
        assert plan.bound == max(plan.path, key=lambda share: share.duration_ns).name
    two = {"topology": "dgx_h100", "hosts": 2, "ranks_per_host": 1, "mode": Mode.ISOLATED}
    few = api.rank(_question(tables, search=0.2, sharders=("naive",), **two))
    assert few.facts[0] == "dgx_h100: 2 hosts, 2 ranks"
    assert "plans that the search tried" in few.assumptions[-1]
    assert {plan.answer.mode for plan in few.plans} == {Mode.ISOLATED}


def test_a_transformer_has_no_tables_to_place(tables):
    with pytest.raises(PlanError, match="no embedding tables"):
        api.rank(_question(tables, workload="llama3_8b", overrides=()))


def test_a_search_with_a_limit_of_plans_repeats_itself():
    outcomes = []
    for _ in range(2):
        evaluator, task = plan_setting(8)
        search = PlanSearch(evaluator, task, mode=Mode.PERIOD, seed=4)
        starts = [build_named_plan("naive", task)]
        outcomes.append(search.run(starts, 300))
    assert outcomes[0] == outcomes[1]


def _run(arguments: list[str]):
    return CliRunner().invoke(app, arguments)


def test_the_command_line_writes_all_files_and_its_plan_can_be_ranked_again(tables, tmp_path):
    files = {name: str(tmp_path / name) for name in ("a.json", "a.csv", "a.html", "plan.json")}
    common = ["rank", "--topology", "quad_a100", "--tables", tables, "--batch", "16384"]
    common += ["--samples", "4"]
    result = _run(
        [*common, "--json", files["a.json"], "--csv", files["a.csv"], "--report", files["a.html"],
         "--plan-out", files["plan.json"], "--sharder", "naive",
         "--sharder", "balanced"]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "beats next" in result.output
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema_version"] == 1
    assert len(document["plans"]) == 2
    assert (tmp_path / "a.csv").read_text().count("\n") == 3
    assert "balanced" in (tmp_path / "a.html").read_text()
    again = _run([*common, "--sharder", "none", "--plan", files["plan.json"], "--json", "-"])
    assert again.exit_code == 0, again.output
    first = json.loads(again.stdout)["plans"][0]
    # Of those that share the first place one that TorchRec can run was written.
    fastest = {plan["period_ns"] for plan in document["plans"] if plan["place"] == 1}
    assert first["period_ns"] in fastest


def test_describing_indices_shows_them(tmp_path):
    np.savez(tmp_path / "i.npz", indices=[1, 1, 2, 3], lengths=[[2, 1], [1, 0]])
    result = _run(["embeddings", "describe", str(tmp_path / "i.npz")])
    assert result.exit_code == 0, result.output
    assert "2 tables, 2 samples" in result.output
