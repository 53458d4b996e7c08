"""Recorded jobs on disk."""

import json
from dataclasses import replace

import pytest

from perfmodel.base.errors import PerfModelError
from perfmodel.recordings.self_replay import self_replay
from perfmodel.recordings.storage import load_recorded_job, save_recorded_job
from tests.recordings.builders import import_spans
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
