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


RANKS = {"ddp": "8", "sharded": "4", "captured": "1", "compiled": "2"}


@pytest.fixture(scope="module", params=RANKS)
def pair(request, emulated, tmp_path_factory):
    """The same script on the virtual device and on the virtual driver."""
    folder = tmp_path_factory.mktemp(request.param)
    script = SCRIPTS / f"{request.param}.py"
    more = ("--run-on",) if request.param == "captured" else ()
    options = ("--ranks", RANKS[request.param], "--python", str(PYTHON), *more)
    return emulated(request.param), emulate(script, folder, *options)


@needs_wheel
def test_both_devices_see_the_same_products_and_collectives(pair):
    virtual, driven = pair
    products = [Counter(op for op in run.ops() if isinstance(op, Gemm)) for run in pair]
    assert products[0] == products[1]
    assert sum(products[0].values()) > 0
    assert virtual.collectives() == driven.collectives()
    others = [Counter(type(op) for op in run.ops()) for run in pair]
    assert others[0] == others[1]
    # Ranks that do not run are answered for.
    assert "ranks need what others send them" not in driven.stderr


@needs_wheel
def test_torchs_allocator_counts_the_same_bytes_and_a_workspace_for_products(pair):
    virtual, driven = (run.job.facts.peak_memory_bytes[0] for run in pair)
    # 32 MiB for cuBLAS on Hopper, of which the virtual device knows nothing; another release
    # compiles to other buffers.
    assert abs(driven - virtual - 32 * 2**20) < 100_000 + 0.2 * virtual


@needs_wheel
def test_a_pipeline_takes_turns_as_its_schedule_says(tmp_path):
    run = emulate(SCRIPTS / "stages.py", tmp_path, "--ranks", "2", "--python", str(PYTHON))
    # Four micro-batches go forward and come back, and their shapes are known by then.
    assert sum(run.collectives().values()) == sum(run.collectives(1).values()) == 8


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
