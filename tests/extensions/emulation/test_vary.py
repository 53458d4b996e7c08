"""`perfmodel emulate --vary`: one job a setting, and the order of their times and prices."""

from __future__ import annotations

import json

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.emulation.commands import settings_of
from tests.extensions.emulation.emulating import run_perfmodel

SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
rows = parser.parse_args().batch_size
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(rows, 4096).cuda()).mean().backward()
    optimizer.step()
"""


def test_settings_stand_for_their_places_or_behind_the_words():
    found = settings_of(("train.py", "lr={lr}"), ["lr=1,2", "batch=8,16"])

    assert list(found) == ["lr=1,batch=8", "lr=1,batch=16", "lr=2,batch=8", "lr=2,batch=16"]
    assert found["lr=2,batch=8"] == ("train.py", "lr=2", "--batch", "8")
    assert settings_of(("train.py",), []) == {"": ("train.py",)}


def test_a_setting_of_one_value_is_refused():
    with pytest.raises(ScenarioError, match="has one value"):
        settings_of(("train.py",), ["batch=8"])


def test_every_setting_becomes_a_job_and_the_comparison_orders_them(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_perfmodel(
        "emulate", "--ranks", "1", "--device", "h100_sxm", "--vary", "batch_size=32768,64",
        "--out", "jobs", "--", "train.py", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "perfmodel compare jobs/batch_size=32768 jobs/batch_size=64 --topology" in done.stderr

    jobs = [str(folder) for folder in sorted((tmp_path / "jobs").iterdir())]
    words = ["--topology", "dgx_h100", "--price", "2", "--json", "-"]
    compared = run_perfmodel("compare", *jobs, *words, folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    rows = json.loads(compared.stdout)["scenarios"]
    assert [row["name"] for row in rows] == ["batch_size=32768", "batch_size=64"]
    assert rows[0]["cost_per_million"] < rows[1]["cost_per_million"]


def test_a_setting_that_runs_out_of_memory_is_a_result_beside_the_others(tmp_path):
    made_there = SCRIPT.replace("4096).cuda()", "4096, device='cuda')")
    (tmp_path / "train.py").write_text(made_there)
    done = run_perfmodel(
        "emulate", "--ranks", "1", "--device", "h100_sxm", "--vary", "batch_size=9000000,64",
        "--out", "jobs", "--", "train.py", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = [
        line for line in done.stderr.splitlines() if line.startswith("perfmodel: batch_size=9")
    ]
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 137.33 GiB" in row
    assert "train.py:12" in row
    assert "1 jobs, one per setting, 1 without one" in done.stderr
    assert [folder.name for folder in (tmp_path / "jobs").iterdir()] == ["batch_size=64"]


def test_a_sweep_without_any_job_fails_as_its_script_does(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nsys.exit(7)\n")
    done = run_perfmodel(
        "emulate", "--ranks", "1", "--device", "h100_sxm", "--vary", "x=1,2", "--out", "jobs",
        "--", "train.py", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 7
    assert "x=2: train.py: rank 0 ended with exit code 7; no job is written." in done.stderr
