"""A plan that was ranked can be predicted in full."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from perfmodel import api
from perfmodel.base.errors import PlanError
from perfmodel.cli import app
from perfmodel.prediction.scenario import Mode, Scenario

DENSE = ["--set", "dense.interaction=concat"]


def _run(arguments: list[str]):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(("hosts", "per_host"), [(1, 4), (2, 2)])
def test_a_searched_plan_is_predicted_to_the_nanosecond(tables, tmp_path, hosts, per_host):
    plan, ranking = str(tmp_path / "plan.json"), tmp_path / "ranking.json"
    where = ["--topology", "dgx_a100", "--hosts", str(hosts), "--ranks-per-host", str(per_host)]
    what = [*where, "--tables", tables, "--set", "batch=16384", *DENSE]
    ranked = _run(
        ["rank", *what, "--search", "0.3", "--samples", "2", "--plan-out", plan,
         "--json", str(ranking)]
    )  # fmt: skip
    assert ranked.exit_code == 0, ranked.output
    document = json.loads(ranking.read_text())
    best = document["plans"][0]
    for mode in Mode:
        scenario = Scenario(
            topology="dgx_a100",
            hosts=hosts,
            ranks_per_host=per_host,
            overrides=("batch=16384", "dense.interaction=concat"),
            tables=tables,
            plan=plan,
            mode=mode,
            samples=2,
        )
        prediction = api.predict(scenario, executor="serial")
        assert prediction.period_ns == best["period_ns"]
        assert prediction.isolated_ns == best["isolated_ns"]
        assert prediction.iteration_ns in (best["period_ns"], best["isolated_ns"])
    assert any("`predict --plan`" in sentence for sentence in document["assumptions"])


def test_the_command_line_predicts_explains_and_draws_a_plan(tables, tmp_path):
    plan, trace = str(tmp_path / "plan.json"), tmp_path / "trace.json"
    what = ["--topology", "quad_a100", "--tables", tables, *DENSE]
    made = _run(["rank", *what, "--sharder", "naive", "--samples", "2", "--plan-out", plan])
    assert made.exit_code == 0, made.output
    result = _run(["predict", *what, "--plan", plan, "--json", "-", "--trace-out", str(trace)])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["scenario"]["plan"] == plan
    assert document["scenario"]["tables"] == tables
    assert sum(document["breakdown_ms"].values()) == pytest.approx(document["iteration_time_ms"])
    assert "embedding/lookup forward" in trace.read_text()


def test_tables_of_a_file_keep_what_is_known_of_their_indices(tables, tmp_path):
    scenario = Scenario("quad_a100", overrides=("dense.interaction=concat",), tables=tables)
    skewed = api.predict(scenario, executor="serial")
    assert any("zipf(0.7)" in sentence for sentence in skewed.assumptions)
    lengths = np.ones((5, 4), dtype=np.int64)
    np.savez(tmp_path / "i.npz", indices=np.zeros(20, dtype=np.int64), lengths=lengths)
    real = Scenario(
        "quad_a100",
        overrides=scenario.overrides,
        tables=tables,
        indices=str(tmp_path / "i.npz"),
    )
    observed = api.predict(real, executor="serial")
    assert any("1 observed rows" in sentence for sentence in observed.assumptions)
    # One row a sample instead of 80 and 30.
    assert observed.period_ns < skewed.period_ns


def test_a_plan_for_other_tables_or_no_tables_is_refused(tables, tmp_path):
    spec = {
        "shards": [{"shard_offsets": [0, 0], "shard_sizes": [10, 64], "placement": "rank:0/cuda:0"}]
    }
    other = {"sharding_type": "table_wise", "ranks": [0], "sharding_spec": spec}
    (tmp_path / "plan.json").write_text(json.dumps({"m": {"other": other}}))
    plan = str(tmp_path / "plan.json")
    for scenario, fault in (
        (Scenario("quad_a100", tables=tables, plan=plan), "no such table"),
        (Scenario("dgx_a100", workload="llama3_8b", plan=plan), "no embedding tables"),
        (Scenario("quad_a100", indices=plan), "give --tables too"),
    ):
        with pytest.raises(PlanError, match=fault):
            api.predict(scenario, executor="serial")
    result = _run(["predict", "--job", "j", "--plan", plan])
    assert result.exit_code == 2
