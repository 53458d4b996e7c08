"""The identity of the program follows its sources and constants, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.base.identity import locate_packages, program_identity

ASK = "from perfmodel.base.identity import program_identity as f; print(f())"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A small copy of the program: enough to ask who it is."""
    place = tmp_path_factory.mktemp("copy")
    for name in locate_packages():
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(f'"""{name}"""\n')
    base = locate_packages()["perfmodel"] / "base"
    (place / "perfmodel/base").mkdir()
    for name in ("__init__.py", "identity.py"):
        (place / "perfmodel/base" / name).write_bytes((base / name).read_bytes())
    (place / "collectives/constants.yaml").write_text("latency: 1 us\n")
    return place


def ask(place: Path) -> str:
    answered = subprocess.run(
        [sys.executable, "-c", ASK], cwd=place, env={"PYTHONPATH": str(place)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return answered.stdout.strip()


def test_a_changed_constant_or_line_is_another_program(copy):
    first = ask(copy)
    assert ask(copy) == first
    constants = copy / "collectives/constants.yaml"
    constants.write_text("latency: 2 us\n")
    second = ask(copy)
    (copy / "traces/__init__.py").write_text("EXTRA = 1\n")
    assert len({first, second, ask(copy)}) == 3


def test_documentation_and_caches_are_not_the_program(copy):
    first = ask(copy)
    (copy / "embeddings/README.md").write_text("Read me.\n")
    (copy / "perfmodel/base/kernel.nbi").write_bytes(b"compiled")
    assert ask(copy) == first


def test_it_is_short_and_always_the_same_in_a_process():
    assert program_identity() == program_identity()
    assert len(program_identity()) == 12
    assert int(program_identity(), 16) > 0
