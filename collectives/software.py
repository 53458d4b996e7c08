"""Software: the collective library as an input, and what a user forces on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from perfmodel.base.errors import InputError

DEFAULT_NCCL_VERSION = (2, 27)


class CollectiveAlgorithm(Enum):
    """A way to carry out a collective; the value is the word used in files."""

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"
    NVLS_TREE = "nvls_tree"
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
    word = text.strip().lower().replace("nvlstree", "nvls_tree")
    try:
        return CollectiveAlgorithm(word)
    except ValueError:
        known = ", ".join(member.value for member in CollectiveAlgorithm)
        raise InputError(f"collective algorithm: must be one of {known}, got {text!r}.") from None


def parse_protocol(text: str) -> Protocol:
    """Read a protocol from *text*."""
    try:
        return Protocol(text.strip().lower())
    except ValueError:
        known = ", ".join(member.value for member in Protocol)
        raise InputError(f"NCCL protocol: must be one of {known}, got {text!r}.") from None
