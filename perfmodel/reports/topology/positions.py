"""Where each vertex of a machine stands in its picture.

Rows from top to bottom: NVSwitch, GPUs, PCIe switches, CPU sockets and NICs, fabric.
Of a rack only its first trays are drawn; the rest is alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.base.units import format_bandwidth
from topologies import Link, LinkKind, Topology, Vertex, VertexKind

# A wire is drawn once for both directions, and the thicker the faster.


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


TRAYS_SHOWN = 2
ROW_GAP = 1.55


@dataclass(frozen=True, slots=True)
class Place:
    """The middle of a box, and its width."""

    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Places of the vertices drawn, the columns they take, and the lowest row."""

    places: dict[str, Place]
    columns: int
    hidden_trays: int
    bottom: float


def build_plan(topology: Topology) -> Plan:
    """Give every vertex of *topology* that is drawn its place."""
    share = 1.0
    hidden = 0
    if topology.trays > TRAYS_SHOWN:
        hidden = topology.trays - TRAYS_SHOWN
        share = TRAYS_SHOWN / topology.trays
    gpus, switches, cpus, nics = (
        _first(topology.of_kind(kind), share)
        for kind in (VertexKind.GPU, VertexKind.PCIE_SWITCH, VertexKind.CPU, VertexKind.NIC)
    )
    places = {gpu.name: Place(float(column), 0.0, 0.8) for column, gpu in enumerate(gpus)}
    columns = len(gpus)
    middle = (columns - 1) / 2
    top = ROW_GAP * 1.05
    nvswitches = topology.of_kind(VertexKind.NVSWITCH)
    for number, vertex in enumerate(nvswitches):
        part = columns / len(nvswitches)
        x = middle - columns / 2 + part * (number + 0.5)
        places[vertex.name] = Place(x, top, part - 0.2)
    level = 0.0
    if switches:
        level -= ROW_GAP
        _put_below(topology, switches, places, level, 0.95)
    nic_level = level - ROW_GAP
    cpu_level = nic_level - (0.9 * ROW_GAP if switches and nics else 0.0)
    _put_below(topology, cpus, places, cpu_level, 0.8)
    if not switches and cpus:
        nic_level = cpu_level - ROW_GAP
    _put_nics(topology, nics, places, nic_level)
    _clear_wires(places)
    bottom = min((place.y for place in places.values()), default=0.0)
    return Plan(places, columns, hidden, bottom)


def _first(vertices: tuple[Vertex, ...], share: float) -> list[Vertex]:
    return list(vertices[: round(len(vertices) * share)])


def _neighbours(topology: Topology, name: str, places: Iterable[str]) -> list[str]:
    known = set(places)
    return [link.target for link in topology.links if link.source == name and link.target in known]


def _put_below(
    topology: Topology, vertices: list[Vertex], places: dict[str, Place], y: float, width: float
) -> None:
    """Stand each vertex under the middle of what it is wired to above."""
    above = list(places)
    for number, vertex in enumerate(vertices):
        xs = [
            places[name].x
            for name in _neighbours(topology, vertex.name, above)
            if places[name].y < ROW_GAP
        ]
        places[vertex.name] = Place(sum(xs) / len(xs) if xs else float(number), y, width)


def _put_nics(topology: Topology, nics: list[Vertex], places: dict[str, Place], y: float) -> None:
    """Stand NICs left and right below what they are plugged into, its own wire between them."""
    homes: dict[str, list[Vertex]] = {}
    for nic in nics:
        wired = _neighbours(topology, nic.name, list(places))
        for home in sorted(wired, key=lambda name: name.startswith("gpu"))[:1]:
            homes.setdefault(home, []).append(nic)
    crowded = len(homes) > len([name for name in places if name.startswith("gpu")]) // 2
    for home, guests in homes.items():
        beside = home.startswith(VertexKind.PCIE_SWITCH.value) and len(guests) == 1
        shift = (0.35 if crowded else 0.5) if beside else (len(guests) - 1) / 2
        width = 0.55 if beside and crowded else 0.66
        for number, nic in enumerate(guests):
            places[nic.name] = Place(places[home].x - shift + number, y, width)


def _clear_wires(places: dict[str, Place]) -> None:
    """Move sockets off the wires that NICs above them send down."""
    nics = [place for name, place in places.items() if name.startswith("nic")]
    xs = sorted(nic.x for nic in nics)
    gaps = [(a + b) / 2 for a, b in pairwise(xs)]
    for name, place in list(places.items()):
        below = name.startswith("cpu") and any(nic.y > place.y for nic in nics)
        reach = place.width / 2 + 0.05
        if below and gaps and any(abs(x - place.x) < reach for x in xs):
            free = min(gaps, key=lambda x: abs(x - place.x))
            places[name] = Place(free, place.y, place.width)
