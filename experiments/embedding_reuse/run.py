"""Reuse of rows in the public data sets, over the whole set and within batches.

python experiments/embedding_reuse/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import random

import numpy as np
from scipy.stats import poisson

from embeddings.distribution import ReuseHistogram
from experiments.figures import BLUE, ORANGE, Wishes, legend_below, new_figure, read_wishes
from experiments.sharding_plans.tasks import HEAVY_POOLING, draw_tables, load_histograms
from perfmodel.extensions.measurements.calibration.embedding_cases import HISTOGRAM_EDGES

SAMPLES = {"2021": 65_536, "2022": 131_072}
TABLES = {"2021": 856, "2022": 788}


def main() -> None:
    """Draw both pictures and write the shares of distinct rows."""
    wishes = read_wishes(__file__, __doc__)
    histograms = load_histograms()
    results: dict[str, dict[str, float]] = {}
    figure, axes = new_figure(1, 2, height=2.1, sharey=True)
    for axis, year in zip(axes, sorted(histograms), strict=True):
        histogram = histograms[year]
        shares = np.array(histogram.lookup_shares) / sum(histogram.lookup_shares)
        edges = [*HISTOGRAM_EDGES, 2 * HISTOGRAM_EDGES[-1]]
        axis.step(edges, np.cumsum(shares), where="post", label="whole set, counted")
        results[year] = {"distinct_ratio_set": histogram.distinct_rows / histogram.draws}
        for batch, style in zip(wishes.scenario()["batches"], ("--", ":"), strict=True):
            by_batch = batch_shares(histogram, batch / SAMPLES[year])
            label = f"batch of {batch}, independent draws"
            axis.step(edges, np.cumsum(by_batch), where="post", linestyle=style, label=label)
            table = histogram.scaled(histogram.draws / TABLES[year])
            draws = table.draws * batch / SAMPLES[year]
            distinct = table.popularity(10**9).distinct_rows(draws)
            results[year][f"distinct_ratio_batch_{batch}"] = distinct / draws
        axis.set_xscale("log", base=2)
        axis.set(title=year, xlabel="reuse of a row, up to")
    axes[0].set_ylabel("share of lookups")
    legend_below(figure, axes[0], 1)
    wishes.save(figure, "reuse.png")
    draw_pooling(wishes, histograms)
    wishes.write_results(results)


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


def draw_pooling(wishes: Wishes, histograms: dict[str, ReuseHistogram]) -> None:
    """Pooling factors that tasks draw; real ones of single tables are not public here."""
    figure, axes = new_figure(1, 2, height=1.6, sharey=True)
    for axis, heavy in zip(axes, (True, False), strict=True):
        chance = random.Random(0)
        pooling = [
            table.pooling_factor
            for year in sorted(histograms)
            for _ in range(5)
            for table in draw_tables(chance, histograms[year], heavy=heavy, memory_bytes=40 * 2**30)
        ]
        axis.hist(pooling, bins=np.geomspace(0.02, 300, 40), color=BLUE)
        axis.axvline(HEAVY_POOLING, color=ORANGE, linestyle="--")
        axis.set(xscale="log", xlabel="mean pooling factor")
        axis.set_title("heavy tasks (drawn)" if heavy else "any tasks (drawn)")
    axes[0].set_ylabel("tables")
    wishes.save(figure, "pooling.png")


if __name__ == "__main__":
    main()
