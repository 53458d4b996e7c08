"""Messages between the driver and a block in a round.

They are plain bytes, which Ray sends unchanged: a round costs a third less than with arrays.
Format, all int64: number, flags, rows, vectors; then rows x (iteration, group, sequence); then
rows x vectors of ready_ns. Groups have the numbers of the whole job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.engine.block import Arrivals

HEADER = 4
DONE = 1
CAN_WALK = 2


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """To a block: its round *number* and the *resolved* rendezvous. Without any, it walks on."""

    number: int
    resolved: Arrivals

    def to_bytes(self) -> bytes:
        """The order as bytes."""
        return _pack(self.number, 0, self.resolved)

    @classmethod
    def from_bytes(cls, message: bytes) -> Order:
        """The order that *message* holds."""
        number, _, resolved = _unpack(message)
        return cls(number, resolved)


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """From a block, after its round *number*: its state, and which members are ready.

    A block that *can_walk* stopped before all lanes that could run.
    """

    number: int
    is_done: bool
    can_walk: bool
    arrivals: Arrivals

    def to_bytes(self) -> bytes:
        """The report as bytes."""
        return _pack(self.number, DONE * self.is_done + CAN_WALK * self.can_walk, self.arrivals)

    @classmethod
    def from_bytes(cls, message: bytes) -> Report:
        """The report that *message* holds."""
        number, word, arrivals = _unpack(message)
        return cls(number, bool(word & DONE), bool(word & CAN_WALK), arrivals)


def _pack(number: int, word: int, arrivals: Arrivals) -> bytes:
    rows, vectors = arrivals.ready_ns.shape
    header = np.array([number, word, rows, vectors], dtype=np.int64)
    return b"".join([header.tobytes(), arrivals.rendezvous.tobytes(), arrivals.ready_ns.tobytes()])


def _unpack(message: bytes) -> tuple[int, int, Arrivals]:
    # A copy, because numba would compile the pass anew for arrays that cannot be written.
    numbers = np.frombuffer(message, dtype=np.int64).copy()
    number, word, rows, vectors = (int(value) for value in numbers[:HEADER])
    middle = HEADER + 3 * rows
    arrivals = Arrivals(
        numbers[HEADER:middle].reshape(rows, 3), numbers[middle:].reshape(rows, vectors)
    )
    return number, word, arrivals
