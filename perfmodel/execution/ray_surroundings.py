"""Surroundings of Ray: quiet, private, watched, in a folder of its own, gone when we are.

Nothing of this needs Ray itself.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from perfmodel.base.errors import ExecutionError
from perfmodel.execution import ray_watchdog

QUIET = {
    # Ray prints what raylets complain about to standard output, log_to_driver or not. It
    # leaves out repetitions, and among them lines that match this: all.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Or it warns of a change in how it hides GPUs, which nobody here uses.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray lets its workers have what other processes leave; here they are who we wait for.
    "RAY_worker_niceness": "0",
}
CONNECT_TIMEOUT_S = 10.0
MOST_FOLDER_LENGTH = 27
FOLDER_PREFIX = "pm-ray-"
OWNER = "owner"
"""The file in a folder that its driver holds locked for as long as it lives."""
HALF_REMOVED_S = 60.0
"""It is there within milliseconds: an older folder without it is what somebody left."""


@contextmanager
def environment(values: dict[str, str], *, is_forced: bool = False) -> Iterator[None]:
    """Set variables while Ray runs; the user's own values stay, unless *is_forced*."""
    mine = {name: value for name, value in values.items() if is_forced or name not in os.environ}
    before = {name: os.environ[name] for name in mine if name in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(before)


def core_count() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for Ray's sockets and logs, removed at the end with its processes.

    Leftovers of killed drivers are removed first.
    """
    clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    owner = _own(folder)
    try:
        with environment({ray_watchdog.MARK: str(folder)}, is_forced=True):
            yield folder
    finally:
        ray_watchdog.clear(folder)
        os.close(owner)


def clear_leftovers() -> None:
    """End local Rays whose driver is gone, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        # The folder of another user cannot be locked.
        with suppress(OSError):
            if not (folder / OWNER).exists():
                # Being created, or half removed.
                if time.time() - folder.stat().st_mtime > HALF_REMOVED_S:
                    ray_watchdog.clear(folder)
            elif (owner := _lock(folder / OWNER)) is not None:
                ray_watchdog.clear(folder)
                os.close(owner)


def _lock(path: Path) -> int | None:
    """The open file at *path*, locked by this process; None where another has it."""
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _own(folder: Path) -> int:
    """The owner file of *folder*, locked before it gets the name that others look for."""
    handle, name = tempfile.mkstemp(dir=folder)
    fcntl.flock(handle, fcntl.LOCK_EX)
    Path(name).rename(folder / OWNER)
    return handle


class Watchdog:
    """The pipe to the watchdog process, which reports for us if we cannot."""

    def __init__(self, folder: Path | None) -> None:
        words = [sys.executable, "-S", "-E", ray_watchdog.__file__, str(folder or "-")]
        # Without the mark, because it is not part of Ray, and in its own session: Ctrl-C must not
        # reach it.
        self._process = subprocess.Popen(  # noqa: S603  our own file
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != ray_watchdog.MARK},
        )

    def note(self, sentence: str) -> None:
        """The sentence to report if this process ends before it can."""
        self._write(sentence.replace("\n", " "))

    def dismiss(self) -> None:
        """Stop the watchdog: everything is in order."""
        self._write(ray_watchdog.GOODBYE)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


@contextmanager
def watchdog(folder: Path | None) -> Iterator[Watchdog]:
    """A watchdog while Ray runs."""
    guard = Watchdog(folder)
    try:
        yield guard
    finally:
        guard.dismiss()


class Watch:
    """Checks twice per second that the local raylet and the head of the cluster are alive.

    Ray itself would retry for a minute and then terminate this process.
    """

    PERIOD_S = 0.5
    MOST_SILENCES = 3
    LAST_S = 30.0
    """How long this process may take to report it; a call into Ray may never return."""

    def __init__(self, guard: Watchdog, *, raylet_socket: str, head: str, host: str) -> None:
        self._guard = guard
        no_raylet = (
            f"ray: the raylet on {host}, which this process works through, is gone, and the "
            "results of its workers are lost. Nothing was answered. Start Ray there again or ask "
            "without --ray-address; --executor serial needs no Ray."
        )
        no_head = (
            f"ray: the head of the cluster at {head} (its GCS) is gone, and with it the list "
            "of workers. Nothing was answered. Start the cluster again with `ray start "
            "--head`, or use --executor serial."
        )
        self._places = ((raylet_socket, no_raylet), (head, no_head))
        self._fault = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray watch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if the raylet or the head is gone."""
        if self._fault:
            raise ExecutionError(self._fault)

    @property
    def has_fault(self) -> bool:
        """Whether the raylet or the head is gone."""
        return bool(self._fault)

    def end(self) -> None:
        """Stop checking."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        silences = [0] * len(self._places)
        while not self._is_over.wait(self.PERIOD_S):
            for index, (place, sentence) in enumerate(self._places):
                silences[index] = 0 if listens(place) else silences[index] + 1
                if silences[index] == self.MOST_SILENCES:
                    self._guard.note(sentence)
                    self._fault = sentence
                    if not self._is_over.wait(self.LAST_S):
                        # The watchdog notices and reports it.
                        os._exit(1)
                    return


@contextmanager
def bounded(guard: Watchdog, seconds: float, sentence: str) -> Iterator[None]:
    """End this process with *sentence* if the body takes longer than *seconds*."""

    def give_up() -> None:
        guard.note(sentence)
        os._exit(1)

    alarm = threading.Timer(seconds, give_up)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def listens(place: str) -> bool:
    """Whether a process listens at *place*, a socket file or host:port; a slow one counts."""
    try:
        if place.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(CONNECT_TIMEOUT_S)
                line.connect(place)
        else:
            host, _, port = place.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM unwind the stack, as Ctrl-C does, so that everything is cleaned up."""
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


def is_here(address: str) -> bool:
    """Whether *address* is on this machine; raises unless a process listens there.

    Ray would retry for a minute.
    """
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local") or not separator:
        return False
    if not port.isdigit():
        raise ExecutionError(f"ray address: must look like host:6379, got {address!r}.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S) as wire:
            return bool(wire.getsockname()[0] == wire.getpeername()[0])
    except OSError as error:
        raise ExecutionError(
            f"ray: nobody answers at {address!r} ({error}). Start a cluster there with "
            "`ray start --head`, or leave the address out to start one here."
        ) from error
