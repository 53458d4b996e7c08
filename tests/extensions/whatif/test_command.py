"""`perfmodel whatif`: the command line of what-ifs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.extensions.recordings.storage import save_recorded_job
from perfmodel.extensions.whatif import load_recipes
from perfmodel.graph.storage import save_job
from tests.extensions.recordings.builders import call, import_spans
from tests.extensions.whatif.jobs import training_job
from tests.traces.builders import span


@pytest.fixture
def folder(tmp_path):
    save_job(training_job(slow_rank=1), tmp_path / "job")
    return str(tmp_path / "job")


def test_the_page_says_what_was_touched_and_how_to_ask_again(folder, tmp_path, typed):
    page, change = tmp_path / "page.html", "no_straggler:rank=1"
    typed("whatif", folder, "--isolated", "--apply", change, "--report", page)
    text = page.read_text(encoding="utf-8")
    assert f"perfmodel whatif {folder} --isolated --apply {change}" in text
    assert f"{change}: " in text
    assert "retimed" in text


def test_the_answer_shows_before_and_after_with_reasons(folder, typed):
    shown = typed("whatif --isolated --apply no_straggler:rank=1", folder).out
    assert "690 ns per iteration, before 1.19 us" in shown
    assert "the critical path" in shown
    assert "rank 0 for rank 1" in shown
    assert "Rank 1 takes as long as the other ranks" in " ".join(shown.split())


def test_the_json_holds_steps_sweep_and_assumptions(folder, ask):
    words = "--apply no_straggler:rank=1 --sweep scale:match=gemm,factor=0.5..1"
    answer = ask(f"whatif --isolated {words}", folder)
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


def test_the_same_question_gives_the_same_bytes(folder, typed):
    words = ("whatif --apply recompute --json -", folder)
    assert typed(*words).out == typed(*words).out


def test_all_changes_are_listed(typed):
    shown = typed("whatif --list").out
    for name in load_recipes():
        assert f"\n{name}\n" in f"\n{shown}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--apply skale", "Did you mean 'scale'?"),
        ("--apply scale:match=gemm", "factor: must be given"),
        ("--sweep scale:match=gemm,factor=1", "exactly one parameter"),
        ("--apply ranks:count=3", "multiple of the 2 ranks"),
        ("--apply recompute --hosts 2", "--hosts 2: describes a machine"),
    ],
)
def test_a_wrong_change_is_one_message(folder, words, message, typed):
    assert message in typed(f"whatif {words}", folder, code=1).said


def test_a_folder_that_is_no_job_and_a_job_without_a_change_are_refused(folder, tmp_path, typed):
    said = typed("whatif --apply recompute", tmp_path, code=1).said
    assert "must be a folder with a job.json" in said
    assert "--apply" in typed("whatif", folder, code=2).said


HALF = "scale:match=gemm,factor=0.5"


@pytest.fixture
def recording(tmp_path):
    """A step of two launches and their kernels, recorded."""
    spans = [
        span("user_annotation", "ProfilerStep#1", -1, 21),
        call("cudaLaunchKernel", 0, 5, 1),
        span("kernel", "sgemm", 6, 100, correlation=1, stream=7),
        call("cudaLaunchKernel", 10, 5, 2),
        span("kernel", "relu", 106, 50, correlation=2, stream=7),
    ]
    return import_spans(tmp_path / "traces", spans)


def test_an_answer_for_a_recording_shows_how_well_it_replays(recording, tmp_path, typed):
    save_recorded_job(recording, tmp_path / "recorded")
    shown = typed(f"whatif --apply {HALF}", tmp_path / "recorded").out
    assert "replays itself with an error of +0.00 %" in shown
    assert "104.5 us per iteration, before 154.5 us" in shown


def test_a_recording_that_replays_badly_is_answered_only_by_force(recording, tmp_path, typed):
    twice = replace(recording, recorded_end_ns=2 * recording.recorded_end_ns)
    save_recorded_job(twice, tmp_path / "recorded")
    said = typed(f"whatif --apply {HALF}", tmp_path / "recorded", code=1).said
    assert "replays itself with an error of -50.0 %" in said
    typed(f"whatif --force --apply {HALF}", tmp_path / "recorded")
