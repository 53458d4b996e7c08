"""The wires of a topology's picture: which are drawn, in which colour and width, in which words.

A wire is drawn once for both directions, and the thicker the faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.base.units import format_bandwidth
from perfmodel.reports.topology_positions import Plan
from topologies import Link, LinkKind, Topology

WIRE_COLOURS = {
    LinkKind.NVLINK: "#6fae2f",
    LinkKind.NVLINK_C2C: "#1f9a8a",
    LinkKind.PCIE: "#7d8fc9",
    LinkKind.CPU: "#dba24a",
    LinkKind.NIC: "#cf6d88",
}
KIND_WORDS = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.NVLINK_C2C: "NVLink-C2C",
    LinkKind.PCIE: "PCIe",
    LinkKind.CPU: "between sockets",
    LinkKind.NIC: "network",
}


def drawn_links(topology: Topology, plan: Plan) -> list[Link]:
    """One link of each two-way pair, with both ends in the picture."""
    seen: set[frozenset[str]] = set()
    drawn = []
    for link in topology.links:
        ends = frozenset((link.source, link.target))
        if ends <= plan.places.keys() and ends not in seen:
            seen.add(ends)
            drawn.append(link)
    return drawn


def line_width(bandwidth_bytes_per_s: float) -> float:
    """The width of a wire in the picture, in points."""
    return 1.0 + 0.62 * max(0.0, math.log2(bandwidth_bytes_per_s / 12e9))


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One sort of wire and the words for it."""

    colour: str
    words: str
    width: float


def build_legend(topology: Topology, plan: Plan) -> list[LegendEntry]:
    """An entry for each sort of wire in the picture."""
    entries: dict[tuple[LinkKind, float], LegendEntry] = {}
    for link in drawn_links(topology, plan):
        width = line_width(link.bandwidth_bytes_per_s)
        entry = LegendEntry(WIRE_COLOURS[link.kind], _wire_words(link), width)
        entries.setdefault((link.kind, link.bandwidth_bytes_per_s), entry)
    legend = list(entries.values())
    fabric = topology.fabric
    if fabric is not None:
        gbit = fabric.nic_bandwidth_bytes_per_s * 8e-9 / fabric.nic_lanes
        lanes = f"{fabric.nic_lanes} x " if fabric.nic_lanes > 1 else ""
        width = line_width(fabric.nic_bandwidth_bytes_per_s)
        words = f"NIC  {lanes}{gbit:g} Gbit/s"
        legend.append(LegendEntry(WIRE_COLOURS[LinkKind.NIC], words, width))
    return legend


def _wire_words(link: Link) -> str:
    total = format_bandwidth(link.bandwidth_bytes_per_s)
    if link.lanes == 1:
        return f"{KIND_WORDS[link.kind]}  {total}"
    one = format_bandwidth(link.bandwidth_bytes_per_s / link.lanes)
    return f"{KIND_WORDS[link.kind]}  {link.lanes} x {one} = {total}"
