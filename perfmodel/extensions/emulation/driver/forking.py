"""Forking: a process per rank, of a worker that has imported torch.

Forks share the time and memory of importing it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from perfmodel.extensions.emulation.workers import CODES, READY, WorkerOrder, end_with

_GRACE_S = 3.0
"""How long other ranks may continue after one has failed."""
_M_MMAP_THRESHOLD = -3
_RETURNED_BYTES = 1 << 20
"""Larger blocks of host memory are returned as soon as they are free."""


def fork_ranks(order: WorkerOrder, run: Callable[[int], int]) -> NoReturn:
    """Run every rank of *order* in a process of its own, and note their exit codes."""
    folder = Path(order.folder)
    (folder / READY).touch()
    # Ranks share what is loaded so far. A collection would write into every object, and each rank
    # would have a copy of its own.
    gc.collect()
    gc.freeze()
    # Without a fixed threshold the allocator keeps ever larger pieces once one was freed.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
    children: dict[int, int] = {}
    worker = os.getpid()
    for rank in order.ranks:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            end_with(worker)
            sys.exit(run(rank))
        children[child] = rank
    codes = _wait(children)
    (folder / CODES).write_text(json.dumps(codes), encoding="utf-8")
    # The interpreter has nothing to clean up, and the device must not be touched again.
    os._exit(0)


def _wait(children: dict[int, int]) -> dict[int, int]:
    """The exit code of every rank; those that continue after another has failed are ended."""
    codes: dict[int, int] = {}
    pending = dict(children)

    def end_all(number: int, _: object) -> None:
        for child in pending:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline: float | None = None
    while pending:
        child, status = os.waitpid(-1, 0 if deadline is None else os.WNOHANG)
        if child in pending:
            code = os.waitstatus_to_exitcode(status)
            codes[pending.pop(child)] = code
            if code != 0 and deadline is None:
                deadline = time.monotonic() + _GRACE_S
        elif deadline is not None and time.monotonic() > deadline:
            end_all(signal.SIGKILL, None)
            deadline += _GRACE_S
        else:
            time.sleep(0.02)
    return codes
