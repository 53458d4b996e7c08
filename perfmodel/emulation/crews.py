"""Crews: starting the process that runs ranks, and reading what came of it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import orjson

from perfmodel.base.errors import EmulationError
from perfmodel.emulation.orders import CrewOrder, write_order

READY = "ready"
CODES = "codes.json"
_START = """
import sys
sys.path.insert(1, sys.argv[2])
from perfmodel.emulation.device.crew import main
sys.path.remove(sys.argv[2])
main()
"""
"""How the process of a crew starts: it finds our package wherever it lies, and hides the place."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_LIBRARY_WORDS = ("site-packages", "perfmodel/emulation", "<frozen", "/lib/python")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the script thinks it runs: its folder and its environment."""

    folder: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CrewTask:
    """What every crew of an emulation has in common; *ranks* of the order are left to fill in."""

    order: CrewOrder
    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class CrewOutcome:
    """Exit codes and records by rank, and sentences about ranks that were stopped by time."""

    codes: Mapping[int, int]
    records: Mapping[int, bytes]
    hangs: tuple[str, ...]


def run_crew(task: CrewTask, ranks: tuple[int, ...]) -> CrewOutcome:
    """Run *ranks* side by side."""
    with tempfile.TemporaryDirectory(prefix="perfmodel-emulate-") as name:
        folder = Path(name)
        order = replace(task.order, ranks=ranks, folder=name)
        write_order(order, folder / "order.json")
        _run_process(task.surroundings, folder / "order.json")
        if not (folder / READY).exists():
            raise EmulationError(
                "the virtual device could not be made with this build of torch on this machine: "
                "its self-test failed. It needs torch 2.13.0, the CPU build, on Linux x86-64; "
                "`pip install perfmodel[emulate]` in a fresh environment brings it."
            )
        if not (folder / CODES).exists():
            raise EmulationError("the emulation was ended from outside before its ranks were done.")
        codes = {
            int(rank): code for rank, code in orjson.loads((folder / CODES).read_bytes()).items()
        }
        records = {
            rank: path.read_bytes()
            for rank in ranks
            if (path := folder / f"rank_{rank}.json").exists()
        }
        return CrewOutcome(codes, records, _find_hangs(folder, order))


def _run_process(surroundings: Surroundings, order: Path) -> int:
    """Run the crew with the script's own standard streams; signals are passed on to it."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = subprocess.Popen(  # noqa: S603  our own python, running what the user asked for
        [sys.executable, "-c", _START, str(order), str(Path(__file__).parents[2])],
        cwd=surroundings.folder,
        env=dict(surroundings.environment),
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    previous = None
    # Only the main thread may; on a worker the place itself ends its processes.
    with suppress(ValueError):
        previous = signal.signal(signal.SIGTERM, pass_on)
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal sent it to the script as well, which decides what to do.
                continue
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _find_hangs(folder: Path, order: CrewOrder) -> tuple[str, ...]:
    sentences = []
    for rank in order.ranks:
        path = folder / f"hang_{rank}.txt"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text.startswith("Timeout"):
            sentences.append(
                f"rank {rank} was ended after {order.timeout_s:g} s, hanging at {_place(text)}."
            )
    return tuple(sentences)


def _place(text: str) -> str:
    """The innermost line of the script in a dump of all threads; the main thread stands last."""
    main = text.rpartition("Thread 0x")[2]
    frames = [match for match in map(_FRAME.search, main.splitlines()) if match]
    own = [one for one in frames if not any(word in one["file"] for word in _LIBRARY_WORDS)]
    chosen = (own or frames)[0] if frames else None
    if chosen is None:
        return "an unknown line"
    return f"{chosen['file']}:{chosen['line']} in {chosen['name']}"
