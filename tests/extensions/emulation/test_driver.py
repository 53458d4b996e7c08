"""The virtual driver: an unmodified CUDA build of torch, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.driver.launch import find_wheel
from perfmodel.graph.ops import Gemm
from tests.extensions.emulation.emulating import ROOT, SCRIPTS, emulate

PYTHON = Path(os.environ.get("PERFMODEL_CUDA_PYTHON", ROOT / ".venv/cuda/bin/python"))
needs_wheel = pytest.mark.skipif(
    not PYTHON.is_file() or shutil.which("cc") is None,
    reason=f"needs cc and a CUDA build of torch at {PYTHON} (make emulate)",
)


@pytest.fixture(scope="module", params=["ddp", "sharded"])
def pair(request, emulated, tmp_path_factory):
    """The same script on the virtual device and on the virtual driver."""
    ranks = {"ddp": "8", "sharded": "4"}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    script = SCRIPTS / f"{request.param}.py"
    options = ("--ranks", ranks, "--python", str(PYTHON))
    return emulated(request.param), emulate(script, folder, *options)


@needs_wheel
def test_both_devices_see_the_same_products_and_collectives(pair):
    virtual, driven = pair
    products = [Counter(op for op in run.ops() if isinstance(op, Gemm)) for run in pair]
    assert products[0] == products[1]
    assert sum(products[0].values()) > 0
    assert virtual.collectives() == driven.collectives()


@needs_wheel
def test_torchs_allocator_counts_the_same_bytes_and_a_workspace_for_products(pair):
    virtual, driven = (run.job.facts.peak_memory_bytes[0] for run in pair)
    # 32 MiB for cuBLAS on Hopper, of which the virtual device knows nothing.
    assert abs(driven - virtual - 32 * 2**20) < 100_000


@needs_wheel
def test_out_of_memory_is_torchs_own_error(tmp_path):
    script = tmp_path / "large.py"
    script.write_text("import torch\ntorch.empty(90 << 30, dtype=torch.uint8, device='cuda')\n")
    run = emulate(script, tmp_path, "--ranks", "1", "--python", str(PYTHON))
    assert run.code == 1
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 GiB" in run.stderr


def test_a_build_without_cuda_is_refused():
    with pytest.raises(EmulationError, match="must be built for CUDA 13"):
        find_wheel(sys.executable)


def test_a_python_that_is_not_there_is_named():
    with pytest.raises(EmulationError, match="nowhere/python: cannot be run"):
        find_wheel("nowhere/python")
