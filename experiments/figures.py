"""What the scripts of all figures share: three options, one style, measured tables.

Pictures have the size they are printed in: a column of 85 mm or a page of 178 mm, with letters
of 7 points. Colours are those of Okabe and Ito, distinct with any colour vision; what was
measured is black, and markers and hatches say the same again for print without colour.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import yaml
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from perfmodel.base.writing import draft_of
from perfmodel.execution import Executor, open_executor
from perfmodel.reports.machine_picture import save_picture

EXPERIMENTS = Path(__file__).resolve().parent
MEASURED = EXPERIMENTS / "measured"
COLUMN, PAGE = 85 / 25.4, 178 / 25.4
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER, GREY, BLACK = COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999", "#000000",
)  # fmt: skip
MARKERS = "os^Dv<>*"
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
PARTS = {
    "lookup": ORANGE, "gemm": BLUE, "memory": SKY, "communication": PURPLE, "other": AMBER,
    "idle": "#E6E6E6",
}  # fmt: skip
"""What a stream does, as the paper divides it."""
_STYLE: dict[Any, Any] = {
    "font.size": 7, "axes.titlesize": 7, "axes.labelsize": 7, "legend.fontsize": 6,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.1,
    "lines.markersize": 3, "grid.linewidth": 0.4, "grid.alpha": 0.35, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "hatch.linewidth": 0.5, "axes.prop_cycle": cycler(color=COLOURS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line of a figure says."""

    folder: Path
    out: Path
    is_quick: bool
    ray_address: str | None

    def executor(self) -> AbstractContextManager[Executor]:
        """Where jobs are replayed: here, or on the Ray cluster that was named."""
        return open_executor("ray" if self.ray_address else "serial", address=self.ray_address)

    def scenario(self) -> Any:
        """The scenario of the script; in a quick run its keys under `quick` replace others."""
        document = yaml.safe_load((self.folder / "scenario.yaml").read_text(encoding="utf-8"))
        quick = document.pop("quick", {}) if isinstance(document, dict) else {}
        return document | quick if self.is_quick else document

    def save(self, figure: Figure, name: str) -> None:
        """The picture *name*, with a resolution for print."""
        save_picture(figure, self.out / name, dpi=200)

    def write_results(self, document: Any, name: str = "results.json") -> None:
        """What the picture shows, as numbers."""
        with draft_of(self.out / name) as draft:
            draft.write_text(json.dumps(rounded(document), indent=1) + "\n", encoding="utf-8")

    def write_text(self, lines: Iterable[str], name: str) -> None:
        """A table, or anything else that is read."""
        with draft_of(self.out / name) as draft:
            draft.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_wishes(script: str, question: str | None) -> Wishes:
    """What the command line of *script* says; results go to its folder or build/figures."""
    folder = Path(script).resolve().parent
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where pictures and numbers go")
    parser.add_argument("--quick", action="store_true", help="fewer points, for a first look")
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="replay on this Ray cluster; `local` starts one"
    )
    words = parser.parse_args()
    quick = EXPERIMENTS.parent / "build" / "figures" / folder.name
    out = words.out or (quick if words.quick else folder)
    out.mkdir(parents=True, exist_ok=True)
    return Wishes(folder, out, words.quick, words.ray_address)


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = COLUMN, height: float = 2.2, **options: Any
) -> tuple[Figure, Any]:
    """A picture of *width* and *height* inches and its axes, one or an array of them."""
    mpl.rcParams.update(_STYLE)
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def plot_bars(
    axes: Axes,
    labels: Sequence[str],
    series: dict[str, Sequence[float]],
    *,
    horizontal: bool = False,
    values: str | None = None,
) -> None:
    """Bars of *series* side by side, distinguished by colour and hatch; nan leaves one out."""
    places, width = np.arange(len(labels)), 0.8 / len(series)
    draw = axes.barh if horizontal else axes.bar
    for number, (name, heights) in enumerate(series.items()):
        colour = BLACK if name == "measured" else COLOURS[number % len(COLOURS)]
        at = places + width * (number - (len(series) - 1) / 2)
        bars = draw(at, heights, width * 0.92, color=colour, label=name, linewidth=0)
        for bar in bars:
            bar.set(hatch=HATCHES[number % len(HATCHES)], edgecolor="white")
        if values is not None:
            axes.bar_label(bars, fmt=values, fontsize=5.5, padding=1)
    (axes.set_yticks if horizontal else axes.set_xticks)(places, labels)
    axes.grid(visible=False, axis="y" if horizontal else "x")
    if horizontal:
        axes.invert_yaxis()


def plot_parts(axes: Axes, names: Sequence[str], parts: Sequence[dict[str, float]]) -> None:
    """One lying bar for each of *names*, divided into what a stream does."""
    left = np.zeros(len(names))
    for part, colour in PARTS.items():
        widths = np.array([one.get(part, 0.0) for one in parts])
        axes.barh(names, widths, left=left, color=colour, label=part, height=0.75)
        left += widths
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


def legend_above(axes: Axes, columns: int = 3) -> None:
    """The legend between title and picture, where it hides nothing."""
    axes.legend(ncols=columns, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.1)


def legend_below(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """The legend of *axes* for the whole picture, below it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=columns, loc="outside lower center")


def plain_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Ticks of a logarithmic axis at *values* and nowhere else, written as people do."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def plot_diagonal(axes: Axes, limits: tuple[float, float], *, band: float = 0.1) -> None:
    """The line of equal predicted and measured times on logarithmic axes, and *band* about it."""
    line = np.array(limits)
    axes.plot(line, line, color=GREY, linewidth=0.7)
    axes.fill_between(line, line * (1 - band), line * (1 + band), color=GREY, alpha=0.2, lw=0)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)


def read_measured(name: str) -> list[dict[str, str]]:
    """The rows of a table of `experiments/measured`."""
    path = MEASURED / name
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rounded(value: Any) -> Any:
    """Four digits are more than any of this is known to; equal runs then give equal files."""
    if isinstance(value, float | np.floating):
        return float(f"{float(value):.4g}")
    if isinstance(value, dict):
        return {str(key): rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value
