"""Vertices, links, routes and the fabric: what hosts are wired from, and what joins them.

A link may bundle several equal lanes (18 NVLinks, 4 network ports). Its bandwidth is that of the
whole bundle, in one direction, as the datasheet has it; cost models decide what software reaches
of it. A route is as fast as its slowest link and pays the latency of every link.

A fabric has leaf switches under a spine. On a rail-optimised fabric NIC i of every host of a block
is connected to leaf i: equal NICs are one leaf apart, others a spine. On a flat fabric all NICs of
a block of hosts share one leaf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from perfmodel.base.errors import TopologyError
from perfmodel.base.fields import Bandwidth, Count, Duration, Parsed, Switch
from perfmodel.base.forms import Form

_SELECTION = re.compile(r"([a-z_]+):(\*|\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_MAX_DIGITS = 6


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


def parse_oversubscription(text: object) -> float:
    """The ratio in *text*, such as `2 to 1`."""
    down, _, up = str(text).partition(" to ")
    try:
        ratio = float(down) / float(up)
    except (ValueError, ZeroDivisionError):
        ratio = 0.0
    if not 1 <= ratio < float("inf"):
        raise TopologyError(f"must look like `2 to 1`, with 1 to 1 as the least, got {text!r}")
    return ratio


def parse_selection(text: str, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The vertex names that *text* means, given how many there are of each kind."""
    match = _SELECTION.fullmatch(text.replace(" ", ""))
    if match is None:
        raise TopologyError(f"must look like gpu:0, gpu:0-3, gpu:0,2 or gpu:*, got {text!r}")
    kind, places = match.groups()
    if kind not in counts:
        known = ", ".join(counts) or ", ".join(member.value for member in HOST_KINDS)
        raise TopologyError(f"{text!r} names no vertex kind of this file; it has {known}")
    if places == "*":
        return tuple(f"{kind}:{index}" for index in range(counts[kind]))
    names: list[str] = []
    for part in places.split(","):
        first, _, last = part.partition("-")
        if max(len(first), len(last)) > _MAX_DIGITS:
            raise TopologyError(f"{text!r} has a number too large to be a vertex")
        low, high = int(first), int(last or first)
        if high < low:
            raise TopologyError(f"{text!r} has a range that runs backwards; write {high}-{low}")
        if high >= counts[kind]:
            raise TopologyError(
                f"{text!r} dangles: there is no {kind}:{high}, only {kind}:0 to "
                f"{kind}:{counts[kind] - 1}"
            )
        names += [f"{kind}:{index}" for index in range(low, high + 1)]
    return tuple(names)


class FabricKind(Enum):
    """How NICs are connected to leaf switches; the value is the word used in files."""

    RAIL_OPTIMISED = "rail_optimised"
    FLAT = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Form):
    """The network that the NICs of a host are connected to.

    *nic_bandwidth_bytes_per_s* is that of one NIC vertex with all its *nic_lanes*, each way; a file
    states that of one lane. *nic_latency_ns* is paid on the way into and out of the network,
    *spine_latency_ns* on the way up and down again. *idle_nic_latency_ns*, if stated, is what a
    benchmark alone on the network pays in place of *nic_latency_ns*. *oversubscription* is what the
    NICs under a leaf can send over what the leaf can pass up: 1 keeps every NIC busy across the
    spine. Defaults are those of the machines we ship. *call_latency_ns* is paid by every call of a
    training job that does not queue after another of its group, per doubling of the hosts that take
    part: on a network shared with other jobs, waiting for the slowest host. *doubling_loss* is the
    share by which reductions in the switches of hosts and trees between them become slower with
    every doubling of hosts beyond two. Where no log of a machine tells, that of 4 and 8 hosts of
    H100, 0.16, drawn halfway to none. A network that *reduces* has switches that add up what passes
    through them (SHARP).
    """

    sections = ("nic", "leaf", "spine", "call")

    kind: FabricKind
    nic_bandwidth_bytes_per_s: Annotated[Bandwidth, Field(alias="nic.bandwidth")]
    nic_latency_ns: Annotated[Duration, Field(alias="nic.latency")]
    hosts_per_leaf: Annotated[Count, Field(alias="leaf.hosts")] = 32
    nic_lanes: Annotated[Count, Field(alias="nic.lanes")] = 1
    oversubscription: Annotated[
        float, Parsed(parse_oversubscription, "2 to 1"), Field(alias="spine.oversubscription")
    ] = 1.0
    spine_latency_ns: Annotated[Duration, Field(alias="spine.latency")] = 300.0
    call_latency_ns: Annotated[Duration, Field(alias="call.latency")] = 0.0
    idle_nic_latency_ns: Annotated[Duration, Field(alias="nic.idle_latency")] = 0.0
    doubling_loss: Annotated[float, Field(strict=True, ge=0, le=1, alias="call.loss")] = 0.1
    reduces: Switch = False

    def __post_init__(self) -> None:
        rules = (
            ("NIC bandwidth must be above zero", self.nic_bandwidth_bytes_per_s > 0),
            ("NIC lanes must be 1 or more", self.nic_lanes >= 1),
            (
                "latencies must be zero or more",
                min(self.nic_latency_ns, self.spine_latency_ns, self.call_latency_ns) >= 0
                and self.idle_nic_latency_ns >= 0,
            ),
            ("hosts per leaf must be 1 or more", self.hosts_per_leaf >= 1),
            ("oversubscription must be 1 or more", self.oversubscription >= 1),
        )
        broken = [rule for rule, holds in rules if not holds]
        if broken:
            raise TopologyError(f"fabric: {'; '.join(broken)}, got {self}. Correct these.")

    def leaf_of(self, *, host: int, nic: int) -> str:
        """The leaf switch that *nic* of *host* is plugged into: `leaf:BLOCK.RAIL`."""
        rail = nic if self.kind is FabricKind.RAIL_OPTIMISED else 0
        return f"leaf:{host // self.hosts_per_leaf}.{rail}"

    def uplink_bandwidth_bytes_per_s(self, *, nics_per_host: int) -> float:
        """What one leaf can pass up to the spine, all its uplinks together."""
        on_leaf = 1 if self.kind is FabricKind.RAIL_OPTIMISED else nics_per_host
        per_nic = self.nic_bandwidth_bytes_per_s / self.oversubscription
        return per_nic * self.hosts_per_leaf * on_leaf
