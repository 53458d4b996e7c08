"""Workers: processes that run ranks, what they are ordered to do, and what came of it.

A worker is one process that imports torch once and forks a process per rank; its ranks run at the
same time. Orders and outcomes are plain values, because they travel to other processes and
machines.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.request import DeviceFacts, Emulation

NEEDS_ALL_RANKS = 213
"""Exit code of a rank that must communicate with one that is not being emulated."""
READY = "ready"
CODES = "codes.json"
FAULT = "fault_"
"""How files begin that hold the exception that ended a rank."""
_PR_SET_PDEATHSIG = 1
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_LIBRARY_PATHS = ("site-packages", "perfmodel/extensions/emulation", "<frozen", "/lib/python")


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What all workers of an emulation share: the request, its GPU, and the script's place.

    What one worker compiles the next ones load from the folder *code*, if they are on the machine
    that has it.
    """

    request: Emulation
    device: DeviceFacts
    folder: str
    environment: tuple[tuple[str, str], ...]
    code: str = ""


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """Run *ranks* of *request* at the same time, results in *folder*, compiled code in *code*.

    *formats* are our names of torch's number formats.
    """

    request: Emulation
    device: DeviceFacts
    ranks: tuple[int, ...]
    folder: str
    code: str
    formats: Mapping[str, str]

    @classmethod
    def of(cls, task: WorkerTask, ranks: tuple[int, ...], folder: str) -> WorkerOrder:
        """The order to run *ranks* of *task* with results in *folder*."""
        from perfmodel.extensions.recordings.operators.calls import listed

        code = task.code if task.code and Path(task.code).is_dir() else folder
        return cls(task.request, task.device, ranks, folder, code, listed("dtypes"))


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """Exit codes, records and exceptions by rank, and sentences about ranks that timed out."""

    codes: Mapping[int, int]
    records: Mapping[int, bytes]
    hangs: tuple[str, ...]
    faults: Mapping[int, str]


def read_order(path: Path) -> WorkerOrder:
    """The order in *path*."""
    fields = json.loads(path.read_bytes())
    request, device = fields["request"], fields["device"]
    request["words"], device["capability"] = tuple(request["words"]), tuple(device["capability"])
    made = (Emulation(**request), DeviceFacts(**device))
    rest = (fields[name] for name in ("folder", "code", "formats"))
    return WorkerOrder(*made, tuple(fields["ranks"]), *rest)


def run_process(
    task: WorkerTask,
    ranks: tuple[int, ...],
    command: Sequence[str],
    environment: dict[str, str],
    otherwise: str,
) -> WorkerOutcome:
    """Have the worker that *command* starts run *ranks*; an error says *otherwise* if it cannot."""
    with tempfile.TemporaryDirectory(prefix="perfmodel-emulate-") as name:
        folder = Path(name)
        order = WorkerOrder.of(task, ranks, name)
        path = folder / "order.json"
        path.write_text(json.dumps(asdict(order)), encoding="utf-8")
        words = [*command, str(path), str(Path(__file__).parents[3])]
        _wait_for(words, task.folder, environment)
        if not (folder / READY).exists():
            raise EmulationError(otherwise)
        if not (folder / CODES).exists():
            raise EmulationError("the emulation was ended from outside before its ranks were done.")
        codes = json.loads((folder / CODES).read_bytes())
        return _read_outcome(order, {int(rank): code for rank, code in codes.items()})


def _read_outcome(order: WorkerOrder, codes: Mapping[int, int]) -> WorkerOutcome:
    """What the ranks of *order*, which ended with *codes*, left in its folder."""
    folder = Path(order.folder)
    records = {
        rank: path.read_bytes()
        for rank in order.ranks
        if (path := folder / f"rank_{rank}.json").exists()
    }
    faults = {
        rank: path.read_text(encoding="utf-8")
        for rank in order.ranks
        if (path := folder / f"{FAULT}{rank}").exists()
    }
    return WorkerOutcome(codes, records, _find_hangs(folder, order), faults)


def _wait_for(words: Sequence[str], folder: str, environment: dict[str, str]) -> None:
    """Run a worker with the script's own standard streams; signals are passed on to it."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen(words, cwd=folder, env=environment)  # noqa: S603  what the user asked for

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    previous = None
    # Only the main thread may; elsewhere the executor itself ends its processes.
    with suppress(ValueError):
        previous = signal.signal(signal.SIGTERM, pass_on)
    try:
        while process.returncode is None:
            # The terminal sends an interrupt to the script as well, which decides what to do.
            with suppress(KeyboardInterrupt):
                process.wait()
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _find_hangs(folder: Path, order: WorkerOrder) -> tuple[str, ...]:
    sentences = []
    for rank in order.ranks:
        path = folder / f"hang_{rank}.txt"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.startswith("Timeout"):
            sentences.append(
                f"rank {rank} was ended after {order.request.timeout_s:g} s, "
                f"hanging at {_line(text)}."
            )
    return tuple(sentences)


def _line(text: str) -> str:
    """The innermost line of the script in a dump of all threads; the main thread comes last."""
    main = text.rpartition("Thread 0x")[2]
    frames = [match for match in map(_FRAME.search, main.splitlines()) if match]
    own = [one for one in frames if not any(path in one["file"] for path in _LIBRARY_PATHS)]
    if not frames:
        return "an unknown line"
    chosen = (own or frames)[0]
    return f"{chosen['file']}:{chosen['line']} in {chosen['name']}"


def end_with(parent: int) -> None:
    """Have the system end this process when *parent* ends, even if it is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
