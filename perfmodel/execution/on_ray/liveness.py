"""Liveness: whether the processes that the work needs still listen, whatever Ray believes.

The port of a killed process closes at once, and a stopped one takes connections without an answer.
Ray itself asks again for a minute or longer, and some of its calls never return. Progress says
nothing: a block may compute for an hour.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from perfmodel.base.errors import ExecutionError

CONNECT_TIMEOUT_S = 5.0
"""The system takes a connection by itself, however busy the process is that listens."""
ANSWER_TIMEOUT_S = 1.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC begins, and its settings (none). All of Ray's ports reply with theirs."""
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


class Reply(Enum):
    """What a place does: it answers, takes connections in silence, or takes none."""

    ANSWERS = 0
    SILENT = 1
    ABSENT = 2


class Watch:
    """Looks twice per second whether all places that the work needs still listen and answer.

    Without a *vital* one nothing can be answered: `check` raises, and *on_fault* hears the
    sentence at once, because the main thread may be in a call that never returns. Any other
    is a machine whose workers are lost.
    """

    PERIOD_S = 0.5
    MOST_SILENCES, MOST_MUTES = 3, 10
    """Looks in a row without a listener, and without an answer: a quarter of a minute."""
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
        mutes: Counter[str] = Counter()
        with ThreadPoolExecutor(self.MOST_AT_ONCE) as pool:
            while not self._fault and not self._is_over.wait(self.PERIOD_S):
                places = sorted({*self._vital, *self._others} - self._lost)
                for place, reply in zip(places, pool.map(ask, places), strict=True):
                    silences[place] = silences[place] + 1 if reply is Reply.ABSENT else 0
                    mutes[place] = mutes[place] + 1 if reply is Reply.SILENT else 0
                    if silences[place] == self.MOST_SILENCES or mutes[place] >= self.MOST_MUTES:
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


def ask(place: str) -> Reply:
    """What *place*, a socket file or host:port, replies to a greeting.

    Not every error is a reply: this process may have no file left to open.
    """
    try:
        wire = _connect(place)
    except (ConnectionError, FileNotFoundError, TimeoutError):
        return Reply.ABSENT
    except OSError as error:
        return Reply.ABSENT if error.errno in UNREACHABLE else Reply.ANSWERS
    with wire:
        wire.settimeout(ANSWER_TIMEOUT_S)
        try:
            wire.sendall(GREETING)
            wire.recv(1)
        except TimeoutError:
            return Reply.SILENT
        # Who closes the connection is there.
        except OSError:
            return Reply.ANSWERS
    return Reply.ANSWERS


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
