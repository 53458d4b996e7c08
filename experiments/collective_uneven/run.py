"""Uneven all-to-all: the byte matrix against the paper's three scalar treatments.

python experiments/collective_uneven/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from collectives.collective import Collective, CollectiveKind
from collectives.pricing import price_collective
from experiments.figures import (
    BLACK,
    MARKERS,
    legend_below,
    new_figure,
    read_measured,
    read_wishes,
)
from topologies import build_cluster, load_topology


def treatments(sent):
    """Bytes per rank that each scalar treatment hands to the curve of an even exchange."""
    sent = np.array(sent, dtype=float)
    count, total = len(sent), sent.sum()
    received, given = total - sent, (count - 1) * sent
    even = count / (count - 1)  # so that an even exchange keeps its size
    return {
        "sum": total,
        "max of max": np.maximum(received, given).max() * even,
        "max of sum": (received + given).max() * even / 2,
    }


def by_tables(source, count):
    """Every rank sends each peer the pooled rows of its own tables: rows differ, columns do not."""
    batch, width = source.choice([256, 1024, 4096]), source.choice([32, 64, 128, 256])
    tables = [source.randint(1, 20) for _ in range(count)]
    return [[batch // count * owned * width * 4] * count for owned in tables]


def by_hot_rows(source, count):
    """Row-wise shards with hot rows: every pair differs, some ranks receive much more."""
    heat = [source.lognormvariate(0, 0.8) for _ in range(count)]
    mean = source.choice([1 << 14, 1 << 18, 1 << 22])
    return [
        [round(mean * heat[target] * source.lognormvariate(0, 0.3)) for target in range(count)]
        for _ in range(count)
    ]


def compare(cluster, make, source, exchanges):
    """Ratios of each scalar treatment to the byte matrix, and how early the first rank ends."""
    ranks = range(cluster.rank_count)
    ratios, spread, early = {}, [], []
    for _ in range(exchanges):
        matrix = np.array(make(source, len(ranks)))
        rows = tuple(tuple(int(value) for value in row) for row in matrix)
        exact = price_collective(
            Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=rows), cluster=cluster, ranks=ranks
        )
        busiest = np.maximum(matrix.sum(axis=0), matrix.sum(axis=1)).max()
        spread.append(busiest / (matrix.sum() / len(ranks)))
        early.append(float(exact.per_rank_ns.min() / exact.duration_ns))
        for name, size in treatments(matrix.mean(axis=1)).items():
            scalar = price_collective(
                Collective(CollectiveKind.ALL_TO_ALL, round(size)), cluster=cluster, ranks=ranks
            )
            ratios.setdefault(name, []).append(scalar.duration_ns / exact.duration_ns)
    return ratios, spread, early


def main() -> None:
    """Compare exchanges of both kinds on every machine."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    source = random.Random(scenario["seed"])
    results: dict[str, Any] = {}
    figure, pictures = new_figure(2, 2, height=3.4)
    for line, (word, make) in zip(
        pictures, {"tables": by_tables, "hot rows": by_hot_rows}.items(), strict=True
    ):
        for axes, machine in zip(line, scenario["machines"], strict=True):
            cluster = build_cluster(
                load_topology(machine["topology"]), hosts=machine["hosts"], ranks=machine["ranks"]
            )
            ratios, spread, early = compare(cluster, make, source, scenario["exchanges"])
            for number, (treatment, values) in enumerate(ratios.items()):
                axes.plot(spread, values, MARKERS[number], ms=1.6, alpha=0.6, label=treatment)
            axes.axhline(1, color=BLACK, linewidth=0.8)
            axes.set_title(f"{word}, {machine['ranks']} x {machine['topology']}")
            results[f"{machine['topology']}, {machine['ranks']} ranks: {word}"] = {
                "busiest_over_mean": float(np.mean(spread)),
                "first_rank_done_ratio": float(np.mean(early)),
                **{treatment: off_by(values) for treatment, values in ratios.items()},
            }
    for axes in pictures[1]:
        axes.set_xlabel("busiest rank over the mean")
    for axes in pictures[:, 0]:
        axes.set_ylabel("one size / byte matrix")
    legend_below(figure, pictures[0][0])
    wishes.save(figure, "uneven.png")
    results["public_uneven_measurement"] = one_measurement(scenario["measured"])
    results["errors_that_the_paper_measured"] = [
        {key: row[key] for key in ("size_treatment", "GMAE_pct", "MAPE_pct")}
        for row in read_measured("paper/a2a_size_treatment_errors_4xV100.csv")
        if row["notebook_blob"] == scenario["paper_revision"]
    ]
    wishes.write_results(results)


def off_by(values):
    off = np.abs(np.array(values) - 1) * 100
    return {"mean_off_pct": float(off.mean()), "worst_off_pct": float(off.max())}


def one_measurement(measured):
    """The one public uneven exchange against the even one, 4 x V100, mean over ranks."""
    cluster = build_cluster(load_topology(measured["topology"]), hosts=1, ranks=4)
    times = {}
    for name, tables in measured["tables_of_ranks"].items():
        rows = tuple(
            (measured["batch"] // 4 * count * measured["width"] * 4,) * 4 for count in tables
        )
        cost = price_collective(
            Collective(CollectiveKind.ALL_TO_ALL, 0, byte_matrix=rows),
            cluster=cluster,
            ranks=range(4),
        )
        times[name] = float(cost.per_rank_ns.mean())
    return {
        "predicted_uneven_over_even": times["uneven"] / times["even"],
        "measured_uneven_over_even": measured["uneven_over_even"],
    }


if __name__ == "__main__":
    main()
