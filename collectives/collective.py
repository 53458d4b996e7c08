"""Collective: one call that a group of ranks makes together, its library and its cost.

Sizes follow nccl-tests: all-reduce, broadcast, reduce and send/recv count the
buffer, all-gather the gathered total, reduce-scatter the input, all-to-all
the whole send buffer of one rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collectives.token_exchange import TokenRouting
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError
from perfmodel.base.provenance import Provenance

Word = TypeVar("Word", bound=Enum)


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
    return _parse(CollectiveKind, text.lower(), text, "collective")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective call, the same value on every rank of the group.

    *byte_matrix* is for uneven all-to-all: row i is what member i sends to
    each member, in bytes. *root* is the member that sends a broadcast or
    receives a reduction. A call that *is_queued* follows another of its group directly, so its
    stragglers were waited for before. With *routing* an all-to-all is the exchange of a rank's
    tokens with experts by a library of its own, and the size counts every token once.
    """

    kind: CollectiveKind
    size_bytes: int
    dtype: DType = DType.FP32
    byte_matrix: tuple[tuple[int, ...], ...] | None = None
    root: int = 0
    is_queued: bool = False
    routing: TokenRouting | None = None
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
        if self.routing is not None and self.kind is not CollectiveKind.ALL_TO_ALL:
            raise InputError(
                f"{self.kind.value}: only all_to_all routes tokens. Leave routing out."
            )
        routed = (self.routing.tokens, self.routing.is_combine) if self.routing else ()
        number = hash((self.size_bytes, self.root, self.is_queued, self.byte_matrix or (), routed))
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


DEFAULT_NCCL_VERSION = (2, 27)


class CollectiveAlgorithm(Enum):
    """A way to carry out a collective; the value is the word used in files."""

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"
    NVLS_TREE = "nvls_tree"
    COLLNET = "collnet"
    PAT = "pat"
    PAIRWISE = "pairwise"


class Protocol(Enum):
    """How NCCL hands data over: flag with every word, flag per 128 bytes, or by chunks."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"


@dataclass(frozen=True, slots=True)
class CollectiveSoftware:
    """Which NCCL runs, and what is forced instead of left to its tuner."""

    nccl_version: tuple[int, ...] = DEFAULT_NCCL_VERSION
    algorithm: CollectiveAlgorithm | None = None
    protocol: Protocol | None = None

    def __post_init__(self) -> None:
        if len(self.nccl_version) < 2 or min(self.nccl_version) < 0:
            raise InputError(
                f"NCCL version: must be like 2.27.3, got {self.nccl_version}. "
                "Give major and minor number."
            )

    @property
    def is_before_2_24(self) -> bool:
        """Whether it is a release before the rewrite of channels and chunks in 2.24."""
        return self.nccl_version < (2, 24)


def parse_nccl_version(text: str) -> tuple[int, ...]:
    """Read a version such as `2.27.3`."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,5}){1,3}", text.strip()) is None:
        raise InputError(f"NCCL version: must be like 2.27.3, got {text!r}.")
    return tuple(int(part) for part in text.strip().split("."))


def parse_algorithm(text: str) -> CollectiveAlgorithm:
    """Read an algorithm from *text*, in our words or NCCL's."""
    word = text.lower().replace("nvlstree", "nvls_tree")
    word = re.sub("collnet(chain|direct)", "collnet", word)
    return _parse(CollectiveAlgorithm, word, text, "collective algorithm")


def parse_protocol(text: str) -> Protocol:
    """Read a protocol from *text*."""
    return _parse(Protocol, text.lower(), text, "NCCL protocol")


def _parse(kind: type[Word], word: str, text: str, what: str) -> Word:
    try:
        return kind(word.strip())
    except ValueError:
        known = [one.value for one in kind]
        near = get_close_matches(word.strip(), known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(
            f"{what}: must be one of {', '.join(known)}, got {text!r}.{hint}"
        ) from None


_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """The predicted cost of one call, the same on every rank unless *per_rank_ns* is given.

    *alternative* is the algorithm and protocol that NCCL may choose as well, where its own plan has
    both close together: the time is then between theirs.
    *latency_ns* is the part that a call of no bytes would take, too. *busiest_link* names the
    bottleneck; *gpu_busy_ns* and *nic_busy_ns* say how long the call keeps the links of a GPU and
    a NIC busy, *wire_ns* how long the busier of them needs at the speed of its datasheet.
    """

    duration_ns: float
    relative_sigma: float
    provenance: Provenance
    algorithm: str
    protocol: str
    busiest_link: str
    latency_ns: float
    bus_bandwidth_bytes_per_s: float
    gpu_busy_ns: float = 0.0
    nic_busy_ns: float = 0.0
    wire_ns: float = 0.0
    per_rank_ns: npt.NDArray[np.float64] | None = None
    alternative: str = ""

    @property
    def latency_ratio(self) -> float:
        """The share of latency in the duration."""
        return self.latency_ns / self.duration_ns if self.duration_ns > 0 else 1.0

    @property
    def algorithm_word(self) -> str:
        """Algorithm and protocol together, such as `ring/ll128`."""
        return f"{self.algorithm}/{self.protocol}"


FREE = CollectiveCost(
    duration_ns=0.0,
    relative_sigma=0.0,
    provenance=Provenance.ANALYTIC,
    algorithm="none",
    protocol="none",
    busiest_link="",
    latency_ns=0.0,
    bus_bandwidth_bytes_per_s=0.0,
)


def bus_bandwidth(
    kind: CollectiveKind, *, size_bytes: float, rank_count: int, duration_ns: float
) -> float:
    """Bytes per second as nccl-tests reports them: what each GPU's wire carried."""
    if duration_ns <= 0:
        return 0.0
    passes = _PASSES.get(kind)
    factor = 1.0 if passes is None else passes * (rank_count - 1) / rank_count
    return factor * size_bytes * 1e9 / duration_ns
