"""Links: the one-way wires a topology is made of.

A link may bundle several equal lanes (18 NVLinks, 4 network ports). Its
bandwidth is that of the whole bundle, in one direction, as the datasheet has it;
what software reaches of it is the business of cost models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from perfmodel.base.errors import TopologyError
from perfmodel.base.units import NS_PER_S, format_bandwidth

# A vertex may stand for several chips that software sees as one: the four
# NVSwitch chips of a DGX H100 are one vertex with `chips=4`, because every GPU
# spreads each transfer over all of them.


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
    """An endpoint of links, the *index*-th of its *kind*."""

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

    def occupancy_ns(self, size_bytes: float) -> float:
        """How long a transfer of *size_bytes* keeps the wire busy."""
        return size_bytes * NS_PER_S / self.bandwidth_bytes_per_s

    def arrival_ns(self, size_bytes: float) -> float:
        """How long until the last byte of *size_bytes* is at the target."""
        return self.latency_ns + self.occupancy_ns(size_bytes)

    def describe(self) -> str:
        """One line for people: ends, kind, lanes and bandwidth."""
        lanes = f"{self.lanes} x " if self.lanes > 1 else ""
        rate = format_bandwidth(self.bandwidth_bytes_per_s / self.lanes)
        return f"{self.name} ({self.kind.value}, {lanes}{rate})"
