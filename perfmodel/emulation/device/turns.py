"""Turns: only a few ranks of a crew work at once, while the others wait.

Scripts make their weights on the host before they move them: eight ranks that do so at
once need eight times that memory, two at a time need it twice. A rank gives its turn up
while it waits for another one. A rank whose turn does not come because those that have
one stand still (the script waits in a way of its own) goes on without.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TURNS = 2
"""Ranks that work at once."""
_LOOK_S = 0.02
_STANDSTILL_S = 3.0
"""Ranks that have a turn and use no processor time for so long are taken to wait for others."""


class Turns:
    """The turns of one crew, as locks on files of *folder*; a rank that ends gives its own up."""

    def __init__(self, folder: Path, *, is_needed: bool) -> None:
        self._files = (
            [os.open(folder / f"turn_{number}", os.O_RDWR | os.O_CREAT) for number in range(TURNS)]
            if is_needed
            else []
        )
        self._own: int | None = None

    def take(self) -> None:
        """Wait for a turn."""
        watch = _Watch()
        while self._files and self._own is None:
            self._own = next((file for file in self._files if _lock(file)), None)
            if self._own is not None:
                os.pwrite(self._own, f"{os.getpid():<12}".encode(), 0)
            elif watch.stands_still([os.pread(file, 12, 0) for file in self._files]):
                return
            else:
                time.sleep(_LOOK_S)

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let another rank work while this one waits for it."""
        if self._own is not None:
            fcntl.lockf(self._own, fcntl.LOCK_UN)
            self._own = None
        try:
            yield
        finally:
            self.take()


class _Watch:
    """Whether processes make progress."""

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes] = {}
        self._since_s = time.monotonic()

    def stands_still(self, processes: list[bytes]) -> bool:
        """Whether none of *processes* has run for a while."""
        now_s = time.monotonic()
        seen = {process: _progress(process) for process in processes}
        if seen != self._seen or any(state.startswith(b"R") for state in seen.values()):
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s > _STANDSTILL_S


def _progress(process: bytes) -> bytes:
    """State and processor time of *process*."""
    try:
        words = Path("/proc", process.decode().strip(), "stat").read_bytes()
    except OSError:
        return b""
    fields = words.rpartition(b")")[2].split()
    return b" ".join((fields[0], fields[11], fields[12]))


def _lock(file: int) -> bool:
    try:
        # Not inherited by processes that the script starts.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
