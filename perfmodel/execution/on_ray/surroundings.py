"""The surroundings of Ray: quiet output, a private folder, the pipe to the watchdog, signals.

Nothing here imports Ray.
"""

from __future__ import annotations

import fcntl
import os
import signal
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
SHORT_PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108  folders are private
"""Taken if the name of the usual temporary directory is too long."""
MOST_PLACE_LENGTH = 9
"""A socket's path has 107 characters; Ray adds up to 80 to its folder, and we the names below."""
FOLDER_PREFIX = "pm-ray-"
RAY_FOLDER = "r"
"""Short, because the path of a socket must be; it is in the private folder."""
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
    made = Path(tempfile.mkdtemp(prefix=_NEW + FOLDER_PREFIX, dir=_places()[0]))
    lock = _lock(made)
    folder = made.rename(made.with_name(made.name.removeprefix(_NEW)))
    try:
        with environment({watchdog.MARK: str(folder)}):
            yield folder
    finally:
        watchdog.clear(folder)
        os.close(lock)


def _places() -> list[Path]:
    """Temporary directories whose names are short enough for the sockets of Ray."""
    usual = Path(tempfile.gettempdir())
    found = [
        place
        for place in dict.fromkeys((usual, *SHORT_PLACES))
        if len(str(place)) <= MOST_PLACE_LENGTH and os.access(place, os.W_OK | os.X_OK)
    ]
    if not found:
        raise ExecutionError(
            f"ray: needs a temporary directory whose name has at most {MOST_PLACE_LENGTH} "
            f"characters, because it makes sockets there, and {usual} is longer. Set TMPDIR to a "
            "shorter one that you may write to, or use --executor serial."
        )
    return found


def clear_leftovers() -> None:
    """End local Rays whose driver is gone, and remove their folders."""
    for folder in (one for place in _places() for one in place.glob(f"{FOLDER_PREFIX}*")):
        # What others can write is not believed, one in use is locked, and what holds anything
        # else than Ray's is not ours.
        with suppress(OSError):
            if is_private(folder) and {one.name for one in folder.iterdir()} <= {RAY_FOLDER}:
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


LAST_S = 20.0
"""How long this process may take to report a loss and to leave Ray."""


class Watchdog:
    """The pipe to the watchdog process, which reports for us if we cannot."""

    def __init__(self, folder: Path | None) -> None:
        self._timers: list[threading.Timer] = []
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

    def limit(self, seconds: float, sentence: str) -> threading.Timer:
        """End this process with *sentence* in *seconds*, unless that is cancelled before.

        A call into Ray may never return.
        """

        def give_up() -> None:
            self.note(sentence)
            os._exit(1)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        return timer

    def end_soon(self, sentence: str) -> None:
        """Report *sentence* even if Ray ends this process, or never returns from a call."""
        self.note(sentence)
        self.limit(LAST_S, sentence)

    def close(self) -> None:
        """Stop the watchdog: everything is in order."""
        for timer in self._timers:
            timer.cancel()
        self.note(watchdog.GOODBYE)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()


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
