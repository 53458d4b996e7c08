"""Reuse of rows in the public data sets, over the whole set and within batches.

python -m experiments.embedding_reuse.run      # needs ../shared/data
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import poisson

from embeddings.distribution import HISTOGRAM_EDGES, ReuseHistogram
from experiments.sharding_plans.tasks import HEAVY_POOLING, draw_tables, load_histograms

HERE = Path(__file__).parent
BATCHES = (512, 4096)
SAMPLES = {"2021": 65_536, "2022": 131_072}
TABLES = {"2021": 856, "2022": 788}


def main() -> None:
    """Write results.json and two pictures."""
    shared = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[2] / "shared" / "data"))
    histograms = load_histograms(shared)
    results = {}
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, year in zip(figure.subplots(1, 2), sorted(histograms), strict=True):
        histogram = histograms[year]
        shares = np.array(histogram.lookup_shares) / sum(histogram.lookup_shares)
        edges = [*HISTOGRAM_EDGES, 2 * HISTOGRAM_EDGES[-1]]
        axis.step(edges, np.cumsum(shares), where="post", label="whole set, counted")
        results[year] = {}
        for batch in BATCHES:
            by_batch = batch_shares(histogram, batch / SAMPLES[year])
            axis.step(
                edges, np.cumsum(by_batch), where="post", linestyle="--",
                label=f"batch of {batch}, independent draws",
            )  # fmt: skip
            table = histogram.scaled(histogram.draws / TABLES[year])
            draws = table.draws * batch / SAMPLES[year]
            distinct = table.popularity(10**9).distinct_rows(draws)
            results[year][f"distinct_ratio_batch_{batch}"] = distinct / draws
        results[year]["distinct_ratio_set"] = histogram.distinct_rows / histogram.draws
        axis.set_xscale("log", base=2)
        axis.set_title(f"{year}: share of lookups by reuse of their row")
        axis.set_xlabel("reuse up to")
        axis.set_ylabel("cumulative share of lookups")
        axis.legend(fontsize=8)
    figure.savefig(HERE / "reuse.png", dpi=110, metadata={"Software": ""})
    _draw_pooling(histograms)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def batch_shares(histogram: ReuseHistogram, share: float) -> np.ndarray:
    """Shares of lookups by reuse within a batch that is *share* of the set."""
    edges = np.array([0.0, *HISTOGRAM_EDGES, np.inf])
    total = np.zeros(len(edges) - 1)
    for lookups, reuse in zip(histogram.lookup_shares, histogram.mean_reuse, strict=True):
        mean = reuse * share
        # Of a row drawn Poisson(m) times, lookups with reuse up to k have share P(X <= k - 1).
        inside = poisson.cdf(edges[1:] - 1, mean) - poisson.cdf(edges[:-1] - 1, mean)
        total += lookups * inside
    return total / total.sum()


def _draw_pooling(histograms: dict[str, ReuseHistogram]) -> None:
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, heavy in zip(figure.subplots(1, 2), (True, False), strict=True):
        chance = random.Random(0)
        pooling = [
            table.pooling_factor
            for year in sorted(histograms)
            for _ in range(5)
            for table in draw_tables(chance, histograms[year], heavy=heavy, memory_bytes=40 * 2**30)
        ]
        axis.hist(pooling, bins=np.geomspace(0.02, 300, 40), color="#7aa6c2")
        axis.set_xscale("log")
        axis.axvline(HEAVY_POOLING, color="#b33", linestyle=":")
        axis.set_title(f"drawn pooling factors, {'heavy' if heavy else 'any'} tasks (synthetic)")
        axis.set_xlabel("mean pooling factor; heavy from 20 on")
    figure.savefig(HERE / "pooling.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main()
