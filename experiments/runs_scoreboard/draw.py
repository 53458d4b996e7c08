"""Draw the errors of `results.json` by group: mean, median and p90 of each source and GPU.

python experiments/runs_scoreboard/draw.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent


def main() -> None:
    """Write errors.png."""
    results = json.loads((HERE / "results.json").read_text())
    groups = [
        (f"{name[:62]} ({score['rows']})", score)
        for table in results.values()
        for name, score in table["groups"].items()
    ]
    figure, axes = plt.subplots(figsize=(10, 0.27 * len(groups) + 1), constrained_layout=True)
    places = range(len(groups))
    axes.barh(places, [score["mape_pct"] for _, score in groups], color="tab:blue", label="mean")
    for key, marker in (("median_pct", "|"), ("p90_pct", ">")):
        values = [score[key] for _, score in groups]
        axes.scatter(values, places, color="black", marker=marker, label=key.removesuffix("_pct"))
    axes.set_yticks(places, [name for name, _ in groups], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("error of the predicted iteration, %")
    axes.set_title("Core tables of measured runs, by source and GPU (rows)")
    axes.legend()
    figure.savefig(HERE / "errors.png", dpi=110)


if __name__ == "__main__":
    main()
