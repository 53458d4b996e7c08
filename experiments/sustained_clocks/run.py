"""Rates of short and of long matrix products in the measured tables, collector by collector.

python experiments/sustained_clocks/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.figures import BLACK, ORANGE, new_figure, read_measured, read_wishes

FEWEST, DRAWS = 10, 500


def main() -> None:
    """Compare rates of every device and collector, and draw their ratios."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    groups = defaultdict(list)
    for row in read_measured("kernels/long_products.csv.gz"):
        groups[row["device"], row["collector"]].append(
            (float(row["latency_ms"]), float(row["tflops"]))
        )
    results = []
    for (device, collector), rows in groups.items():
        times, rates = np.array(rows).T
        short, long = rates[times < scenario["short_ms"]], rates[times >= scenario["long_ms"]]
        if min(len(short), len(long)) >= FEWEST:
            results.append({"device": device, "collector": collector, **compare(short, long)})
    wishes.write_results(results)
    figure, axes = new_figure(height=0.14 * len(results) + 0.6)
    places = np.arange(len(results))
    low, middle, high = (
        np.array([one[key] for one in results]) for key in ("low", "slowdown", "high")
    )
    axes.errorbar(middle, places, xerr=[middle - low, high - middle], fmt="o", color=BLACK,
                  elinewidth=0.8)  # fmt: skip
    axes.axvline(1, color=ORANGE, linewidth=0.8)
    axes.set_yticks(places, [f"{one['device']}, {one['collector']}" for one in results])
    axes.tick_params(axis="y", labelsize=5.5)
    axes.invert_yaxis()
    axes.set_xlabel("rate of short over long products")
    wishes.save(figure, "slowdowns.png")


def compare(short: NDArray[np.float64], long: NDArray[np.float64]) -> dict[str, Any]:
    """The best tenth of both, and their ratio with its spread."""
    chance = np.random.default_rng(0)
    ratios = [
        best(chance.choice(short, len(short))) / best(chance.choice(long, len(long)))
        for _ in range(DRAWS)
    ]
    return {
        "short_rows": len(short),
        "long_rows": len(long),
        "short_tflops": best(short),
        "long_tflops": best(long),
        "slowdown": best(short) / best(long),
        "low": float(np.quantile(ratios, 0.05)),
        "high": float(np.quantile(ratios, 0.95)),
    }


def best(values: NDArray[np.float64]) -> float:
    """What the best tenth reaches: shapes that fill the device, whatever their size."""
    return float(np.quantile(values, 0.9))


if __name__ == "__main__":
    main()
