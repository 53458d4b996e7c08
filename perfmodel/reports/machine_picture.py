"""Pictures of machines: boxes and wires, the thicker the faster.

Rows from top to bottom: NVSwitch, GPUs, PCIe switches, CPU sockets, NICs, fabric. Of a rack only
the first trays are drawn, the others are equal. A wire is drawn once for both directions.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.base.units import format_bandwidth
from perfmodel.base.writing import check_writable, draft_of
from perfmodel.reports.machines import format_nic
from topologies import Cluster, FabricKind, Link, LinkKind, Topology, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = {
    VertexKind.NVSWITCH: ("NVSwitch", "#c9e6b2"),
    VertexKind.GPU: ("GPU", "#dff0d2"),
    VertexKind.PCIE_SWITCH: ("PCIe", "#e3e8f6"),
    VertexKind.CPU: ("CPU", "#fbe9cf"),
    VertexKind.NIC: ("NIC", "#f8dfe5"),
}
"""Kinds of boxes from top to bottom, with label and colour."""
WIRES = {
    LinkKind.NVLINK: ("#6fae2f", "NVLink"),
    LinkKind.NVLINK_C2C: ("#1f9a8a", "NVLink-C2C"),
    LinkKind.PCIE: ("#7d8fc9", "PCIe"),
    LinkKind.CPU: ("#dba24a", "between sockets"),
    LinkKind.NIC: ("#cf6d88", "network"),
}
"""Colour and name of each kind of link."""
TRAYS_SHOWN = 2
FORMATS = (".png", ".svg", ".pdf")
Place = tuple[float, float]
"""The middle of a box: column and row."""


def place_vertices(topology: Topology) -> dict[str, Place]:
    """The middle of the box of every vertex that is drawn, by its name; rows are spread evenly."""
    share = min(TRAYS_SHOWN / topology.trays, 1.0)
    rows = [
        of_kind if kind is VertexKind.NVSWITCH else of_kind[: round(len(of_kind) * share)]
        for kind in ROWS
        if (of_kind := topology.of_kind(kind))
    ]
    columns = max(map(len, rows))
    return {
        vertex.name: (columns * (number + 0.5) / len(row), -float(level))
        for level, row in enumerate(rows)
        for number, vertex in enumerate(row)
    }


def write_picture(topology: Topology, path: Path, cluster: Cluster | None = None) -> None:
    """Draw *topology* into *path*, a PNG or SVG file."""
    check_picture_path(path)
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    mpl.rcParams["svg.hashsalt"] = "perfmodel"
    places = place_vertices(topology)
    columns = max(x for x, _ in places.values()) + 0.5
    low = min(y for _, y in places.values()) - (1.0 if topology.fabric else 0.0)
    figure = build_figure(max(7.0, 1.05 * columns), 1.25 * (1 - low) + 1.6)
    axes = figure.add_subplot()
    axes.set(xlim=(-0.2, columns + 0.2), ylim=(low - 0.5, 0.6))
    axes.axis("off")
    for link in drawn_links(topology, places):
        _draw_wire(axes, link, places)
    for kind, (label, colour) in ROWS.items():
        for vertex in topology.of_kind(kind):
            if vertex.name in places:
                text = f"{label} {vertex.name.partition(':')[2]}"
                if kind is VertexKind.NVSWITCH:
                    text = f"NVSwitch, {vertex.chips} chips{', they reduce' * vertex.reduces}"
                _draw_box(axes, places[vertex.name], text, colour)
    if (fabric := topology.fabric) is not None:
        is_rail = fabric.kind is FabricKind.RAIL_OPTIMISED
        wiring = "one leaf per rail" if is_rail else "all NICs on one leaf"
        spine = f"{fabric.hosts_per_leaf} hosts per leaf, spine {fabric.oversubscription:g} to 1"
        _draw_box(axes, (columns / 2, low), f"fabric: {wiring}, {spine}", "#f3e6ea")
        width = line_width(fabric.nic_bandwidth_bytes_per_s)
        for name, (x, y) in places.items():
            if name.startswith(VertexKind.NIC.value):
                ends = ((x, columns / 2 + 0.3 * (x - columns / 2)), (y, low))
                axes.plot(*ends, color=WIRES[LinkKind.NIC][0], lw=width, zorder=1)
    hosts = "" if cluster is None or cluster.host_count == 1 else f", {cluster.host_count} hosts"
    hidden = max(topology.trays - TRAYS_SHOWN, 0)
    more = f" ({hidden} more trays like these are not drawn)" if hidden else ""
    title = f"{topology.name}{hosts}\n{topology.description}{more}"
    axes.set_title(as_written(title), fontsize=9, loc="left")
    handles = [
        Line2D([], [], color=colour, lw=width, label=words)
        for words, (colour, width) in build_legend(topology, places).items()
    ]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=2, frameon=False,
            title="bandwidth each way",
        )  # fmt: skip
    save_picture(figure, path, dpi=160)


def _draw_wire(axes: Axes, link: Link, places: dict[str, Place]) -> None:
    """A straight wire between rows, a bow within one."""
    from matplotlib.patches import FancyArrowPatch

    start, end = sorted((places[link.source], places[link.target]))
    bow = 0.35 if start[1] == end[1] else 0.0
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-",
            connectionstyle=f"arc3,rad={-bow}",
            zorder=1,
            color=WIRES[link.kind][0],
            lw=line_width(link.bandwidth_bytes_per_s),
        )
    )


def _draw_box(axes: Axes, place: Place, text: str, colour: str) -> None:
    style = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "#66727d"}
    axes.text(
        *place, as_written(text), ha="center", va="center", fontsize=8, bbox=style, zorder=3
    )  # fmt: skip


def drawn_links(topology: Topology, places: dict[str, Place]) -> list[Link]:
    """One link of each two-way pair, with both ends in the picture."""
    pairs: dict[frozenset[str], Link] = {}
    for link in topology.links:
        ends = frozenset((link.source, link.target))
        if ends <= places.keys():
            pairs.setdefault(ends, link)
    return list(pairs.values())


def line_width(bandwidth_bytes_per_s: float) -> float:
    """The width of a wire in the picture, in points."""
    return 1.0 + 0.62 * max(0.0, math.log2(bandwidth_bytes_per_s / 12e9))


def build_legend(topology: Topology, places: dict[str, Place]) -> dict[str, tuple[str, float]]:
    """Colour and width of each sort of wire in the picture, by the words for it."""
    legend = {}
    for link in drawn_links(topology, places):
        (colour, name), total = WIRES[link.kind], format_bandwidth(link.bandwidth_bytes_per_s)
        one = format_bandwidth(link.bandwidth_bytes_per_s / link.lanes)
        rate = total if link.lanes == 1 else f"{link.lanes} x {one} = {total}"
        legend[f"{name}  {rate}"] = (colour, line_width(link.bandwidth_bytes_per_s))
    if (fabric := topology.fabric) is not None:
        width = line_width(fabric.nic_bandwidth_bytes_per_s)
        legend[f"NIC  {format_nic(fabric)}"] = (WIRES[LinkKind.NIC][0], width)
    return legend


def build_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches, drawn without a window."""
    # Without a home that it may write, it warns of its cache in a temporary folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check_picture_path(path: Path) -> None:
    """Raise unless *path* can become a picture."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"picture {path}: must end in {', '.join(FORMATS)}, got {path.suffix or 'nothing'!r}."
        )
    check_writable("picture", path)


def as_written(words: str) -> str:
    """*words* of a person for a picture, where two dollar signs would make mathematics."""
    return words.replace("$", r"\$")


def save_picture(figure: Figure, path: Path, **options: Any) -> None:
    """Save *figure* to *path*; its ending decides the format, equal pictures have equal bytes."""
    check_picture_path(path)
    stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    with draft_of(path) as draft:
        figure.savefig(draft, format=path.suffix[1:].lower(), metadata=stamp, **options)
