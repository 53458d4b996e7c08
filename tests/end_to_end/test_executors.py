"""The place where replays run does not change one byte of the answer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from perfmodel.extensions.recordings.storage import save_recorded_job
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch

QUESTIONS = [
    ("--topology", "dgx_h100", "--workload", "dlrm_mlperf"),
    ("--topology", "dgx_a100", "--workload", "gpt2_xl", "--hosts", "2", "--set", "model.layers=4",
     "--set", "batch=32", "--isolated"),
]  # fmt: skip


def ask(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer without its run, and the run."""
    program = "from perfmodel.cli import main; import sys; main(sys.argv[1:])"
    outcome = subprocess.run(
        [sys.executable, "-c", program, "predict", *words, "--samples", "8", "--json", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(outcome.stdout)
    return answer, answer.pop("run")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=["dlrm", "transformer"])
def test_ray_with_two_workers_prints_the_bytes_of_serial(question):
    serial, serial_run = ask(*question, "--executor", "serial")
    ray, ray_run = ask(*question, "--executor", "ray", "--workers", "2")

    assert json.dumps(serial) == json.dumps(ray)
    assert serial_run["executor"] == "serial"
    assert ray_run["executor"].startswith("ray, 2 workers")


@pytest.mark.ray
@pytest.mark.slow
def test_ray_prints_the_bytes_of_serial_for_a_recording(tmp_path):
    spans = [
        *(launch(1, 0), kernel(1, 10, 50, name="sgemm")),
        *(launch(2, 20), kernel(2, 60, 30, 20, name="ncclDevKernel_AllReduce")),
    ]
    save_recorded_job(import_spans(tmp_path / "traces", spans, spans), tmp_path / "job")

    serial, _ = ask("--job", str(tmp_path / "job"), "--executor", "serial")
    ray, ray_run = ask("--job", str(tmp_path / "job"), "--executor", "ray", "--workers", "2")

    assert json.dumps(serial) == json.dumps(ray)
    assert "ray" in ray_run["executor"].lower()
