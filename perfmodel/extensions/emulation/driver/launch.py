"""Launching: the ranks of a script in the user's own environment.

The libraries are found before any of NVIDIA's, because the worker loads them by name before it
imports torch, and its children find them first. Nothing of ours is installed in that environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.driver.build import build_libraries
from perfmodel.extensions.emulation.workers import (
    WorkerOutcome,
    WorkerTask,
    run_process,
)

_ASK = """
import importlib.util, sys
found = importlib.util.find_spec("torch")
print(sys.version_info[:2] >= (3, 10), found and found.origin or "")
"""
_START = """
import sys
first, sys.path[0] = sys.path[0], ""
sys.path.append(sys.argv[2])
from perfmodel.extensions.emulation.driver.session import main
sys.path.remove(sys.argv[2])
sys.path[0] = first
main()
"""
"""How a worker starts: our package comes last, so that the environment's own packages win, and is
hidden again once it is loaded."""
_TABLES = "13"
"""The CUDA whose positions of device properties are known."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """The build of torch in an environment: where it is, its version, and its CUDA."""

    folder: Path
    version: str
    cuda: str


def default_python() -> str:
    """The interpreter of the environment that `make emulate` sets up beside this one's packages."""
    path = Path(sys.prefix, "cuda", "bin", "python")
    if not path.is_file():
        raise EmulationError(
            f"emulation: runs scripts on a CUDA build of torch, and there is no environment with "
            f"one at {path.parents[1]}. Run `make emulate`, or name the python of an environment "
            "that has one: --python PATH. To make one: python3 -m venv env, env/bin/pip install "
            "--no-deps torch==2.15.0 triton==3.9.0, env/bin/pip install numpy sympy networkx "
            "jinja2 filelock typing_extensions fsspec setuptools."
        )
    return str(path)


def find_wheel(python: str) -> Wheel:
    """The build of torch that *python* would import."""
    try:
        done = subprocess.run(  # noqa: S603  the interpreter that the user named
            [python, "-c", _ASK], capture_output=True, text=True, check=False
        )
    except OSError as fault:
        raise EmulationError(
            f"--python {python}: cannot be run: {fault.strerror}. Give the python of an "
            "environment, such as env/bin/python."
        ) from None
    is_new, _, origin = done.stdout.strip().partition(" ")
    if done.returncode or is_new != "True":
        raise EmulationError(f"--python {python}: must be Python 3.10 or newer.")
    if not origin:
        raise EmulationError(f"--python {python}: there is no torch in this environment.")
    folder = Path(origin).parent
    text = (folder / "version.py").read_text(encoding="utf-8")
    version, cuda = (
        re.search(rf"^{name}\b.*?'(.*?)'", text, re.M) for name in ("__version__", "cuda")
    )
    if version is None or cuda is None or cuda[1].split(".")[0] != _TABLES:
        built = f"CUDA {cuda[1]}" if cuda else "no CUDA"
        raise EmulationError(
            f"--python {python}: its torch must be built for CUDA {_TABLES}, and {folder} is built "
            f"for {built}. Install one from the package index: pip install --no-deps torch."
        )
    return Wheel(folder, version[1], cuda[1])


def run_ranks(task: WorkerTask, ranks: tuple[int, ...]) -> WorkerOutcome:
    """Run *ranks* at the same time, in the user's environment."""
    python = task.request.python or default_python()
    wheel = find_wheel(python)
    libraries = str(build_libraries(wheel.folder, wheel.cuda))
    environment = dict(task.environment)
    # What the script starts itself finds the libraries, too.
    paths = filter(None, (libraries, environment.get("LD_LIBRARY_PATH")))
    environment |= {
        "PERFMODEL_GPU": _describe_device(task),
        "PERFMODEL_LIBRARIES": libraries,
        "LD_LIBRARY_PATH": ":".join(paths),
    }
    otherwise = f"--python {python}: torch {wheel.version} does not start on the virtual driver."
    return run_process(task, ranks, (python, "-c", _START), environment, otherwise)


def _describe_device(task: WorkerTask) -> str:
    gpu = task.device
    major, minor = gpu.capability
    facts = (
        task.request.host_size, 10 * major + minor, gpu.multiprocessors, gpu.max_threads,
        gpu.clock_mhz * 1000, gpu.memory_bytes, gpu.l2_bytes, gpu.shared_memory_bytes, gpu.name,
    )  # fmt: skip
    return " ".join(map(str, facts))
