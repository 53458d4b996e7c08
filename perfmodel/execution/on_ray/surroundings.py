"""The surroundings of Ray: quiet output, a private folder, liveness checks, signals, reachability.

Nothing here imports Ray.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from perfmodel.base.errors import ExecutionError
from perfmodel.base.writing import is_private
from perfmodel.execution.on_ray import watchdog

QUIET = {
    # Ray prints complaints of raylets to standard output, log_to_driver or not. It leaves out
    # repeated lines, and of those that match this, all.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else it warns of a change in how it hides GPUs, which are not used here.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Else other processes go before its workers, for which we wait.
    "RAY_worker_niceness": "0",
}
CONNECT_TIMEOUT_S = 10.0
MOST_FOLDER_LENGTH = 27
FOLDER_PREFIX = "pm-ray-"
RAY_FOLDER = "r"
"""Short, since a socket's path is; it lies in the private folder."""
_NEW = "new-"
"""Before the name of a folder that is not locked yet."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Ray runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def quiet() -> dict[str, str]:
    """Variables that keep Ray off the screen, where the user has not set them."""
    return {name: os.environ.get(name, value) for name, value in QUIET.items()}


def core_count() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for Ray, removed at the end with its processes.

    Only this user may open it, and this process holds it locked as long as it lives. Folders of
    this user that are not locked are leftovers of killed drivers and are removed first. Ray opens
    the folder it is given to everybody, so it gets `RAY_FOLDER` inside.
    """
    clear_leftovers()
    made = Path(tempfile.mkdtemp(prefix=_NEW + FOLDER_PREFIX))
    lock = _lock(made)
    folder = made.rename(made.with_name(made.name.removeprefix(_NEW)))
    try:
        with environment({watchdog.MARK: str(folder)}):
            yield folder
    finally:
        watchdog.clear(folder)
        os.close(lock)


def clear_leftovers() -> None:
    """End local Rays whose driver is gone, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        # What others can write is not believed, and one in use is locked.
        with suppress(OSError):
            if is_private(folder):
                lock = _lock(folder)
                watchdog.clear(folder)
                os.close(lock)


def _lock(folder: Path) -> int:
    """*folder*, opened and locked by this process; raises if another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


class Watchdog:
    """The pipe to the watchdog process, which reports for us if we cannot."""

    def __init__(self, folder: Path | None) -> None:
        words = [sys.executable, "-S", "-E", watchdog.__file__, str(folder or "-")]
        # Without the mark, because it is not part of Ray, and in its own session: Ctrl-C must not
        # reach it.
        self._process = subprocess.Popen(  # noqa: S603  our own file
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != watchdog.MARK},
        )

    def note(self, sentence: str) -> None:
        """The sentence to report if this process ends before it can."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(f"{' '.join(sentence.splitlines())}\n".encode())
            self._process.stdin.flush()

    @contextmanager
    def bounding(self, seconds: float, sentence: str) -> Iterator[None]:
        """End this process with *sentence* if the body takes longer than *seconds*."""

        def give_up() -> None:
            self.note(sentence)
            os._exit(1)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stop the watchdog: everything is in order."""
        self.note(watchdog.GOODBYE)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


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
        self._faults = {
            raylet_socket: f"ray: the raylet on {host}, which this process works through, is gone, "
            "and the results of its workers are lost. Nothing was answered. Start Ray there again "
            "or ask without --ray-address; --executor serial needs no Ray.",
            head: f"ray: the head of the cluster at {head} (its GCS) is gone, and with it the list "
            "of workers. Nothing was answered. Start the cluster again with `ray start "
            "--head`, or use --executor serial.",
        }
        self._fault = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray watch", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if the raylet or the head is gone."""
        if self._fault:
            raise ExecutionError(self._fault)

    def end(self) -> None:
        """Stop checking."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        silences = dict.fromkeys(self._faults, 0)
        while not self._is_over.wait(self.PERIOD_S):
            for place, sentence in self._faults.items():
                silences[place] = 0 if listens(place) else silences[place] + 1
                if silences[place] == self.MOST_SILENCES:
                    self._fault = sentence
                    self._guard.note(sentence)
                    with self._guard.bounding(self.LAST_S, sentence):
                        self._is_over.wait()
                    return


def _connect(place: str) -> socket.socket:
    """A connection to *place*, a socket file or host:port."""
    if not place.startswith("/"):
        host, _, port = place.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S)
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.settimeout(CONNECT_TIMEOUT_S)
    try:
        wire.connect(place)
    except OSError:
        wire.close()
        raise
    return wire


def listens(place: str) -> bool:
    """Whether a process listens at *place*, a socket file or host:port; a slow one counts."""
    try:
        _connect(place).close()
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
    place = address.removeprefix("ray://")
    _, separator, port = place.rpartition(":")
    if address in ("auto", "local") or not separator:
        return False
    if not port.isdigit():
        raise ExecutionError(f"ray address: must look like host:6379, got {address!r}.")
    try:
        with _connect(place) as wire:
            return bool(wire.getsockname()[0] == wire.getpeername()[0])
    except OSError as error:
        raise ExecutionError(
            f"ray: nobody answers at {address!r} ({error}). Start a cluster there with "
            "`ray start --head`, or leave the address out to start one here."
        ) from error
