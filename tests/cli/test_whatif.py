"""`perfmodel whatif`: the command line of what-ifs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfmodel.cli import main
from perfmodel.graph.storage import save_job
from perfmodel.recordings.storage import save_recorded_job
from perfmodel.whatif import load_recipes
from tests.recordings.builders import call, import_spans
from tests.traces.builders import span
from tests.whatif.jobs import training_job


@pytest.fixture
def folder(tmp_path):
    save_job(training_job(slow_rank=1), tmp_path / "job")
    return str(tmp_path / "job")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["whatif", *words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_page_says_what_was_touched_and_how_to_ask_again(folder, tmp_path):
    page = tmp_path / "page.html"
    change = "no_straggler:rank=1"

    assert run(folder, "--isolated", "--apply", change, "--report", str(page)) == 0

    text = page.read_text(encoding="utf-8")
    assert f"perfmodel whatif {folder} --isolated --apply {change}" in text
    assert f"{change}: " in text
    assert "retimed" in text


def test_the_answer_shows_before_and_after_with_reasons(folder, capsys):
    assert run(folder, "--isolated", "--apply", "no_straggler:rank=1") == 0

    shown = capsys.readouterr().out
    assert "690 ns per iteration, before 1.19 us" in shown
    assert "the critical path" in shown
    assert "rank 0 for rank 1" in shown
    assert "Rank 1 takes as long as the other ranks" in " ".join(shown.split())


def test_the_json_holds_steps_sweep_and_assumptions(folder, capsys):
    words = ("--apply", "no_straggler:rank=1", "--sweep", "scale:match=gemm,factor=0.5..1")
    assert run(folder, "--isolated", *words, "--json", "-") == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1
    assert answer["self_replay"] is None
    assert answer["before"]["iteration_time_ms"] == 0.00119
    assert answer["iteration_time_ms"] == answer["after"]["iteration_time_ms"] == 0.00069
    assert answer["steps"][0]["apply"] == "no_straggler:rank=1"
    points = answer["sweep"]["points"]
    assert [(point["value"], point["iteration_time_ms"]) for point in points] == [
        ("0.5", 0.0005), ("1", 0.00069),
    ]  # fmt: skip
    assert answer["after"]["critical_path"]["by_kind_ms"]
    assert answer["assumptions"]


def test_the_same_question_gives_the_same_bytes(folder, capsys):
    run(folder, "--apply", "serialise", "--json", "-")
    first = capsys.readouterr().out
    run(folder, "--apply", "serialise", "--json", "-")

    assert capsys.readouterr().out == first


def test_all_changes_are_listed(capsys):
    assert run("--list") == 0

    shown = capsys.readouterr().out
    for name in load_recipes():
        assert f"\n{name}\n" in f"\n{shown}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--apply", "skale"], "Did you mean 'scale'?"),
        (["--apply", "scale:match=gemm"], "factor: must be given"),
        (["--sweep", "scale:match=gemm,factor=1"], "exactly one parameter"),
        (["--apply", "ranks:count=3"], "multiple of the 2 ranks"),
        (["--apply", "overlap", "--hosts", "2"], "--hosts 2: describes a machine"),
    ],
)
def test_a_wrong_change_is_one_message(folder, words, message, capsys):
    assert run(folder, *words) == 1

    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_folder_that_is_no_job_is_refused(tmp_path, capsys):
    assert run(str(tmp_path), "--apply", "overlap") == 1

    assert "must be a folder with a job.json" in capsys.readouterr().err


def test_without_a_change_the_command_line_is_wrong(folder, capsys):
    assert run(folder) == 2

    assert "--apply" in capsys.readouterr().err


@pytest.fixture
def recording(tmp_path):
    """Two launches and their kernels, recorded."""
    spans = [
        call("cudaLaunchKernel", 0, 5, 1),
        span("kernel", "sgemm", 6, 100, correlation=1, stream=7),
        call("cudaLaunchKernel", 10, 5, 2),
        span("kernel", "relu", 106, 50, correlation=2, stream=7),
    ]
    return import_spans(tmp_path / "traces", spans)


def test_an_answer_for_a_recording_shows_how_well_it_replays(recording, tmp_path, capsys):
    save_recorded_job(recording, tmp_path / "recorded")

    assert run(str(tmp_path / "recorded"), "--apply", "scale:match=gemm,factor=0.5") == 0

    shown = capsys.readouterr().out
    assert "replays itself with an error of +0.00 %" in shown
    assert "106 us per iteration, before 156 us" in shown


def test_a_recording_that_replays_badly_is_answered_only_by_force(recording, tmp_path, capsys):
    twice = replace(recording, recorded_end_ns=2 * recording.recorded_end_ns)
    save_recorded_job(twice, tmp_path / "recorded")
    words = (str(tmp_path / "recorded"), "--apply", "scale:match=gemm,factor=0.5")

    assert run(*words) == 1
    assert "replays itself with an error of -50.0 %" in capsys.readouterr().err
    assert run(*words, "--force") == 0
