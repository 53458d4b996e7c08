"""Entries: one block of a calibration file each, with what it was fitted on."""

from __future__ import annotations

from dataclasses import dataclass

from collectives.collective import CollectiveKind
from collectives.constants import FabricConstants, HostConstants
from collectives.software import Protocol
from collectives.wiring import HostLinkClass


@dataclass(frozen=True, slots=True)
class HostEntry:
    """Constants inside a host; with *machines* only for these odd hosts."""

    name: str
    architecture: str
    link_class: HostLinkClass
    constants: HostConstants
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FabricEntry:
    """Constants between hosts, for the networks of *machines*.

    *protocols* are those the network plugin leaves NCCL, *tree_protocols* those with which logs
    show trees. A pairwise exchange with slices up to *pair_ll_bytes* goes by LL.
    """

    name: str
    machines: tuple[str, ...]
    constants: FabricConstants
    protocols: tuple[Protocol, ...] = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
    tree_protocols: tuple[Protocol, ...] = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
    pair_ll_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """A curve that was in the fit: one machine, kind and group, over a span of sizes."""

    topology: str
    kind: CollectiveKind
    hosts: int
    ranks: int
    low_bytes: int
    high_bytes: int

    def holds(self, hosts: int, ranks: int, size_bytes: float) -> bool:
        """Whether a call of that group and size lies within the curve."""
        same_group = (hosts, ranks) == (self.hosts, self.ranks)
        return same_group and self.low_bytes <= size_bytes <= self.high_bytes
