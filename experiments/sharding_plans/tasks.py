"""Sharding tasks drawn as the paper describes, with reuse from public histograms.

Synthetic throughout: row counts and pooling factors of single tables are not
public, so they are drawn here and only their ranges follow the data sets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from embeddings.distribution import ReuseHistogram
from embeddings.table import EmbeddingTable, spread_hot_rows
from experiments.figures import read_measured
from perfmodel.extensions.measurements.calibration.embedding_cases import histogram_from_bins
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster, build_cluster, load_topology

BATCH = 4096
HEAVY_POOLING = 20.0
RANKS = 4
PLATFORMS = ("quad_gv100", "quad_a100")
TASKS_OF_YEAR = 10
"""Half of them heavy."""


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """Tables for one platform, with reuse of one year."""

    platform: str
    cluster: Cluster
    year: str
    number: int
    tables: tuple[EmbeddingTable, ...]

    @property
    def is_heavy(self) -> bool:
        """Whether all pooling factors are large."""
        return self.number < TASKS_OF_YEAR // 2

    @property
    def labels(self) -> dict[str, object]:
        """What tells its results from others."""
        return {"platform": self.platform, "year": self.year, "heavy": self.is_heavy}


def draw_tasks() -> Iterator[DrawnTask]:
    """All tasks of all platforms, the same in every run."""
    histograms = load_histograms()
    for platform in PLATFORMS:
        chance = random.Random(0)
        cluster = build_cluster(load_topology(platform))
        for year in sorted(histograms):
            for number in range(TASKS_OF_YEAR):
                tables = draw_tables(
                    chance,
                    histograms[year],
                    heavy=number < TASKS_OF_YEAR // 2,
                    memory_bytes=cluster.device.memory_bytes,
                )
                yield DrawnTask(platform, cluster, year, number, tables)


def load_histograms() -> dict[str, ReuseHistogram]:
    """The whole-file histogram of each year."""
    found: dict[str, ReuseHistogram] = {}
    for row in read_measured("embeddings/index_reuse_histograms.csv"):
        if row["year"] not in found:
            found[row["year"]] = histogram_from_bins(
                tuple(float(row[key]) for key in row if key.startswith("uniq_rows_frac")),
                tuple(float(row[key]) for key in row if key.startswith("lookup_frac")),
                draws=float(row["n_indices"]),
                reuse=float(row["avg_reuse"]),
            )
    return found


def draw_tables(
    chance: random.Random, histogram: ReuseHistogram, *, heavy: bool, memory_bytes: int
) -> tuple[EmbeddingTable, ...]:
    """36 to 66 tables; drawn again until they take at most 80 % of all memory."""
    while True:
        count = chance.randrange(int(13 * RANKS * 0.7), int(13 * RANKS * 1.3))
        drawn = [_draw_table(chance, histogram, place, heavy) for place in range(count)]
        tables = spread_hot_rows(drawn)
        if sum(table.size_bytes for table in tables) <= 0.8 * RANKS * memory_bytes:
            return tables


def _draw_table(
    chance: random.Random, histogram: ReuseHistogram, place: int, heavy: bool
) -> EmbeddingTable:
    pooling = math.exp(chance.gauss(1.5, 1.5))
    while (heavy and pooling < HEAVY_POOLING) or pooling > 300:
        pooling = math.exp(chance.gauss(1.5, 1.5))
    rows = max(100, int(10 ** chance.uniform(3, 6.7)))
    return EmbeddingTable(
        f"t{place}",
        rows,
        chance.choice([32, 64, 128, 256]),
        round(pooling, 2),
        distribution=within_a_batch(histogram, pooling=pooling, rows=rows),
        pooling_deviation=round(pooling, 2),
    )


def within_a_batch(histogram: ReuseHistogram, *, pooling: float, rows: int) -> ReuseHistogram:
    """The file's reuse as that of a batch; no row is used more often than there are samples.

    A table with fewer *rows* than that reuse leaves distinct is reused more, in all bins by the
    same factor, where a bin is not at one use a sample yet.
    """
    draws = max(1.0, BATCH * pooling)
    low, high = 1.0, float(BATCH)
    if _capped(histogram, low, draws).distinct_rows <= rows:
        return _capped(histogram, low, draws)
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _capped(histogram, middle, draws).distinct_rows > rows:
            low = middle
        else:
            high = middle
    return _capped(histogram, high, draws)


def _capped(histogram: ReuseHistogram, factor: float, draws: float) -> ReuseHistogram:
    reuse = tuple(min(factor * mean, float(BATCH)) for mean in histogram.mean_reuse)
    return ReuseHistogram(histogram.lookup_shares, reuse, draws)


def build_model(tables: tuple[EmbeddingTable, ...]) -> DlrmSpec:
    """The paper's model around *tables*."""
    return DlrmSpec.model_validate(
        {
            "family": "dlrm",
            "name": "paper_dlrm",
            "description": "The random DLRM of arXiv 2404.12674, tables drawn here",
            "source": "arXiv 2404.12674 section on sharding; synthetic tables",
            "stack": "pytorch_eager",
            "batch": BATCH,
            "dense": {
                "features": 512,
                "bottom_mlp": [512, 1024, 256, 128],
                "top_mlp": [1024, 512, 256, 1],
                "interaction": "concat",
            },
            "embedding": {
                "rows": [table.rows for table in tables],
                "width": [table.width for table in tables],
                "pooling_factors": [table.pooling_factor for table in tables],
            },
            # The paper leaves the exchange of indices out of the iteration.
            "training": {"distribute_ahead": True},
        }
    )
