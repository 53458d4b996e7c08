"""Scripts that several tests look at are emulated once."""

from __future__ import annotations

import pytest

from tests.extensions.emulation.emulating import SCRIPTS, emulate

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
    """A function from the name of a script to its run."""
    runs = {}

    def run(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            runs[name] = emulate(SCRIPTS / f"{name}.py", folder, *OPTIONS[name])
        return runs[name]

    return run
