"""The wheel works outside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")

PREDICT = """
import sys
sys.path.insert(0, sys.argv[1])
# The editable installation of the checkout must not answer in the wheel's place.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import perfmodel
assert perfmodel.__file__.startswith(sys.argv[1]), perfmodel.__file__
from perfmodel.cli import main
main(["predict", "--topology", "dgx_h100.yaml", "--samples", "4", "--json", "-"])
"""


def run(*words: object, cwd: Path) -> str:
    outcome = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.slow
def test_the_wheel_predicts_outside_the_checkout(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(CHECKOUT / name, source)
    for name in PACKAGES:
        shutil.copytree(
            CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    run(*pip, "install", "--no-deps", "--target", target, wheel, cwd=tmp_path)

    answer = run(sys.executable, "-c", PREDICT, target, cwd=tmp_path)

    assert json.loads(answer)["iteration_time_ms"] > 0
