"""`perfmodel compare`, `predict --sweep` and `--scenario`: one table, and files."""

import html
import re


def test_machines_side_by_side(typed, tmp_path):
    files = {name: tmp_path / name for name in ("a.csv", "a.html")}
    words = ["--csv", files["a.csv"], "--report", files["a.html"]]
    shown = typed("compare --topology dgx_a100,dgx_h100 --workload dlrm_mlperf", *words).out
    assert "dgx_a100" in shown
    assert re.search(r"topology=dgx_h100 is fastest, \d\.\d+ times as fast", shown)
    assert all(path.stat().st_size > 100 for path in files.values())


def test_scenario_files_side_by_side(ask, tmp_path):
    names = ("dgx_h100", "dgx_a100")
    paths = [tmp_path / f"{name}.yaml" for name in names]
    for name, path in zip(names, paths, strict=True):
        path.write_text(f"topology: {name}\nworkload: dlrm_mlperf\nsamples: 2\n")
    document = ask("compare", *paths)
    assert [one["name"] for one in document["scenarios"]] == [*names]
    fastest = min(document["scenarios"], key=lambda one: one["iteration_time_ms"])
    assert document["fastest"] == fastest["name"]
    alone = ask("predict --scenario", paths[0])
    assert alone["iteration_time_ms"] == document["scenarios"][0]["iteration_time_ms"]


def test_a_sweep_over_machines_needs_no_other_machine(ask, typed):
    words = "predict --workload dlrm_mlperf --sweep"
    document = ask(words, "topology=dgx_a100,dgx_h100")
    assert len(document["scenarios"]) == 2
    assert "name a machine" in typed(words, "batch=4096,8192", code=2).said


def test_a_sweep_without_values_is_refused(typed):
    said = typed("predict --topology dgx_a100 --sweep batch=4096", code=1).said
    assert "one value" in said


def test_what_does_not_fit_is_refused_where_that_is_asked(typed):
    words = "predict --workload llama3_70b --topology dgx_a100 --require-fit"
    assert "DOES NOT FIT" in typed(words, code=1).said
    assert "fits in memory" in typed(words.replace("llama3_70b", "gpt2_124m")).out


def test_schemas_and_workloads_are_printed(typed):
    for kind in ("topology", "workload", "scenario", "runs", "gemm", "predict", "search"):
        assert len(typed("schema", kind).out) > 200
    assert "layers: 32" in typed("workload show llama3_8b").out


def test_whole_runs_side_by_side_have_days_and_money(ask, typed, tmp_path):
    prices = tmp_path / "prices.yaml"
    typed("init prices --out", prices)
    words = "compare --topology aws_p4d,dgx_h100 --workload gpt2_124m --set batch=96 --tokens 1B"
    document = ask(f"{words} --prices", prices)
    # aws_p4d has the 40 GB card, which the shipped file does not list.
    assert [one["cost"] is None for one in document["scenarios"]] == [False, True]
    for one in document["scenarios"]:
        # 1e9 tokens in iterations of 96 x 1,024.
        days = 1e9 / (96 * 1024) * one["iteration_time_ms"] / 86_400_000
        assert abs(one["days_without_failures"] / days - 1) < 1e-9


def test_a_sweep_of_the_batch_crowns_what_gets_most_done(ask):
    document = ask("predict gpt2_124m --topology dgx_a100 --sweep batch=96,480 --samples 2")
    most = max(document["scenarios"], key=lambda one: one["per_s"])
    assert document["fastest"] == most["name"] == "batch=480"


def test_a_brief_answer_is_ten_lines(typed):
    shown = typed("predict gpt2_124m --topology dgx_a100 --set batch=96 --samples 2 --brief").out
    assert "per iteration" in shown
    assert len(shown.splitlines()) <= 10


def test_the_command_of_a_search_predicts_its_best_layout_again(typed, ask, tmp_path):
    page = tmp_path / "search.html"
    words = "search --workload gpt2_124m --topology dgx_a100 --set batch=16 --stack megatron"
    fixed = (
        "--set parallel.pp=1 --set parallel.tp=1 --set parallel.sharding=none --seconds 2 --top 1"
    )
    found = ask(f"{words} {fixed} --report", page)
    best = found["searches"][0]["layouts"][0]
    command = re.search(r"perfmodel (predict [^<]*--stack megatron[^<]*)", page.read_text())[1]
    again = ask(html.unescape(command))
    assert again["iteration_time_ms"] == best["iteration_time_ms"]
