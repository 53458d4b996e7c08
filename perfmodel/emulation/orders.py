"""Orders: what a crew of ranks is told to run, and what came of it.

A crew is one process that makes the device once and forks a process per rank; its ranks
run side by side. Orders and outcomes are plain values, because they travel to other
processes and machines.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

NEEDS_ALL_RANKS = 213
"""Exit code of a rank that must talk to one that is not being emulated."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What scripts are told about their GPU."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    max_threads: int
    shared_memory_bytes: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class CrewOrder:
    """Run the script *words* as *ranks* of *world_size*, with results in *folder*.

    With *is_plain* the script does not get torchrun's environment.
    """

    words: tuple[str, ...]
    ranks: tuple[int, ...]
    world_size: int
    ranks_per_host: int
    device: DeviceFacts
    warmup: int
    iterations: int
    runs_on: bool
    is_plain: bool
    timeout_s: float | None
    folder: str

    @property
    def local_size(self) -> int:
        """How many ranks a host has."""
        return min(self.world_size, self.ranks_per_host)


def write_order(order: CrewOrder, path: Path) -> None:
    """Write *order* to *path*."""
    path.write_bytes(orjson.dumps(asdict(order)))


def read_order(path: Path) -> CrewOrder:
    """The order in *path*."""
    words = orjson.loads(path.read_bytes())
    device = words.pop("device")
    device["capability"] = tuple(device["capability"])
    return CrewOrder(
        words=tuple(words.pop("words")),
        ranks=tuple(words.pop("ranks")),
        device=DeviceFacts(**device),
        **words,
    )
