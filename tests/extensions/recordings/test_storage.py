"""Recorded jobs on disk."""

import json
import re
from dataclasses import replace

import pytest

from perfmodel.base.errors import PerfModelError, TraceError
from perfmodel.extensions.recordings.self_replay import self_replay
from perfmodel.extensions.recordings.storage import load_recorded_job, save_recorded_job
from tests.builders import forge_column, seal_job
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch


@pytest.fixture
def job(tmp_path):
    spans = [launch(1, 0), kernel(1, 7, 10), launch(2, 20), kernel(2, 27, 10)]
    return import_spans(tmp_path / "traces", spans)


def test_what_is_saved_is_loaded(job, tmp_path):
    save_recorded_job(job, tmp_path / "job")
    back = load_recorded_job(tmp_path / "job")

    assert self_replay(back) == self_replay(job)
    assert back.report == job.report


@pytest.mark.parametrize("name", ["recording.json", "recording.parquet", "job.json"])
def test_a_folder_with_a_changed_or_missing_file_is_refused(job, tmp_path, name):
    save_recorded_job(job, tmp_path / "job")
    path = tmp_path / "job" / name
    path.write_bytes(path.read_bytes()[:-3] + b"  }")
    with pytest.raises(PerfModelError, match="job"):
        load_recorded_job(tmp_path / "job")
    path.unlink()
    with pytest.raises(PerfModelError, match="job"):
        load_recorded_job(tmp_path / "job")


@pytest.mark.parametrize("place", ["report", "rank", "score"])
def test_unknown_keys_of_report_and_score_are_refused(job, tmp_path, place):
    save_recorded_job(replace(job, score=self_replay(job)), tmp_path / "job")
    path = tmp_path / "job" / "recording.json"
    header = json.loads(path.read_text(encoding="utf-8"))
    report = header["report"]
    {"report": report, "rank": report["ranks"][0], "score": header["self_replay"]}[place]["new"] = 1
    path.write_text(json.dumps(header), encoding="utf-8")
    with pytest.raises(PerfModelError, match=r"new\n  Unexpected keyword argument"):
        load_recorded_job(tmp_path / "job")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("recorded_start_ns", "now", "must be whole numbers"),
        ("recorded_start_ns", None, "must be whole numbers"),
        ("recorded_end_ns", -(2**62), "between -2^53 and 2^53 ns"),
        ("recorded_end_ns", -1, "no task may end before it starts"),
        ("can_be_held", 1.5, "switches true or false"),
    ],
)
def test_forged_columns_with_right_checksums_are_refused(job, tmp_path, column, value, words):
    save_recorded_job(job, tmp_path / "job")
    forge_column(tmp_path / "job" / "recording.parquet", column, [value] * job.graph.task_count)
    seal_job(tmp_path / "job")
    with pytest.raises(TraceError, match=re.escape(words)):
        load_recorded_job(tmp_path / "job")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header.update(step_ends=[[]]), "ends of steps must be tasks"),
        (lambda header: header.update(step_ends=[[0], [999]]), "ends of steps must be tasks"),
        (lambda header: header.update(step_ends=[[10**30]]), "not a readable recording"),
        (lambda header: header["report"].update(ranks=[]), "must be about 1 ranks"),
        (lambda header: header["self_replay"].update(periods=[], ranks=[]), "must be about 1"),
    ],
)
def test_a_forged_header_of_a_recording_is_refused(job, tmp_path, change, words):
    save_recorded_job(replace(job, score=self_replay(job)), tmp_path / "job")
    path = tmp_path / "job" / "recording.json"
    header = json.loads(path.read_bytes())
    change(header)
    path.write_text(json.dumps(header))
    with pytest.raises(TraceError, match=words):
        load_recorded_job(tmp_path / "job")
