"""Routes: links in order from one vertex to another.

A route is as fast as its slowest link and pays the latency of every link.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import TopologyError
from perfmodel.base.units import NS_PER_S
from topologies.link import Link, LinkKind


@dataclass(frozen=True, slots=True)
class Route:
    """*links* in order; each starts where the one before it ends."""

    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        if not self.links:
            raise TopologyError(
                "route: must hold at least one link, got none. "
                "A vertex needs no route to itself; do not ask for one."
            )
        for before, after in zip(self.links, self.links[1:], strict=False):
            if before.target != after.source:
                raise TopologyError(
                    f"route: links must follow each other, got {before.name} "
                    f"before {after.name}. Order them from source to target."
                )

    @property
    def source(self) -> str:
        """The vertex it starts at."""
        return self.links[0].source

    @property
    def target(self) -> str:
        """The vertex it ends at."""
        return self.links[-1].target

    @property
    def stops(self) -> tuple[str, ...]:
        """Vertices passed through, both ends left out."""
        return tuple(link.target for link in self.links[:-1])

    @property
    def slowest(self) -> Link:
        """The link with the lowest bandwidth; the first of them on a tie."""
        return min(self.links, key=lambda link: link.bandwidth_bytes_per_s)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What one transfer alone on the route gets."""
        return self.slowest.bandwidth_bytes_per_s

    @property
    def latency_ns(self) -> float:
        """Latency of all links together."""
        return sum(link.latency_ns for link in self.links)

    @property
    def kinds(self) -> tuple[LinkKind, ...]:
        """The kind of each link, in order."""
        return tuple(link.kind for link in self.links)

    @property
    def is_nvlink(self) -> bool:
        """Whether every link is NVLink."""
        return all(kind is LinkKind.NVLINK for kind in self.kinds)

    @property
    def passes_gpu(self) -> bool:
        """Whether another GPU has to forward, as in a hybrid cube mesh."""
        return any(_is_kind(stop, "gpu") for stop in self.stops)

    @property
    def passes_cpu(self) -> bool:
        """Whether it goes through a CPU socket."""
        return any(_is_kind(stop, "cpu") for stop in self.stops)

    def arrival_ns(self, size_bytes: float) -> float:
        """How long until *size_bytes*, cut in small pieces, are at the target."""
        return self.latency_ns + size_bytes * NS_PER_S / self.bandwidth_bytes_per_s


def _is_kind(name: str, kind: str) -> bool:
    return name.rpartition("/")[2].startswith(f"{kind}:")
