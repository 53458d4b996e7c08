"""Pictures of the sharding experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.figures import (
    BLACK,
    COLOURS,
    MARKERS,
    PAGE,
    Wishes,
    legend_below,
    new_figure,
)


def draw_all(results: list[dict[str, Any]], wishes: Wishes) -> None:
    """Times by sharder and task, and what choosing costs."""
    _draw_times(results, wishes)
    _draw_regret(results, wishes)


def _draw_times(results: list[dict[str, Any]], wishes: Wishes) -> None:
    platforms = sorted({row["platform"] for row in results})
    figure, axes = new_figure(1, len(platforms) + 1, width=PAGE, height=2.5)
    for axis, platform in zip(axes, platforms, strict=False):
        rows = [row for row in results if row["platform"] == platform and row["heavy"]]
        for number, name in enumerate(rows[0]["named_ms"]):
            style = {"color": COLOURS[number % 7], "marker": MARKERS[number % len(MARKERS)]}
            times = [row["named_ms"][name] for row in rows]
            axis.plot(times, ls="", mew=0, alpha=0.8, label=name, **style)
        axis.plot([row["searched_ms"] for row in rows], "k_", ms=7, mew=1.3, label="searched")
        axis.set(title=f"{platform}, heavy tasks", xlabel="task", ylabel="predicted iteration (ms)")
        axis.set_xticks(range(len(rows)))
    names = list(results[0]["named_ms"])
    places = np.arange(len(names))
    for number, (limit, word) in enumerate(((1.0001, "fastest"), (1.1, "within a tenth"))):
        shares = [
            100 * np.mean([row["named_ms"][name] <= limit * min(row["named_ms"].values())
                           for row in results])
            for name in names
        ]  # fmt: skip
        axes[-1].barh(places + 0.2 - 0.4 * number, shares, 0.38, color=COLOURS[number], label=word)
    axes[-1].set_yticks(places, names, fontsize=5)
    axes[-1].invert_yaxis()
    axes[-1].set(title="named plans, all tasks", xlabel="share of tasks (%)")
    axes[-1].legend(ncols=2, loc="upper center", bbox_to_anchor=(0.35, -0.24))
    legend_below(figure, axes[0], 6)
    wishes.save(figure, "times_by_sharder.png")


def _draw_regret(results: list[dict[str, Any]], wishes: Wishes) -> None:
    figure, (left, right) = new_figure(1, 2, height=1.9)
    names = list(results[0]["regret_pct"])
    left.boxplot(
        [[row["regret_pct"][name] for row in results] for name in names],
        tick_labels=[name.replace("_", "\n") for name in names],
        flierprops={"markersize": 2},
        medianprops={"color": COLOURS[1]},
    )
    left.tick_params(axis="x", labelsize=5)
    left.set_ylabel("above the best named plan (%)")
    left.set_title("choosing by a sharder's cost")
    for (heavy, label), style in zip(((True, "heavy"), (False, "any")), ("-", "--"), strict=True):
        gains = sorted(row["searched_gain_pct"] for row in results if row["heavy"] == heavy)
        shares = [100 * (place + 1) / len(gains) for place in range(len(gains))]
        right.step(gains, shares, where="post", label=label, linestyle=style)
    right.axvline(0, color=BLACK, linewidth=0.6)
    right.set(xlabel="gain of a search (%)", ylabel="tasks (%)")
    right.legend()
    wishes.save(figure, "regret.png")
