"""Scripts that several tests look at are emulated once per session."""

from __future__ import annotations

import json
import os

import pytest
from filelock import FileLock

from tests.extensions.emulation.emulating import SCRIPTS, Run, emulate

OPTIONS = {
    "ddp": ("--ranks", "8", "--iterations", "2"),
    "sharded": ("--ranks", "4"),
    "tensor_parallel": ("--ranks", "4"),
    "recommender": ("--ranks", "4", "--all-ranks"),
    "spawned": ("--ranks", "8"),
    "pipeline": ("--ranks", "2"),
    "features": ("--ranks", "1", "--run-on"),
    "graph": ("--ranks", "1", "--run-on"),
    "tools": ("--ranks", "1", "--run-on"),
    "captured": ("--ranks", "1", "--run-on"),
    "attention": ("--ranks", "1"),
    "compiled": ("--ranks", "2"),
    "masks": ("--ranks", "1"),
    "uneven": ("--ranks", "4"),
    "layers": ("--ranks", "1", "--torch-release", "1.13.1"),
}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory):
    """A function from the name of a script to its run, which all workers of a session share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    runs = {}

    def run(name):
        if name not in runs:
            folder = shared / f"emulated-{name}"
            with FileLock(f"{folder}.lock"):
                said = folder / "run.json"
                if not said.exists():
                    folder.mkdir()
                    made = emulate(SCRIPTS / f"{name}.py", folder, *OPTIONS[name])
                    said.write_text(json.dumps((made.code, made.stdout, made.stderr)), "utf-8")
                folder_of_job = folder / f"job-{name}"
                runs[name] = Run(*json.loads(said.read_text("utf-8")), folder_of_job)
        return runs[name]

    return run
