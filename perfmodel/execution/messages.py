"""Messages: what goes between the driver and a block in a round.

They travel as plain bytes: Ray takes those as they are, which makes a round a
third cheaper than with arrays. Layout, all int64: number, word, rows, vectors;
then rows x (rendezvous, group); then rows x vectors of ready_ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.engine.block import Arrivals

HEADER = 4


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """To a block: its round *number*, the *iteration* to be in, and what was resolved."""

    number: int
    iteration: int
    resolved: Arrivals

    def to_bytes(self) -> bytes:
        """The order as it travels."""
        return _pack(self.number, self.iteration, self.resolved)

    @classmethod
    def from_bytes(cls, message: bytes) -> Order:
        """The order that *message* holds."""
        return cls(*_unpack(message))


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """From a block, after its round *number*: whether it is done, and who is ready."""

    number: int
    is_done: bool
    arrivals: Arrivals

    def to_bytes(self) -> bytes:
        """The report as it travels."""
        return _pack(self.number, int(self.is_done), self.arrivals)

    @classmethod
    def from_bytes(cls, message: bytes) -> Report:
        """The report that *message* holds."""
        number, is_done, arrivals = _unpack(message)
        return cls(number, bool(is_done), arrivals)


def _pack(number: int, word: int, arrivals: Arrivals) -> bytes:
    rows, vectors = arrivals.ready_ns.shape
    header = np.array([number, word, rows, vectors], dtype=np.int64)
    return b"".join([header.tobytes(), arrivals.rendezvous.tobytes(), arrivals.ready_ns.tobytes()])


def _unpack(message: bytes) -> tuple[int, int, Arrivals]:
    # A copy, because numba would compile the pass anew for arrays that cannot be written.
    numbers = np.frombuffer(message, dtype=np.int64).copy()
    number, word, rows, vectors = (int(value) for value in numbers[:HEADER])
    middle = HEADER + 2 * rows
    arrivals = Arrivals(
        numbers[HEADER:middle].reshape(rows, 2), numbers[middle:].reshape(rows, vectors)
    )
    return number, word, arrivals
