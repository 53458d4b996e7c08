"""Errors of the shipped kernel models over the measured tables, against the paper's.

python experiments/kernel_errors/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import (
    BLUE,
    GREY,
    HATCHES,
    MEASURED,
    ORANGE,
    PAGE,
    Wishes,
    new_figure,
    read_measured,
    read_wishes,
)
from perfmodel.api import validate
from perfmodel.extensions.measurements.kernel_tables import load_table
from perfmodel.extensions.measurements.validation.scoreboard import Scoreboard


def main() -> None:
    """Score every table, then draw the plane of products and the bars of all tables."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    boards = {
        name: validate(kind, [MEASURED / "kernels" / f"{name}.csv.gz"])
        for kind, names in scenario["tables"].items()
        for name in names
    }
    draw_plane(wishes, scenario["plane"], boards)
    scores = {name: asdict(board.overall) for name, board in boards.items() if board.overall}
    draw_bars(wishes, scores, scenario["paper"])
    lookups = read_measured("paper/multi_gpu_results_secondary_source.csv")
    wishes.write_results(
        {
            "tables": {
                name: {"overall": scores[name], "not_answered": len(board.unsupported)}
                for name, board in boards.items()
            },
            "reported_by_the_paper": {
                f"{row['what']}, {row['scope']}": row["value"]
                for row in lookups
                if row["what"].startswith("kernel")
            },
        }
    )


def draw_plane(wishes: Wishes, names: list[str], boards: dict[str, Scoreboard]) -> None:
    """Errors over arithmetic and its intensity, one panel a GPU."""
    figure, axes = new_figure(1, len(names), width=PAGE, height=1.9, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        error = {str(one.row): abs(one.error_pct) for one in boards[name].deviations}
        kernels = [
            kernel
            for kernel in load_table("gemm", Path(MEASURED / "kernels" / f"{name}.csv.gz")).kernels
            if str(kernel.row) in error
        ]
        shape = np.array([(one.op.m, one.op.n, one.op.k) for one in kernels], dtype=float)
        m, n, k = shape.T
        work = 2 * m * n * k
        intensity = work / (2 * (m * n + n * k + m * k))
        image = axis.hexbin(
            work, intensity, C=[error[str(one.row)] for one in kernels], xscale="log",
            yscale="log", gridsize=18, reduce_C_function=np.mean, vmin=0, vmax=15, cmap="cividis",
            linewidths=0,
        )  # fmt: skip
        axis.set(title=name.removeprefix("gemm_"), xlabel="operations")
    axes[0].set_ylabel("operations per byte")
    figure.colorbar(image, ax=axes, label="mean error (%)", extend="max")
    wishes.save(figure, "gemm_plane.png")


def draw_bars(wishes: Wishes, scores: dict[str, Any], paper: dict[str, float]) -> None:
    """Geometric means as the paper has them, the mean as a mark."""
    names = [*paper, *scores]
    values = [*paper.values(), *(score["geomean_pct"] for score in scores.values())]
    figure, axes = new_figure(height=0.13 * len(names) + 0.5)
    bars = axes.barh(names, values, color=[GREY] * len(paper) + [BLUE] * len(scores), height=0.75)
    for bar in bars[: len(paper)]:
        bar.set(hatch=HATCHES[1], edgecolor="white")
    means = [score["mape_pct"] for score in scores.values()]
    ends = [*paper.values(), *map(max, values[len(paper) :], means)]
    for place, (value, end) in enumerate(zip(values, ends, strict=True)):
        axes.text(end + 0.25, place, f"{value:.1f}", fontsize=5.5, va="center")
    axes.plot(means, list(scores), "|", color=ORANGE, ms=6, mew=1.2, label="mean")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=5.5)
    axes.set_xlabel("geometric mean of errors (%)")
    axes.legend(loc="lower right")
    axes.grid(visible=False, axis="y")
    wishes.save(figure, "kernel_table.png")


if __name__ == "__main__":
    main()
