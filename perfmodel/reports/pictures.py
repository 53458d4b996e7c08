"""Pictures of answers: drawn without a window, saved whole or not at all."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_US
from perfmodel.base.writing import check_writable, draft_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from collectives.collective import CollectiveCost
    from collectives.movement import FloatArray
    from embeddings.index_data import DataStatistics
    from perfmodel.reports.op_prices import SizeSweep

FORMATS = (".png", ".svg", ".pdf")
HEAVY = 20
"""Pooling factor from which a table counts as heavy, as in the paper."""


def build_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches, drawn without a window."""
    # Without a home that it may write, it warns of its cache in a temporary folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_stacks(
    axes: Axes,
    names: Sequence[str],
    stacks: Mapping[str, tuple[str | None, Sequence[float]]],
    *,
    label: str,
    ends: Sequence[tuple[float, float]] = (),
) -> None:
    """A bar per name, made of *stacks* (colour and widths by word); *ends* are intervals."""
    places, done = list(range(len(names))), np.zeros(len(names))
    for words, (colour, widths) in stacks.items():
        if any(widths):
            axes.barh(places, widths, left=done, color=colour, label=words)
        done = done + np.array(widths)
    if ends:
        low, high = np.array(ends).T
        spread = [np.maximum(done - low, 0), np.maximum(high - done, 0)]
        axes.errorbar(done, places, xerr=spread, fmt="none", ecolor="#333", capsize=3)
    axes.set_yticks(places, [as_written(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if len(stacks) > 1:
        axes.legend(fontsize=7)


def draw_times(times_ms: Sequence[tuple[str, float]]) -> Figure:
    """A bar per name: milliseconds of an iteration."""
    figure = build_figure(8, 1.4 + 0.4 * len(times_ms))
    stack = {"": ("#3b74c4", [time_ms for _, time_ms in times_ms])}
    names = [name for name, _ in times_ms]
    draw_stacks(figure.subplots(), names, stack, label="iteration ms")
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


def draw_sizes(
    sweep: SizeSweep, sizes: FloatArray, costs: Sequence[CollectiveCost], path: Path
) -> None:
    """Time and bus bandwidth over *sizes*: lines are predicted *costs*, dots are measured."""
    from collectives.collective import bus_bandwidth
    from perfmodel.costs.estimates import interval_of

    ranks = len(sweep.group.ranks)
    figure = build_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    times_us = np.array([cost.duration_ns for cost in costs]) / NS_PER_US
    ends = [interval_of(cost.duration_ns, cost.relative_sigma) for cost in costs]
    low_us, high_us = np.array(ends).T / NS_PER_US
    left.plot(sizes, times_us, label=f"{sweep.kind.value}, {ranks} ranks", linewidth=1.4)
    left.fill_between(sizes, low_us, high_us, alpha=0.12, linewidth=0)
    right.plot(sizes, [cost.bus_bandwidth_bytes_per_s / 1e9 for cost in costs], linewidth=1.4)
    dots = {"color": "C0", "marker": "o", "markersize": 3.2, "alpha": 0.7, "linestyle": "none"}
    points = np.array([(one.size_bytes, one.duration_ns) for one in sweep.measured]).reshape(-1, 2)
    left.plot(points[:, 0], points[:, 1] / NS_PER_US, **dots)
    rates = [
        bus_bandwidth(sweep.kind, size_bytes=size, rank_count=ranks, duration_ns=duration) / 1e9
        for size, duration in points
    ]
    right.plot(points[:, 0], rates, **dots)
    for size, before, after in zip(sizes[1:], costs, costs[1:], strict=False):
        if before.algorithm_word != after.algorithm_word:
            left.axvline(size, color="C0", linestyle=":", linewidth=0.8)
            place = {"xycoords": ("data", "axes fraction"), "va": "bottom", "ha": "right"}
            left.annotate(
                after.algorithm_word, (size, 0.02), rotation=90, fontsize=6.5, color="C0", **place
            )
    left.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)")
    right.set(xscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
    left.legend(fontsize=8, loc="upper left")
    key = "  (line: predicted, dots: measured)" if sweep.measured else ""
    figure.suptitle(as_written(f"{sweep.group.cluster.topology.name}{key}"), fontsize=11)
    save_picture(figure, path, dpi=110)


def draw_statistics(found: DataStatistics) -> bytes:
    """Cumulative shares by reuse, and a histogram of pooling factors, as PNG."""
    from embeddings.index_data import BIN_COUNT

    figure = build_figure(11, 4)
    left, right = figure.subplots(1, 2)
    edges = 2.0 ** np.arange(BIN_COUNT)
    for label, shares, style in (
        ("whole set", found.set_reuse, "-"),
        (f"batches of {found.batch_size}", found.batch_reuse, "--"),
    ):
        left.plot(edges, np.cumsum(shares.of_rows), f"C0{style}", label=f"rows, {label}")
        left.plot(edges, np.cumsum(shares.of_lookups), f"C1{style}", label=f"lookups, {label}")
    left.set_xscale("log", base=2)
    left.set(xlabel="reuse of a row, up to", ylabel="cumulative share", ylim=(0, 1.02))
    left.legend(fontsize=8)
    pooling = np.array([table.pooling_mean for table in found.tables])
    top = max(float(pooling.max()), 1.0)
    right.hist(np.maximum(pooling, 0.1), bins=np.geomspace(0.1, 2 * top, 30), color="#7aa6c2")
    right.set(xscale="log", xlabel="mean pooling factor", ylabel="tables")
    right.axvline(HEAVY, color="#b33", linestyle=":")
    right.annotate(" heavy", (HEAVY, 0.95), xycoords=("data", "axes fraction"), color="#b33")
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110, metadata={"Software": ""})
    return target.getvalue()
