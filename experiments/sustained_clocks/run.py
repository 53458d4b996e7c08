"""Rates of short and of long matrix products in the measured tables, collector by collector."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))
FEWEST = 10
DRAWS = 500


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text())
    results = []
    for name in scenario["tables"]:
        table = pd.read_csv(DATA / "gemm" / f"{name}.csv.gz")
        sides = table[["m", "n", "k"]]
        is_big = (sides >= scenario["smallest_side"]).all(axis=1) & (sides % 64 == 0).all(axis=1)
        for collector, rows in table[is_big].groupby("collector"):
            line = compare(rows, scenario)
            if line is not None:
                results.append({"device": name, "collector": collector, **line})
                print(results[-1])
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def compare(rows, scenario):
    """The best tenth of rates of short and long products, and their ratio with its spread."""
    low, high = scenario["short_ms"]
    short = rows.tflops[(rows.latency_ms >= low) & (rows.latency_ms < high)].to_numpy()
    long = rows.tflops[rows.latency_ms >= scenario["long_ms"]].to_numpy()
    if min(len(short), len(long)) < FEWEST:
        return None
    chance = np.random.default_rng(0)
    ratios = [
        best(chance.choice(short, len(short))) / best(chance.choice(long, len(long)))
        for _ in range(DRAWS)
    ]
    return {
        "short_rows": len(short),
        "long_rows": len(long),
        "short_tflops": round(best(short), 1),
        "long_tflops": round(best(long), 1),
        "slowdown": round(best(short) / best(long), 3),
        "low": round(float(np.quantile(ratios, 0.05)), 3),
        "high": round(float(np.quantile(ratios, 0.95)), 3),
    }


def best(values):
    """What the best tenth reaches: shapes that fill the device, whatever their size."""
    return float(np.quantile(values, 0.9))


if __name__ == "__main__":
    main()
