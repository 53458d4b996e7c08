"""Surroundings of Ray: quiet, in a folder of its own, gone when we are.

Nothing of this needs Ray itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from perfmodel.base.errors import ExecutionError

QUIET = {
    # Ray prints what raylets complain about to standard output, log_to_driver or not. It
    # leaves out repetitions, and among them lines that match this: all.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Or it warns of a change in how it hides GPUs, which nobody here uses.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
CONNECT_TIMEOUT_S = 10.0
MOST_FOLDER_LENGTH = 27


@contextmanager
def quiet() -> Iterator[None]:
    """Set what keeps Ray quiet, for as long as it runs; what a person has set stays.

    Ray looks when it is imported, so this comes before.
    """
    mine = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


def core_count() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def private_folder() -> Iterator[str | None]:
    """A folder for Ray's sockets and logs, removed at the end.

    None, which is Ray's own place, where the path would become too long for a
    socket: that has 107 characters, and Ray adds up to 80.
    """
    folder = tempfile.mkdtemp(prefix="pm-ray-")
    try:
        yield folder if len(folder) <= MOST_FOLDER_LENGTH else None
    finally:
        # The last processes may be writing their last lines.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let a request to terminate unwind the stack, as Ctrl-C does, so that nothing is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  signal's signature
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_reachable(address: str) -> None:
    """Raise unless somebody listens at *address*; Ray would try for a minute."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local") or not separator:
        return
    if not port.isdigit():
        raise ExecutionError(f"ray address: must look like host:6379, got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ExecutionError(
            f"ray: nobody answers at {address!r} ({error}). Start a cluster there with "
            "`ray start --head`, or leave the address out to start one here."
        ) from error
