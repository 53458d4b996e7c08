"""Advice: jobs in which one thing costs time, planted, and jobs in which nothing does."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.recordings.recording_info import recording_question
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.whatif.advising import Advice, advise, report_advice, to_advice_document
from perfmodel.extensions.whatif.answering import prepare_changes
from perfmodel.prediction.question import PredictOptions
from tests.extensions.recordings.builders import call, import_spans
from tests.traces.builders import kernel, span

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SLOW_US = 3_000


def simulate(cause: str, rank: int, seed: int) -> list[Any]:
    """Six steps of a rank that waits for no other."""
    draw, spans = Random(f"{cause} {seed}"), list[Any]()
    now = busy = number = 0.0

    def launch(name: str, length: float) -> None:
        nonlocal now, busy, number
        number += 1
        spans.append(call("cudaLaunchKernel", now, 5, int(number)))
        begun = max(now + 7, busy)
        spans.append(kernel(int(number), begun, length, name=name))
        now, busy = now + 8, begun + length

    for step in range(6):
        began = now
        if cause == "loader":
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            spans.append(span("cpu_op", name, now, SLOW_US))
            now += SLOW_US
        if cause == "allocation":
            number += 1
            spans.append(call("cudaMalloc", now, SLOW_US, int(number)))
            now += SLOW_US
        for _ in range(8):
            launch("gemm", draw.randrange(180, 220))
        if cause == "item":
            number += 1
            # The host waits for all kernels, and then goes on with its own work.
            spans.append(call("cudaStreamSynchronize", now, max(busy - now, 0) + 5, int(number)))
            now = max(busy, now) + 5 + 900
        if cause == "late" and rank == 1:
            now = max(now, busy) + SLOW_US
        if cause == "small":
            for _ in range(60):
                launch("tiny", 1)
                now += 80
        launch(NCCL, SLOW_US if cause == "link" else 100)
        spans.append(span("user_annotation", f"ProfilerStep#{step}", began, now - began - 1))
    return spans


def traces(cause: str, seed: int) -> list[list[Any]]:
    """The spans of two ranks; a punctual one waits inside the collective."""
    return _aligned(seed) if cause == "late" else [simulate(cause, rank, seed) for rank in (0, 1)]


def _aligned(seed: int) -> list[list[Any]]:
    """A punctual rank whose collectives take as long as the late one is late."""
    late = simulate("late", 1, seed)
    ends = [one["ts"] + one["dur"] for one in late if one["name"] == NCCL]
    punctual, shift = list[Any](), 0.0
    place = 0
    for one in sorted(simulate("late", 0, seed), key=lambda item: item["ts"]):
        moved = one | {"ts": one["ts"] + shift}
        if one["name"] == NCCL:
            moved["dur"] = ends[place] - moved["ts"]
            shift += moved["dur"] - one["dur"]
            place += 1
        punctual.append(moved)
    return [punctual, late]


def advice_on(folder: Path, *ranks: list[Any]) -> Advice:
    job = with_score(import_spans(folder, *ranks))
    question = prepare_changes(recording_question(job, PredictOptions()), force=True)
    return advise(question, SerialExecutor())


PLANTED = {
    "loader": "the input pipeline",
    "item": "the host waits for the GPU",
    "late": "rank 1 is late",
    "allocation": "allocations",
    "link": "communication that nothing hides",
    "small": "small kernels and launches",
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_comes_first(tmp_path, cause, seed):
    found = advice_on(tmp_path, *traces(cause, seed))

    assert found.steps, "nothing found"
    assert found.steps[0].cause.name == PLANTED[cause]
    first = to_advice_document(found)["advice"][0]
    assert first["gain_ms"] > 0.3
    assert first["interval_ms"][0] <= first["gain_ms"] <= first["interval_ms"][1]


def test_a_job_with_nothing_to_gain_says_so(tmp_path):
    # A GPU that is busy all the time with its products, and a collective that nothing awaits.
    spans, number = [], 0
    for step in range(5):
        spans.append(span("user_annotation", f"ProfilerStep#{step}", step * 1_000, 999))
        for place in range(4):
            number += 1
            spans.append(call("cudaLaunchKernel", step * 1_000 + 20 * place, 5, number))
            begin = 1_000 + step * 1_000 + 250 * place
            spans.append(kernel(number, begin, 249, name="gemm"))
    found = advice_on(tmp_path, spans)

    assert found.steps == ()
    shown = [block for section in report_advice(found).sections for block in section.blocks]
    assert any("Nothing that is known" in str(block) for block in shown)
