"""Emulating scripts in tests: one run per script and setting, shared by all tests of a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from perfmodel import api
from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.driver.launch import default_python
from perfmodel.graph.job import JobGraph
from perfmodel.graph.ops import Communication, Gemm, Op

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-c", "from perfmodel.cli import main; main()")
MOST_S = 600
NEEDED = "PERFMODEL_NEEDS_DRIVER"
"""A variable that makes a missing environment a fault instead of a reason to skip."""


@dataclass(frozen=True)
class Run:
    """An emulated script: what the command answered, and the job it wrote."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @cached_property
    def job(self) -> JobGraph:
        assert self.code == 0, self.stderr
        return api.load_job(self.folder)

    def ops(self, rank: int = 0) -> list[Op]:
        return [self.job.ops[index] for index in self.job.program_of(rank).op]

    @property
    def gemm_flops(self) -> int:
        return sum(op.flops for op in self.ops() if isinstance(op, Gemm))

    def collectives(self, rank: int = 0) -> Counter[tuple[str, int]]:
        return Counter(
            (op.collective.kind.value, op.collective.size_bytes)
            for op in self.ops(rank)
            if isinstance(op, Communication)
        )


def check_environment() -> None:
    """Skip a test that emulates where that is not possible; .ci/run fails instead."""
    reason = "there is no C compiler" if shutil.which("cc") is None else ""
    try:
        default_python()
    except EmulationError as fault:
        reason = str(fault)
    if reason:
        (pytest.fail if NEEDED in os.environ else pytest.skip)(reason)


def run_perfmodel(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if "emulate" in words:
        check_environment()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=MOST_S, check=False,
    )  # fmt: skip


def emulate(script: Path, folder: Path, *options: str, words: tuple[str, ...] = ()) -> Run:
    out = folder / f"job-{script.stem}"
    done = run_perfmodel(
        "emulate", "--device", "h100_sxm", "--out", str(out), *options, "--", str(script), *words,
        folder=folder,
    )  # fmt: skip
    return Run(done.returncode, done.stdout, done.stderr, out)
