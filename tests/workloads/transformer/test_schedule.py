"""The order of micro-batches in a pipeline."""

from __future__ import annotations

import pytest

from perfmodel.graph.ops import Pass
from perfmodel.workloads.transformer.schedule import build_schedule


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
