"""Vertices, links and routes: endpoints, one-way wires between them, and wires in order.

A link may bundle several equal lanes (18 NVLinks, 4 network ports). Its bandwidth is that of the
whole bundle, in one direction, as the datasheet has it; cost models decide what software reaches
of it. A route is as fast as its slowest link and pays the latency of every link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from perfmodel.base.errors import TopologyError


class VertexKind(Enum):
    """What a vertex is; the value is the word used in files."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCIE_SWITCH = "pcie_switch"
    CPU = "cpu"
    NIC = "nic"
    LEAF = "leaf"
    SPINE = "spine"


HOST_KINDS = (
    VertexKind.GPU,
    VertexKind.NVSWITCH,
    VertexKind.PCIE_SWITCH,
    VertexKind.CPU,
    VertexKind.NIC,
)


@dataclass(frozen=True, slots=True)
class Vertex:
    """An endpoint of links, the *index*-th of its *kind*.

    Several *chips* that software sees as one are one vertex: the four NVSwitches of a DGX H100,
    because every GPU spreads each transfer over all of them.
    """

    kind: VertexKind
    index: int
    chips: int = 1
    reduces: bool = False

    def __post_init__(self) -> None:
        if self.index < 0 or self.chips < 1:
            raise TopologyError(
                f"vertex {self.name}: index must be 0 or more and chips 1 or more, "
                f"got index {self.index} and {self.chips} chips. Number vertices from 0."
            )
        if self.reduces and self.kind is not VertexKind.NVSWITCH:
            raise TopologyError(
                f"vertex {self.name}: only an nvswitch can reduce, got a {self.kind.value}. "
                "Leave `reduces` out."
            )

    @property
    def name(self) -> str:
        """The name links refer to it by, such as `gpu:3`."""
        return f"{self.kind.value}:{self.index}"


class LinkKind(Enum):
    """The technology of a link; the value is the word used in files."""

    NVLINK = "nvlink"
    NVLINK_C2C = "nvlink_c2c"
    PCIE = "pcie"
    CPU = "cpu"
    NIC = "nic"
    FABRIC = "fabric"


HOST_LINK_KINDS = (LinkKind.NVLINK, LinkKind.NVLINK_C2C, LinkKind.PCIE, LinkKind.CPU)


@dataclass(frozen=True, slots=True)
class Link:
    """A one-way wire from *source* to *target*, names of vertices."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_ns: float
    kind: LinkKind
    lanes: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise TopologyError(
                f"link {self.name}: bandwidth must be above zero, "
                f"got {self.bandwidth_bytes_per_s} bytes/s. "
                "To say that two vertices are not connected, leave the link out."
            )
        if not (math.isfinite(self.latency_ns) and self.latency_ns >= 0):
            raise TopologyError(
                f"link {self.name}: latency must be zero or more, got {self.latency_ns} ns. "
                "Write what one message pays on this link."
            )
        if self.source == self.target or self.lanes < 1:
            raise TopologyError(
                f"link {self.name}: must join two vertices by one lane or more, "
                f"got {self.lanes} lanes. Name two different vertices."
            )

    @property
    def name(self) -> str:
        """Both ends, such as `gpu:0 -> nvswitch:0`."""
        return f"{self.source} -> {self.target}"


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


def _is_kind(name: str, kind: str) -> bool:
    return name.rpartition("/")[2].startswith(f"{kind}:")
