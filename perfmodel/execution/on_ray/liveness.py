"""Liveness: whether the processes that the work needs still listen, whatever Ray believes.

The port of a killed process closes at once. Ray itself asks again for a minute or longer, and some
of its calls never return. Progress says nothing: a block may compute for an hour.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from perfmodel.base.errors import ExecutionError

CONNECT_TIMEOUT_S = 5.0
"""The system takes a connection by itself, however busy the process is that listens."""
UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


def raylet_fault(host: str) -> str:
    """What to say if the raylet of the driver's machine is lost."""
    return (
        f"ray: the raylet on {host}, which this process works through, is gone, and the results "
        "of its workers are lost. There is no answer. Start Ray there again or ask without "
        "--ray-address; --executor serial needs no Ray."
    )


def head_fault(address: str) -> str:
    """What to say if the head of a cluster is lost."""
    return (
        f"ray: the head of the cluster at {address} (its GCS) is gone, and with it the list of "
        "workers. There is no answer. Start the cluster again with `ray start --head`, or use "
        "--executor serial."
    )


class Watch:
    """Looks twice per second whether all places that the work needs still listen.

    Without a *vital* one nothing can be answered: `check` raises, and *on_fault* hears the
    sentence at once, because the main thread may be in a call that never returns. Any other
    is a machine whose workers are lost.
    """

    PERIOD_S = 0.5
    MOST_SILENCES = 3
    MOST_AT_ONCE = 16

    def __init__(self, on_fault: Callable[[str], None] | None = None) -> None:
        self._on_fault = on_fault
        self._vital: dict[str, str] = {}
        self._others: set[str] = set()
        self._lost: set[str] = set()
        self._fault = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray watch", daemon=True)
        self._thread.start()

    def need(self, place: str, sentence: str) -> None:
        """Watch a vital *place*; *sentence* is the error if it is lost."""
        self._vital = {**self._vital, place: sentence}

    def follow(self, places: Iterable[str]) -> None:
        """Watch *places* of machines with workers."""
        self._others = self._others | set(places)

    def check(self) -> None:
        """Raise if a vital place is lost."""
        if self._fault:
            raise ExecutionError(self._fault)

    def is_lost(self, place: str) -> bool:
        """Whether *place* has stopped listening; it is never taken back."""
        return place in self._lost

    def close(self) -> None:
        """Stop looking."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        silences: Counter[str] = Counter()
        with ThreadPoolExecutor(self.MOST_AT_ONCE) as pool:
            while not self._fault and not self._is_over.wait(self.PERIOD_S):
                places = sorted({*self._vital, *self._others} - self._lost)
                for place, is_there in zip(places, pool.map(listens, places), strict=True):
                    silences[place] = 0 if is_there else silences[place] + 1
                    if silences[place] == self.MOST_SILENCES:
                        self._lose(place)

    def _lose(self, place: str) -> None:
        self._lost.add(place)
        if place in self._vital and not self._fault:
            self._fault = self._vital[place]
            if self._on_fault is not None:
                self._on_fault(self._fault)


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
    """Whether a process listens at *place*, a socket file or host:port.

    Not every error is an answer: this process may have no file left to open.
    """
    try:
        _connect(place).close()
    except (ConnectionError, FileNotFoundError, TimeoutError):
        return False
    except OSError as error:
        return error.errno not in UNREACHABLE
    return True


def is_here(address: str) -> bool:
    """Whether *address* is on this machine; raises unless a process listens there.

    Ray would retry for a minute.
    """
    if not names_port(address):
        return False
    place = address.removeprefix("ray://")
    if not place.rpartition(":")[2].isdigit():
        raise ExecutionError(f"ray address: must look like host:6379, got {address!r}.")
    try:
        with _connect(place) as wire:
            return bool(wire.getsockname()[0] == wire.getpeername()[0])
    except OSError as error:
        raise ExecutionError(
            f"ray: no answer from {address!r} ({error}). Start a cluster there with "
            "`ray start --head`, or leave the address out to start one here."
        ) from error


def names_port(address: str) -> bool:
    """Whether *address* says where the cluster listens; Ray looks up `auto` and `local` itself."""
    return address not in ("auto", "local") and ":" in address.removeprefix("ray://")
