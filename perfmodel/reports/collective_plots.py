"""Pictures of collectives: time and bus bandwidth against size, measured points beside curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.units import NS_PER_US
from perfmodel.reports.pictures import as_written, build_figure, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BYTES_PER_GB = 1e9
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """A predicted curve over sizes, and what was measured of it.

    *bus_factor* turns size over time into bus bandwidth; *low_ns* and *high_ns* are the interval.
    """

    label: str
    sizes_bytes: Sequence[float]
    durations_ns: Sequence[float]
    bus_factor: float
    low_ns: Sequence[float] = ()
    high_ns: Sequence[float] = ()
    measured_bytes: Sequence[float] = ()
    measured_ns: Sequence[float] = ()
    switches: Sequence[tuple[float, str]] = field(default=())


def plot_sizes(curves: Sequence[SizeCurve], path: Path, *, title: str) -> None:
    """Draw *curves* twice: time against size, and bus bandwidth against size."""
    figure = build_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        _draw_time(left, curve, colour)
        _draw_bandwidth(right, curve, colour)
    left.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)")
    right.set(xscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
    left.legend(fontsize=8, loc="upper left")
    if any(curve.measured_bytes for curve in curves):
        title = f"{title}  (line: predicted, dots: measured)"
    figure.suptitle(as_written(title), fontsize=11)
    save_picture(figure, path, dpi=110)


def _draw_time(axes: Axes, curve: SizeCurve, colour: str) -> None:
    sizes = list(curve.sizes_bytes)
    axes.plot(
        sizes,
        [value / NS_PER_US for value in curve.durations_ns],
        color=colour,
        label=as_written(curve.label),
        linewidth=1.4,
    )
    if curve.low_ns:
        axes.fill_between(
            sizes,
            [value / NS_PER_US for value in curve.low_ns],
            [value / NS_PER_US for value in curve.high_ns],
            color=colour,
            alpha=0.12,
            linewidth=0,
        )
    axes.plot(
        list(curve.measured_bytes),
        [value / NS_PER_US for value in curve.measured_ns],
        "o",
        color=colour,
        markersize=3.2,
        alpha=0.7,
    )
    for size, word in curve.switches:
        axes.axvline(size, color=colour, linestyle=":", linewidth=0.8)
        axes.annotate(
            word,
            (size, 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize=6.5,
            color=colour,
            va="bottom",
            ha="right",
        )


def _draw_bandwidth(axes: Axes, curve: SizeCurve, colour: str) -> None:
    axes.plot(
        list(curve.sizes_bytes),
        _bandwidths(curve.sizes_bytes, curve.durations_ns, curve.bus_factor),
        color=colour,
        linewidth=1.4,
    )
    axes.plot(
        list(curve.measured_bytes),
        _bandwidths(curve.measured_bytes, curve.measured_ns, curve.bus_factor),
        "o",
        color=colour,
        markersize=3.2,
        alpha=0.7,
    )


def _bandwidths(
    sizes: Sequence[float], durations_ns: Sequence[float], bus_factor: float
) -> list[float]:
    return [
        bus_factor * size * 1e9 / duration / BYTES_PER_GB
        for size, duration in zip(sizes, durations_ns, strict=True)
    ]
