"""Collective: one call that a group of ranks makes together.

Sizes follow nccl-tests: all-reduce, broadcast, reduce and send/recv count the
buffer, all-gather the gathered total, reduce-scatter the input, all-to-all
the whole send buffer of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError


class CollectiveKind(Enum):
    """What is asked of the group; the value is the word used in files."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"
    BARRIER = "barrier"

    @classmethod
    def _missing_(cls, value: object) -> CollectiveKind | None:
        """The kind that *value* means in another spelling, such as `allreduce` or `AllToAll`."""
        bare = "".join(letter for letter in str(value).lower() if letter.isalpha())
        return {kind.value.replace("_", ""): kind for kind in cls}.get(bare)


def parse_kind(text: str) -> CollectiveKind:
    """The kind that *text* means, in any spelling of it."""
    try:
        return CollectiveKind(text.strip())
    except ValueError:
        known = [kind.value for kind in CollectiveKind]
        near = get_close_matches(text.strip().lower(), known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(
            f"collective: must be one of {', '.join(known)}, got {text!r}.{hint}"
        ) from None


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective call, the same value on every rank of the group.

    *byte_matrix* is for uneven all-to-all: row i is what member i sends to
    each member, in bytes. *root* is the member that sends a broadcast or
    receives a reduction. A call that *is_queued* was issued behind another of its group without
    anything to wait for in between, so whoever is late was waited for before.
    """

    kind: CollectiveKind
    size_bytes: int
    dtype: DType = DType.FP32
    byte_matrix: tuple[tuple[int, ...], ...] | None = None
    root: int = 0
    is_queued: bool = False
    # Hashed once: a matrix of a thousand ranks has a million entries. From
    # whole numbers only, so that it is the same in every process.
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise InputError(
                f"{self.kind.value}: size must not be negative, got {self.size_bytes} bytes. "
                "Count the buffer as nccl-tests does."
            )
        if self.byte_matrix is not None:
            self._check_byte_matrix(self.byte_matrix)
        number = hash((self.size_bytes, self.root, self.is_queued, self.byte_matrix or ()))
        object.__setattr__(self, "_hash", number)

    def _check_byte_matrix(self, byte_matrix: tuple[tuple[int, ...], ...]) -> None:
        if self.kind is not CollectiveKind.ALL_TO_ALL:
            raise InputError(
                f"{self.kind.value}: only all_to_all takes a byte matrix. Leave it out."
            )
        size = len(byte_matrix)
        for sender, row in enumerate(byte_matrix):
            if len(row) != size:
                raise InputError(
                    f"all_to_all: byte matrix must be square, row {sender} has {len(row)} "
                    f"entries and there are {size} rows."
                )
            if min(row) < 0:
                receiver = next(place for place, sent_bytes in enumerate(row) if sent_bytes < 0)
                raise InputError(
                    f"all_to_all: bytes must not be negative, member {sender} sends "
                    f"{row[receiver]} to member {receiver}."
                )
