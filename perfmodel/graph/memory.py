"""RankMemory: what takes up the memory of one rank when it takes up most."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME_BYTES = 2**30
"""Driver context, communicator buffers and fragmentation of the allocator: assumed, 1 GiB."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes that one purpose takes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The parts of one rank's peak, in a fixed order; parts may be zero."""

    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def largest(self) -> MemoryPart:
        """The part that takes most; the first of equals."""
        return max(self.parts, key=lambda part: part.size_bytes)
