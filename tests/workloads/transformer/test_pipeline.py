"""The order of micro-batches in a pipeline."""

from __future__ import annotations

import pytest

from perfmodel.graph.ops import Pass
from perfmodel.workloads.transformer.pipeline import build_schedule


def _letters(stage: int, stages: int, micro_batches: int) -> str:
    turns = build_schedule(stage=stage, stages=stages, micro_batches=micro_batches)
    return " ".join(f"{turn.direction.value[0]}{turn.micro_batch}" for turn in turns)


def test_one_forward_one_backward_by_hand():
    assert _letters(0, 3, 4) == "f0 f1 f2 b0 f3 b1 b2 b3"
    assert _letters(1, 3, 4) == "f0 f1 b0 f2 b1 f3 b2 b3"
    assert _letters(2, 3, 4) == "f0 b0 f1 b1 f2 b2 f3 b3"


def test_a_single_stage_alternates():
    assert _letters(0, 1, 2) == "f0 b0 f1 b1"


@pytest.mark.parametrize("stage", range(8))
@pytest.mark.parametrize("micro_batches", [1, 3, 8, 20])
def test_every_micro_batch_passes_once_each_way_and_forward_first(stage, micro_batches):
    turns = build_schedule(stage=stage, stages=8, micro_batches=micro_batches)
    for direction in Pass:
        passed = [turn.micro_batch for turn in turns if turn.direction is direction]
        assert passed == list(range(micro_batches))
    in_flight = 0
    for turn in turns:
        in_flight += 1 if turn.direction is Pass.FORWARD else -1
        assert 0 <= in_flight <= 8 - stage


def _runs(stage: int) -> str:
    turns = build_schedule(stage=stage, stages=2, micro_batches=4, runs=2)
    return " ".join(f"{turn.direction.value[0]}{turn.micro_batch}.{turn.run}" for turn in turns)


def test_interleaved_stages_by_hand():
    # Two stages of two runs: micro-batches go round in pairs; ahead are 2 (2 - 0 - 1) + 2 = 4
    # turns on the first stage, and 2 on the last.
    assert _runs(0) == (
        "f0.0 f1.0 f0.1 f1.1 f2.0 b0.1 f3.0 b1.1 f2.1 b0.0 f3.1 b1.0 b2.1 b3.1 b2.0 b3.0"
    )
    assert _runs(1) == (
        "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 f3.0 b1.0 f2.1 b2.1 f3.1 b3.1 b2.0 b3.0"
    )


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("micro_batches", [4, 8, 12])
def test_interleaved_every_run_sees_every_micro_batch_once_each_way(stage, micro_batches):
    turns = build_schedule(stage=stage, stages=4, micro_batches=micro_batches, runs=3)
    seen = [(turn.direction, turn.run, turn.micro_batch) for turn in turns]
    assert len(set(seen)) == len(seen) == 2 * 3 * micro_batches
    for run in range(3):
        for number in range(micro_batches):
            forward = seen.index((Pass.FORWARD, run, number))
            assert forward < seen.index((Pass.BACKWARD, run, number))
