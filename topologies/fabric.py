"""Fabrics: the network that joins hosts, as leaf switches under a spine.

On a rail-optimised fabric NIC i of every host of a block is connected to leaf i: equal NICs are
one leaf apart, others a spine. On a flat fabric all NICs of a block of hosts share one leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from perfmodel.base.errors import TopologyError
from perfmodel.base.fields import Bandwidth, Count, Duration, Parsed
from perfmodel.base.forms import Form


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


class FabricKind(Enum):
    """How NICs are connected to leaf switches; the value is the word used in files."""

    RAIL_OPTIMISED = "rail_optimised"
    FLAT = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Form):
    """The network that the NICs of a host are connected to.

    *nic_bandwidth_bytes_per_s* is that of one NIC vertex with all its *nic_lanes*, each way; a
    file states that of one lane. *nic_latency_ns* is paid on the way into and out of the network,
    *spine_latency_ns* on the way up and down again. *oversubscription* is what the NICs under a
    leaf can send over what the leaf can pass up: 1 keeps every NIC busy across the spine. Defaults
    are those of the machines we ship. *call_latency_ns* is paid by every call of a training job
    that does not queue behind another of its group, per doubling of the hosts that take part: on a
    network shared with other jobs, waiting for the slowest host.
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

    def __post_init__(self) -> None:
        rules = (
            ("NIC bandwidth must be above zero", self.nic_bandwidth_bytes_per_s > 0),
            ("NIC lanes must be 1 or more", self.nic_lanes >= 1),
            (
                "latencies must be zero or more",
                min(self.nic_latency_ns, self.spine_latency_ns, self.call_latency_ns) >= 0,
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
