"""Constants of interference, and which ones an unrecorded GPU uses."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.costs.interference import (
    NOTHING_SLOWED,
    OVERLAPPING,
    SLOWED_FAMILIES,
    Phase,
    load_slowdowns,
    parse_slowdowns,
    slowdowns_for,
)
from topologies import load_device

HEADER = "source: s\nhardware: h\nsoftware: s\ndate: '2026-11-16'\nlicence: l\ncommand: c\n"


def test_nothing_runs_faster_beside_a_collective_and_moving_costs_no_less_than_waiting():
    for generation in load_slowdowns().values():
        for family in SLOWED_FAMILIES:
            waiting, moving = (generation.factor(family, phase) for phase in OVERLAPPING)
            assert 1 <= waiting <= moving


def test_copies_the_host_and_stated_durations_are_not_slowed():
    hopper = load_slowdowns()["hopper"]
    assert hopper.factor("copy", Phase.MOVING) == hopper.factor("host", Phase.MOVING) == 1
    assert NOTHING_SLOWED.factor("gemm", Phase.MOVING) == 1


@pytest.mark.parametrize(
    ("device", "architecture", "is_own"),
    [("h100_sxm", "hopper", True), ("b200_sxm", "hopper", False), ("l40s", "hopper", False),
     ("p100_pcie_16gb", "volta", False), ("mi300x", "cdna3", True)],
)  # fmt: skip
def test_a_gpu_takes_the_constants_of_the_nearest_generation(device, architecture, is_own):
    found = slowdowns_for(load_device(device))
    assert (found.architecture, found.is_own) == (architecture, is_own)


def test_every_fault_of_a_file_is_named():
    text = HEADER + (
        "generations:\n"
        "  volta:\n"
        "    gemm: {waiting: {slowdown: 0.5}, moving: {slowdown: fast}}\n"
        "    memory: {waiting: {slowdown: 1.0}}\n"
        "    attention: {waiting: {slowdown: 1.0, colour: 3}, moving: {slowdown: 1.0}}\n"
        "    embedding: {waiting: {slowdown: 1.0, kernels: -1}, moving: {slowdown: 1.0}}\n"
        "  ampere: {gemm: {}}\n"
    )
    with pytest.raises(CalibrationError) as caught:
        parse_slowdowns(text, document="made.yaml")
    for place in ("gemm.waiting", "gemm.moving", "memory", "attention", "embedding", "ampere"):
        assert place in str(caught.value)
    with pytest.raises(CalibrationError, match="source"):
        parse_slowdowns("generations: {volta: {}}\n", document="made.yaml")
