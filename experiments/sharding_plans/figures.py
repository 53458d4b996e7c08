"""Pictures of the sharding experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw_all(results: list[dict[str, Any]], folder: Path) -> None:
    """Times by sharder and task, and what choosing costs."""
    _draw_times(results, folder / "times_by_sharder.png")
    _draw_regret(results, folder / "regret.png")


def _new(columns: int, width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _draw_times(results: list[dict[str, Any]], path: Path) -> None:
    platforms = sorted({row["platform"] for row in results})
    figure, axes = _new(len(platforms), 13, 4.5)
    for axis, platform in zip(axes, platforms, strict=True):
        rows = [row for row in results if row["platform"] == platform and row["heavy"]]
        for name in rows[0]["named_ms"]:
            axis.plot([row["named_ms"][name] for row in rows], "o", label=name, alpha=0.7)
        axis.plot([row["searched_ms"] for row in rows], "k*", markersize=11, label="searched")
        axis.set_title(f"{platform}, heavy tasks (model against model)")
        axis.set_xlabel("task")
        axis.set_ylabel("predicted iteration ms")
        axis.set_xticks(range(len(rows)))
    axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=110, metadata={"Software": ""})


def _draw_regret(results: list[dict[str, Any]], path: Path) -> None:
    figure, (left, right) = _new(2, 12, 4.2)
    names = list(results[0]["regret_pct"])
    left.boxplot(
        [[row["regret_pct"][name] for row in results] for name in names], tick_labels=names
    )
    left.set_ylabel("time above the best named plan, %")
    left.set_title("choosing by a sharder's own cost")
    for heavy, label in ((True, "heavy"), (False, "any")):
        gains = sorted(row["searched_gain_pct"] for row in results if row["heavy"] == heavy)
        shares = [(place + 1) / len(gains) for place in range(len(gains))]
        right.step(gains, shares, where="post", label=label)
    right.set_xlabel("best named plan over searched plan, %")
    right.set_ylabel("share of tasks")
    right.legend()
    figure.savefig(path, dpi=110, metadata={"Software": ""})
