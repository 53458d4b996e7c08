"""The virtual driver: an unmodified CUDA build of torch, in an environment of its own."""

from __future__ import annotations

import sys

import pytest

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.driver.launch import default_python, find_wheel
from tests.extensions.emulation.emulating import SCRIPTS, emulate


def test_a_pipeline_takes_turns_as_its_schedule_says(tmp_path):
    run = emulate(SCRIPTS / "stages.py", tmp_path, "--ranks", "2")
    # Four micro-batches go forward and come back, and their shapes are known by then.
    assert sum(run.collectives().values()) == sum(run.collectives(1).values()) == 8


def test_out_of_memory_is_torchs_own_error(tmp_path):
    script = tmp_path / "large.py"
    script.write_text("import torch\ntorch.empty(90 << 30, dtype=torch.uint8, device='cuda')\n")
    run = emulate(script, tmp_path, "--ranks", "1")
    assert run.code == 1
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB" in run.stderr


VALUES = """
import torch

scale = torch.tensor(3.0, device="cuda")
copied = scale.clone()
loss = torch.rand(4, device="cuda").sum()
assert (scale.item(), copied.item(), loss.item()) == (3.0, 3.0, 1.0)
tokens = torch.tensor([2, 0, 2, 1]).cuda()
assert torch.unique_consecutive(tokens.sort().values, return_counts=True)[1].tolist() == [1, 1, 2]
assert tokens.bincount(minlength=4).tolist() == [1, 1, 2, 0]
experts = torch.rand(64, 8, device="cuda").topk(2).indices
assert int(experts.flatten().bincount(minlength=8).sum()) == 128
scaler = torch.amp.GradScaler()
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(4):
    scaler.scale(layer(torch.ones(4, 8).cuda()).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_values_that_the_host_wrote_are_true_and_others_are_placeholders(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(VALUES)
    run = emulate(script, tmp_path, "--ranks", "1", "--run-on")
    assert run.code == 0, run.stderr
    assert "value of a device tensor" in run.stderr
    # A loss scaler finds no overflow, so that every step is made.
    assert run.job.facts.samples == 4


def test_a_build_without_cuda_is_refused():
    with pytest.raises(EmulationError, match="must be built for CUDA 13"):
        find_wheel(sys.executable)


def test_a_python_that_is_not_there_is_named():
    with pytest.raises(EmulationError, match="nowhere/python: cannot be run"):
        find_wheel("nowhere/python")


def test_without_an_environment_the_error_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(EmulationError, match="Run `make emulate`, or name the python"):
        default_python()
