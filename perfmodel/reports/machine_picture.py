"""Pictures of machines: boxes and wires, the thicker the faster.

Rows from top to bottom: NVSwitch, GPUs, PCIe switches, CPU sockets and NICs, fabric. Of a rack
only the first trays are drawn, the others are equal. A wire is drawn once for both directions.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import format_bandwidth
from perfmodel.reports.machines import format_nic
from perfmodel.reports.pictures import as_written, build_figure, check_picture_path, save_picture
from topologies import Cluster, Fabric, FabricKind, Link, LinkKind, Topology, Vertex, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22303c"
QUIET = "#66727d"
PAPER = "#ffffff"
BOX_HEIGHT = 0.52
BOXES = {
    "gpu": ("GPU", "#dff0d2", "#5a8f29"),
    "nvswitch": ("NVSwitch", "#c9e6b2", "#4a7c1f"),
    "pcie_switch": ("PCIe", "#e3e8f6", "#5369ad"),
    "cpu": ("CPU", "#fbe9cf", "#b87a1f"),
    "nic": ("NIC", "#f8dfe5", "#b04a66"),
    "fabric": ("fabric", "#f3e6ea", "#b04a66"),
}
"""Label, colour and colour of the edge of each kind of box."""
WIRES = {
    LinkKind.NVLINK: ("#6fae2f", "NVLink"),
    LinkKind.NVLINK_C2C: ("#1f9a8a", "NVLink-C2C"),
    LinkKind.PCIE: ("#7d8fc9", "PCIe"),
    LinkKind.CPU: ("#dba24a", "between sockets"),
    LinkKind.NIC: ("#cf6d88", "network"),
}
"""Colour and name of each kind of link."""
FAULTY = "#c62f2f"
"""Colour of what is broken: wires that are gone are dashed."""
TRAYS_SHOWN = 2
PARTLY_SHOWN = (VertexKind.GPU, VertexKind.PCIE_SWITCH, VertexKind.CPU, VertexKind.NIC)
"""What trays hold."""
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
    hidden = max(topology.trays - TRAYS_SHOWN, 0)
    share = TRAYS_SHOWN / topology.trays if hidden else 1.0
    gpus, switches, cpus, nics = (
        of_kind[: round(len(of_kind) * share)] for of_kind in map(topology.of_kind, PARTLY_SHOWN)
    )
    places = {gpu.name: Place(float(column), 0.0, 0.8) for column, gpu in enumerate(gpus)}
    columns = len(gpus)
    middle = (columns - 1) / 2
    nvswitches = topology.of_kind(VertexKind.NVSWITCH)
    for number, vertex in enumerate(nvswitches):
        part = columns / len(nvswitches)
        x = middle - columns / 2 + part * (number + 0.5)
        places[vertex.name] = Place(x, ROW_GAP * 1.05, part - 0.2)
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


def _neighbours(topology: Topology, name: str, places: Container[str]) -> list[str]:
    return [link.target for link in topology.links if link.source == name and link.target in places]


def _put_below(
    topology: Topology,
    vertices: Sequence[Vertex],
    places: dict[str, Place],
    y: float,
    width: float,
) -> None:
    """Put each vertex under the middle of what it is wired to above."""
    above = set(places)
    for number, vertex in enumerate(vertices):
        xs = [
            places[name].x
            for name in _neighbours(topology, vertex.name, above)
            if places[name].y < ROW_GAP
        ]
        places[vertex.name] = Place(sum(xs) / len(xs) if xs else float(number), y, width)


def _put_nics(
    topology: Topology, nics: Sequence[Vertex], places: dict[str, Place], y: float
) -> None:
    """Put NICs left and right below what they are plugged into, its own wire between them."""
    homes: dict[str, list[Vertex]] = {}
    for nic in nics:
        wired = _neighbours(topology, nic.name, places)
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


def write_picture(topology: Topology, path: Path, cluster: Cluster | None = None) -> None:
    """Draw *topology* into *path*, a PNG or SVG file."""
    check_picture_path(path)
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "perfmodel"
    plan = build_plan(topology)
    left, right = -0.9, plan.columns - 0.1
    low = plan.bottom - (ROW_GAP if topology.fabric else 0.0) - 0.35
    arcs = _arc_height(topology, plan)
    high = max(arcs, max(place.y for place in plan.places.values()) + 0.45)
    width = max(7.0, 1.05 * (right - left))
    scale = width / (right - left)
    legend_inches = 0.3 * len(build_legend(topology, plan)) / 2 + 0.45
    height = (high - low) * min(scale, 1.05) * 0.82 + legend_inches + 0.75
    figure = build_figure(width, height)
    figure.set_layout_engine("none")
    bottom, top = legend_inches / height, 1 - 0.72 / height
    axes = figure.add_axes((0.02, bottom, 0.96, top - bottom))
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.axis("off")
    _paint_wires(axes, topology, plan)
    _paint_boxes(axes, topology, plan)
    if topology.fabric is not None:
        _paint_fabric(axes, topology.fabric, plan)
    _paint_words(figure, topology, plan, cluster)
    save_picture(figure, path, dpi=160, facecolor=PAPER)


def _paint_wires(axes: Axes, topology: Topology, plan: Plan) -> None:
    left = {(one.name, one.kind): one.bandwidth_bytes_per_s for one in topology.faulty.links}
    for link in drawn_links(topology, plan):
        a, b = plan.places[link.source], plan.places[link.target]
        rate = left.get((link.name, link.kind), 0.0)
        style: dict[str, Any] = {
            "color": WIRES[link.kind][0],
            "lw": line_width(link.bandwidth_bytes_per_s),
            "zorder": 1,
            "solid_capstyle": "round",
        }
        if rate < link.bandwidth_bytes_per_s:
            width = line_width(rate) if rate else 1.2
            style |= {"color": FAULTY, "lw": width, "ls": "-" if rate else (0, (3, 3))}
        west, east = sorted((a.x, b.x))
        narrow, wide = sorted((a, b), key=lambda place: place.width)
        if a.y == b.y and link.kind is LinkKind.NVLINK:
            _paint_arc(axes, a, b, style, lift=_lift(a, b))
        elif a.y == b.y and any(
            place.y == a.y and west < place.x < east for place in plan.places.values()
        ):
            _paint_arc(axes, a, b, style, lift=-0.25 - 0.12 * (east - west))
        elif a.y == b.y:
            axes.plot((a.x, b.x), (a.y, b.y), **style)
        elif wide.width > 1 and abs(narrow.x - wide.x) < wide.width / 2:
            axes.plot((narrow.x, narrow.x), (a.y, b.y), **style)
        else:
            fans_out = "nic:" in link.source + link.target
            upper, lower = sorted((a, b), key=lambda place: -place.y)
            _paint_elbow(axes, upper, lower, style, fans_out=fans_out)


def _paint_elbow(
    axes: Axes, upper: Place, lower: Place, style: dict[str, Any], *, fans_out: bool
) -> None:
    """Down, across, down, each wire on its own way out of the upper box or into the lower.

    Far wires turn below near ones, so that wires that meet at one box do not cross.
    """
    away = lower.x - upper.x
    # How far from the middle of its box the wire is fixed.
    spread = 0.3 * away / (0.4 + abs(away))
    start, end = (upper.x + spread, lower.x) if fans_out else (upper.x, lower.x - spread)
    turn = lower.y + BOX_HEIGHT / 2 + 0.2 + 0.25 / (1 + abs(away))
    ys = (upper.y, turn, turn, lower.y)
    axes.plot((start, start, end, end), ys, solid_joinstyle="round", **style)


def _paint_arc(axes: Axes, a: Place, b: Place, style: dict[str, Any], *, lift: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    rim = a.y + math.copysign(BOX_HEIGHT / 2, lift)
    shift = 0.12 if b.x > a.x else -0.12
    start, end = a.x + shift, b.x - shift
    points = [(start, rim), (start, rim + lift), (end, rim + lift), (end, rim)]
    curve = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3])
    axes.add_patch(
        PathPatch(
            curve,
            fill=False,
            edgecolor=style["color"],
            lw=style["lw"],
            ls=style.get("ls", "-"),
            zorder=1,
            alpha=0.9,
        )
    )


def _lift(a: Place, b: Place) -> float:
    return 0.3 + 0.5 * abs(a.x - b.x)


def _arc_height(topology: Topology, plan: Plan) -> float:
    lifts = [
        _lift(plan.places[link.source], plan.places[link.target])
        for link in drawn_links(topology, plan)
        if link.kind is LinkKind.NVLINK and plan.places[link.source].y == plan.places[link.target].y
    ]
    return BOX_HEIGHT / 2 + 0.75 * max(lifts, default=0.0) + 0.15


def _paint_boxes(axes: Axes, topology: Topology, plan: Plan) -> None:
    vertices = {vertex.name: vertex for vertex in topology.vertices}
    for name, place in plan.places.items():
        kind, _, index = name.partition(":")
        text, edge = f"{BOXES[kind][0]} {index}", BOXES[kind][2]
        if kind == "gpu" and (speeds := topology.faulty.gpu_speeds) and speeds[int(index)] < 1:
            text, edge = f"{text}, {speeds[int(index)]:g}x", FAULTY
        if kind == "nvswitch":
            reduces = ", they reduce (NVLS)" if vertices[name].reduces else ""
            text = f"NVSwitch, {vertices[name].chips} chips{reduces}"
        _paint_box(axes, place, BOXES[kind][1], edge, text)


def _paint_box(axes: Axes, place: Place, face: str, edge: str, text: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (place.x - place.width / 2 + 0.06, place.y - BOX_HEIGHT / 2 + 0.06)
    axes.add_patch(
        FancyBboxPatch(
            corner,
            place.width - 0.12,
            BOX_HEIGHT - 0.12,
            boxstyle="round,pad=0.06,rounding_size=0.09",
            facecolor=face,
            edgecolor=edge,
            lw=1.1,
            zorder=3,
        )
    )
    middle = (place.x, place.y - 0.01)
    axes.text(*middle, as_written(text), ha="center", va="center", fontsize=9, color=INK, zorder=4)


def _paint_fabric(axes: Axes, fabric: Fabric, plan: Plan) -> None:
    place = Place((plan.columns - 1) / 2, plan.bottom - ROW_GAP * 0.95, plan.columns - 0.2)
    width = line_width(fabric.nic_bandwidth_bytes_per_s)
    for name, nic in plan.places.items():
        if name.startswith("nic"):
            colour, _ = WIRES[LinkKind.NIC]
            axes.plot((nic.x, nic.x), (nic.y, place.y), color=colour, lw=width, zorder=1)
    is_rail = fabric.kind is FabricKind.RAIL_OPTIMISED
    wiring = "one leaf per rail" if is_rail else "all NICs on one leaf"
    leaf = f"{fabric.hosts_per_leaf} hosts per leaf"
    text = f"fabric: {wiring}, {leaf}, spine {fabric.oversubscription:g} to 1"
    _paint_box(axes, place, *BOXES["fabric"][1:], text)


def _paint_words(figure: Any, topology: Topology, plan: Plan, cluster: Cluster | None) -> None:
    from matplotlib.lines import Line2D

    height = figure.get_size_inches()[1]
    title = topology.name
    if cluster is not None and cluster.host_count > 1:
        title += f", {cluster.host_count} hosts, {cluster.rank_count} GPUs"
    style = {"fontsize": 15, "weight": "bold", "color": INK, "va": "top"}
    figure.text(0.03, 1 - 0.16 / height, as_written(title), **style)
    words = as_written(topology.description)
    if topology.faults:
        said = "; ".join(f"{fault.where} {fault.change.value}" for fault in topology.faults)
        words = as_written(f"The first host with faults, in red: {said}")
    if plan.hidden_trays:
        words += f" ({plan.hidden_trays} more trays like these are not drawn)"
    figure.text(0.03, 1 - 0.47 / height, words, fontsize=9.5, color=QUIET, va="top")
    handles = [
        Line2D([], [], color=colour, lw=width, label=words)
        for words, (colour, width) in build_legend(topology, plan).items()
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=2,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        title="bandwidth each way",
        title_fontproperties={"size": 9},
        handlelength=2.6,
        columnspacing=3.0,
    )


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


def build_legend(topology: Topology, plan: Plan) -> dict[str, tuple[str, float]]:
    """Colour and width of each sort of wire in the picture, by the words for it."""
    legend = {}
    for link in drawn_links(topology, plan):
        (colour, name), total = WIRES[link.kind], format_bandwidth(link.bandwidth_bytes_per_s)
        one = format_bandwidth(link.bandwidth_bytes_per_s / link.lanes)
        rate = total if link.lanes == 1 else f"{link.lanes} x {one} = {total}"
        legend[f"{name}  {rate}"] = (colour, line_width(link.bandwidth_bytes_per_s))
    if (fabric := topology.fabric) is not None:
        width = line_width(fabric.nic_bandwidth_bytes_per_s)
        legend[f"NIC  {format_nic(fabric)}"] = (WIRES[LinkKind.NIC][0], width)
    return legend
