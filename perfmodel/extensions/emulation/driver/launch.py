"""Launching: the ranks of a script in the user's own environment, one process each.

The libraries are found before any of NVIDIA's, because each process loads them by name before it
imports torch, and its children find them first. Nothing of ours is installed in that environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.driver.build import build_libraries
from perfmodel.extensions.emulation.workers import (
    WorkerOrder,
    WorkerOutcome,
    WorkerTask,
    read_outcome,
)

_ASK = """
import importlib.util, sys
found = importlib.util.find_spec("torch")
print(sys.version_info[:2] >= (3, 10), found and found.origin or "")
"""
_START = """
import sys
first, place = sys.path[0], sys.argv.pop(1)
sys.path[0] = ""
sys.path.append(place)
from perfmodel.extensions.emulation.driver.session import main
sys.path.remove(place)
sys.path[0] = first
main()
"""
"""How a rank starts: our package comes last, so that the environment's own packages win, and is
hidden again once it is loaded."""
_TABLES = "13"
"""The CUDA whose positions of device properties are known."""
_GRACE_S = 3.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Wheel:
    """The build of torch in an environment: where it is, its version, and its CUDA."""

    folder: Path
    version: str
    cuda: str


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
            f"for {built}. Without --python the CPU build of torch is used."
        )
    return Wheel(folder, version[1], cuda[1])


def run_ranks(task: WorkerTask, ranks: tuple[int, ...]) -> WorkerOutcome:
    """Run *ranks* at the same time, each in a process of the user's environment."""
    python = task.request.python
    assert python is not None
    wheel = find_wheel(python)
    libraries = build_libraries(wheel.folder, wheel.cuda)
    with tempfile.TemporaryDirectory(prefix="perfmodel-emulate-") as name:
        folder = Path(name)
        (folder / "exchange").mkdir()
        order = WorkerOrder.of(task, ranks, name)
        path = folder / "order.json"
        path.write_text(json.dumps(asdict(order)), encoding="utf-8")
        environment = dict(task.environment) | {
            "PERFMODEL_GPU": _describe_device(task),
            "PERFMODEL_LIBRARIES": str(libraries),
            "TRITON_LIBCUDA_PATH": str(libraries),
        }
        if len(ranks) > 1:
            environment["PERFMODEL_EXCHANGE"] = str(folder / "exchange")
        paths = (str(libraries), environment.get("LD_LIBRARY_PATH"))
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        package, parent = str(Path(__file__).parents[4]), str(os.getpid())
        sys.stdout.flush()
        processes = {
            rank: subprocess.Popen(  # noqa: S603  the script that the user asked for
                [python, "-c", _START, package, parent, str(path), str(rank)],
                cwd=task.folder,
                env=environment,
            )
            for rank in ranks
        }
        return read_outcome(order, _wait(processes))


def _describe_device(task: WorkerTask) -> str:
    gpu = task.device
    major, minor = gpu.capability
    facts = (
        task.request.host_size, 10 * major + minor, gpu.multiprocessors, gpu.max_threads,
        gpu.clock_mhz * 1000, gpu.memory_bytes, gpu.l2_bytes, gpu.shared_memory_bytes, gpu.name,
    )  # fmt: skip
    return " ".join(map(str, facts))


def _wait(processes: dict[int, subprocess.Popen[bytes]]) -> dict[int, int]:
    """The exit code of every rank; those that continue after another has failed are ended."""
    deadline = float("inf")
    try:
        while any(process.poll() is None for process in processes.values()):
            if deadline == float("inf") and any(one.returncode for one in processes.values()):
                deadline = time.monotonic() + _GRACE_S
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
    return {rank: process.wait() for rank, process in processes.items()}
