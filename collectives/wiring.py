"""Wiring: what one group of ranks sees of the machines it runs on.

Groups that are translations of each other see the same wiring, so a job with
thousands of groups has a handful of wirings. Bandwidths are the datasheet's;
what NCCL reaches of them is the business of the calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from perfmodel.base.errors import InputError


class HostLinkClass(Enum):
    """How the GPUs of a host reach each other; the value is the word used in files."""

    NVSWITCH = "nvswitch"
    NVLINK_MESH = "nvlink_mesh"
    PCIE_PEER = "pcie_peer"
    PCIE_HOST = "pcie_host"
    NONE = "none"

    @property
    def is_nvlink(self) -> bool:
        """Whether transfers inside the host take NVLink only."""
        return self in (HostLinkClass.NVSWITCH, HostLinkClass.NVLINK_MESH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The numbers of a group that its cost depends on.

    *ring_bandwidth_bytes_per_s* is what all rings that fit in a host carry together past one
    GPU, one way; where no ring fits (*is_chain*) that of the chain taken instead.
    *pair_bandwidth_bytes_per_s* is what each GPU can send when all pairs of a host talk at once.
    *nic_bandwidth_bytes_per_s* is that of all NICs of a host that the group sends with;
    *nic_sharing* is how many ranks of the group share the busiest NIC, *net_latency_ns* what the
    wires and switches from NIC to NIC take. *pair_oversubscription*
    is how much the spine slows traffic between all pairs of hosts; rings and trees run between
    neighbours and seldom cross it.
    """

    topology_name: str
    architecture: str
    rank_count: int
    host_count: int
    ranks_per_host: int
    link_class: HostLinkClass
    ring_bandwidth_bytes_per_s: float
    pair_bandwidth_bytes_per_s: float
    is_chain: bool = False
    can_reduce_in_switch: bool = False
    nic_bandwidth_bytes_per_s: float = 0.0
    nic_sharing: int = 1
    nic_count: int = 0
    pair_oversubscription: float = 1.0
    net_latency_ns: float = 0.0
    host_link: str = ""
    nic_link: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.host_count <= self.rank_count:
            raise InputError(
                f"wiring: hosts must be between 1 and the number of ranks, got "
                f"{self.host_count} hosts for {self.rank_count} ranks."
            )
        if self.host_count > 1 and self.nic_bandwidth_bytes_per_s <= 0:
            raise InputError(
                f"wiring on {self.topology_name}: {self.host_count} hosts need a network, and "
                "the topology has no fabric. Add one, or keep the group on one host."
            )

    @property
    def nic_share_bytes_per_s(self) -> float:
        """What one rank gets when all ranks of the group send off-host."""
        return self.nic_bandwidth_bytes_per_s / self.ranks_per_host
