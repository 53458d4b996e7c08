"""The machine that a job was recorded on."""

from __future__ import annotations

import pytest

from perfmodel.extensions.whatif.recorded_machine import (
    about_machine,
    find_machine,
    recorded_machine,
)
from tests.extensions.recordings.test_recording_info import build_job


@pytest.mark.parametrize(
    ("name", "gpus", "machine"),
    [
        ("Tesla V100-SXM2-16GB", 8, "dgx1_v100"),
        ("Tesla V100-SXM2-32GB", 4, "dgx1_v100"),  # the same chip with more memory
        ("Tesla V100-PCIE-32GB", 2, "v100_pcie"),
        ("NVIDIA H100 80GB HBM3", 8, "dgx_h100"),  # before a cloud's, whose network is shared
        ("NVIDIA H100 80GB HBM3", 4, "hgx_h100_4gpu"),
        ("NVIDIA GeForce RTX 4090", 2, "rtx_4090_pcie"),
        ("NVIDIA GeForce RTX 3090", 1, "rtx_3090_pcie"),
    ],
)
def test_the_name_of_a_gpu_and_their_number_tell_the_machine(name, gpus, machine):
    found = find_machine(name, gpus)

    assert found is not None
    assert found.name == machine


def test_an_unknown_gpu_is_no_machine():
    assert find_machine("Quadro 600", 8) is None


def test_the_machine_of_a_recording_is_found_by_its_gpus():
    named = build_job(device="NVIDIA A100-SXM4-80GB", gpus_per_host=8)
    assert recorded_machine(named) == "dgx_a100"
    assert "8 x NVIDIA A100-SXM4-80GB: assumed to be dgx_a100" in about_machine(named)
    assert recorded_machine(build_job()) is None
    assert recorded_machine(build_job(device="TPU v9", gpus_per_host=8)) is None
