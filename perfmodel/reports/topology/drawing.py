"""Topologies as pictures: boxes and wires, the thicker the faster.

matplotlib is imported when a picture is asked for, and without a window.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.reports.pictures import as_written, check_picture_path, save_picture
from perfmodel.reports.topology.positions import (
    ROW_GAP,
    WIRE_COLOURS,
    Place,
    Plan,
    build_legend,
    build_plan,
    drawn_links,
    line_width,
)
from topologies import Cluster, Fabric, FabricKind, LinkKind, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22303c"
QUIET = "#66727d"
PAPER = "#ffffff"
BOX_HEIGHT = 0.52
BOX_COLOURS = {
    "gpu": ("#dff0d2", "#5a8f29"),
    "nvswitch": ("#c9e6b2", "#4a7c1f"),
    "pcie_switch": ("#e3e8f6", "#5369ad"),
    "cpu": ("#fbe9cf", "#b87a1f"),
    "nic": ("#f8dfe5", "#b04a66"),
    "fabric": ("#f3e6ea", "#b04a66"),
}
LABELS = {"nvswitch": "NVSwitch", "pcie_switch": "PCIe", "cpu": "CPU", "nic": "NIC", "gpu": "GPU"}


def write_picture(topology: Topology, path: Path, cluster: Cluster | None = None) -> None:
    """Draw *topology* into *path*, a PNG or SVG file."""
    check_picture_path(path)
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "perfmodel"
    from matplotlib import pyplot

    plan = build_plan(topology)
    left, right = -0.9, plan.columns - 0.1
    low = plan.bottom - (ROW_GAP if topology.fabric else 0.0) - 0.35
    arcs = _arc_height(topology, plan)
    high = max(arcs, max(place.y for place in plan.places.values()) + 0.45)
    width = max(7.0, 1.05 * (right - left))
    scale = width / (right - left)
    legend_inches = 0.3 * len(build_legend(topology, plan)) / 2 + 0.45
    height = (high - low) * min(scale, 1.05) * 0.82 + legend_inches + 0.75
    figure = pyplot.figure(figsize=(width, height), facecolor=PAPER)
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
    pyplot.close(figure)


def _paint_wires(axes: Axes, topology: Topology, plan: Plan) -> None:
    for link in drawn_links(topology, plan):
        a, b = plan.places[link.source], plan.places[link.target]
        style: dict[str, Any] = {
            "color": WIRE_COLOURS[link.kind],
            "lw": line_width(link.bandwidth_bytes_per_s),
            "zorder": 1,
            "solid_capstyle": "round",
        }
        if a.y == b.y and link.kind is LinkKind.NVLINK:
            _paint_arc(axes, a, b, style, lift=_lift(a, b))
        elif a.y == b.y and _stands_between(plan, a, b):
            _paint_arc(axes, a, b, style, lift=-0.25 - 0.12 * abs(a.x - b.x))
        elif a.y == b.y:
            axes.plot((a.x, b.x), (a.y, b.y), **style)
        elif (straight := _shared_x(a, b)) is not None:
            axes.plot((straight, straight), (a.y, b.y), **style)
        else:
            fans_out = "nic:" in link.source + link.target
            upper, lower = sorted((a, b), key=lambda place: -place.y)
            _paint_elbow(axes, upper, lower, style, fans_out=fans_out)


def _shared_x(a: Place, b: Place) -> float | None:
    """The middle of the narrow box where it stands straight under or over a wide one."""
    narrow, wide = sorted((a, b), key=lambda place: place.width)
    is_under = wide.width > 1 and abs(narrow.x - wide.x) < wide.width / 2
    return narrow.x if is_under else None


def _stands_between(plan: Plan, a: Place, b: Place) -> bool:
    low, high = sorted((a.x, b.x))
    return any(place.y == a.y and low < place.x < high for place in plan.places.values())


def _paint_elbow(
    axes: Axes, upper: Place, lower: Place, style: dict[str, Any], *, fans_out: bool
) -> None:
    """Down, across, down, each wire on its own way out of the upper box or into the lower.

    Far wires turn below near ones, so that wires that meet at one box do not cross.
    """
    away = lower.x - upper.x
    start = upper.x + (_spread(away) if fans_out else 0.0)
    end = lower.x - (0.0 if fans_out else _spread(away))
    turn = lower.y + BOX_HEIGHT / 2 + 0.2 + 0.25 / (1 + abs(away))
    ys = (upper.y, turn, turn, lower.y)
    axes.plot((start, start, end, end), ys, solid_joinstyle="round", **style)


def _spread(away: float) -> float:
    """How far from the middle of a box a wire to or from a neighbour *away* is fixed."""
    return 0.3 * away / (0.4 + abs(away))


def _paint_arc(axes: Axes, a: Place, b: Place, style: dict[str, Any], *, lift: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    rim = math.copysign(BOX_HEIGHT / 2, lift)
    start, end = a.y + rim, b.y + rim
    shift = 0.12 if b.x > a.x else -0.12
    points = [
        (a.x + shift, start),
        (a.x + shift, start + lift),
        (b.x - shift, end + lift),
        (b.x - shift, end),
    ]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    axes.add_patch(
        PathPatch(curve, fill=False, edgecolor=style["color"], lw=style["lw"], zorder=1, alpha=0.9)
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
    chips = {vertex.name: vertex for vertex in topology.vertices}
    for name, place in plan.places.items():
        kind, _, index = name.partition(":")
        vertex = chips[name]
        text = f"{LABELS[kind]} {index}"
        if kind == "nvswitch":
            reduces = ", they reduce (NVLS)" if vertex.reduces else ""
            text = f"NVSwitch, {vertex.chips} chips{reduces}"
        _paint_box(axes, place, kind, text)


def _paint_box(axes: Axes, place: Place, kind: str, text: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    face, edge = BOX_COLOURS[kind]
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
    axes.text(
        place.x,
        place.y - 0.01,
        as_written(text),
        ha="center",
        va="center",
        fontsize=9,
        color=INK,
        zorder=4,
    )


def _paint_fabric(axes: Axes, fabric: Fabric, plan: Plan) -> None:
    place = Place((plan.columns - 1) / 2, plan.bottom - ROW_GAP * 0.95, plan.columns - 0.2)
    width = line_width(fabric.nic_bandwidth_bytes_per_s)
    for name, nic in plan.places.items():
        if name.startswith("nic"):
            axes.plot(
                (nic.x, nic.x),
                (nic.y, place.y),
                color=WIRE_COLOURS[LinkKind.NIC],
                lw=width,
                zorder=1,
            )
    wiring = (
        "one leaf a rail" if fabric.kind is FabricKind.RAIL_OPTIMISED else "all NICs on one leaf"
    )
    spine = f"spine {fabric.oversubscription:g} to 1"
    text = f"fabric: {wiring}, {fabric.hosts_per_leaf} hosts a leaf, {spine}"
    _paint_box(axes, place, "fabric", text)


def _paint_words(figure: Any, topology: Topology, plan: Plan, cluster: Cluster | None) -> None:
    from matplotlib.lines import Line2D

    height = figure.get_size_inches()[1]
    title = topology.name
    if cluster is not None and cluster.host_count > 1:
        title += f", {cluster.host_count} hosts, {cluster.rank_count} GPUs"
    title = as_written(title)
    figure.text(0.03, 1 - 0.16 / height, title, fontsize=15, weight="bold", color=INK, va="top")
    words = as_written(topology.description)
    if plan.hidden_trays:
        words += f" ({plan.hidden_trays} trays alike are not drawn)"
    figure.text(0.03, 1 - 0.47 / height, words, fontsize=9.5, color=QUIET, va="top")
    handles = [
        Line2D([], [], color=entry.colour, lw=entry.width, label=entry.words)
        for entry in build_legend(topology, plan)
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
