"""`perfmodel compare`, `predict --sweep` and `--scenario`: one table, and files."""

from __future__ import annotations

import json
import re

from tests.cli.test_predict import refused, run


def test_machines_side_by_side(capsys, tmp_path):
    files = {name: tmp_path / name for name in ("a.csv", "a.svg", "a.html")}
    words = ["--csv", files["a.csv"], "--plot", files["a.svg"], "--report", files["a.html"]]
    asked = ["compare", "--topology", "dgx_a100,dgx_h100", "--workload", "dlrm_mlperf"]
    assert run(*asked, *words) == 0

    shown = capsys.readouterr().out
    assert "dgx_a100" in shown
    # The host decides on both, so their difference is none.
    assert "all are equally fast, to 1 %" in shown
    assert re.search(r"2\.\d+ ms per iteration", shown)
    assert all(path.stat().st_size > 100 for path in files.values())


def test_scenario_files_side_by_side(capsys, tmp_path):
    for name in ("dgx_a100", "dgx_h100"):
        text = f"topology: {name}\nworkload: dlrm_mlperf\nsamples: 2\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    paths = [tmp_path / "dgx_a100.yaml", tmp_path / "dgx_h100.yaml"]
    assert run("compare", *paths, "--json", "-") == 0

    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["scenarios"]] == ["dgx_a100", "dgx_h100"]
    fastest = min(document["scenarios"], key=lambda one: one["iteration_time_ms"])
    assert document["fastest"] == fastest["name"]
    assert run("predict", "--scenario", paths[0], "--json", "-") == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["iteration_time_ms"] == document["scenarios"][0]["iteration_time_ms"]


def test_a_sweep_without_values_is_refused(capsys):
    message = refused(capsys, "predict", "--topology", "dgx_a100", "--sweep", "batch=4096")

    assert "one value" in message


def test_what_does_not_fit_is_refused_where_that_is_asked(capsys):
    words = ("--workload", "llama3_70b", "--topology", "dgx_a100", "--require-fit")
    message = refused(capsys, "predict", *words)

    assert "DOES NOT FIT" in message


def test_schemas_and_workloads_are_printed(capsys):
    for kind in ("topology", "workload", "scenario", "runs", "gemm", "predict", "search"):
        assert run("schema", kind) == 0
        assert len(capsys.readouterr().out) > 200
    assert run("workload", "show", "llama3_8b") == 0
    assert "layers: 32" in capsys.readouterr().out
