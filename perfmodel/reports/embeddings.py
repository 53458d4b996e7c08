"""Pictures of index data: reuse of rows over the set and in batches, and pooling."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console
from rich.table import Table

from embeddings.index_data import BIN_COUNT, DataStatistics
from perfmodel.reports.pictures import build_figure

SHOWN = 20


def print_statistics(found: DataStatistics, console: Console) -> None:
    """Show *found*: one line a table, those with most lookups first."""
    table = Table(box=None, pad_edge=False)
    for heading in ("table", "lookups", "pooling", "deviation", "longest", "distinct rows"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for heading in ("hottest row", "distinct in set", "distinct in batch"):
        table.add_column(heading, justify="right")
    ordered = sorted(found.tables, key=lambda one: -one.lookups)
    for one in ordered[:SHOWN]:
        table.add_row(
            one.name,
            f"{one.lookups}",
            f"{one.pooling_mean:.2f}",
            f"{one.pooling_deviation:.2f}",
            f"{one.pooling_max}",
            f"{one.distinct_rows}",
            f"{100 * one.hottest_share:.2f} %",
            f"{100 * one.set_distinct_ratio:.1f} %",
            f"{100 * one.batch_distinct_ratio:.1f} %",
        )
    console.print(f"{found.source}: {len(found.tables)} tables, {found.sample_count} samples.")
    console.print(table)
    if len(ordered) > SHOWN:
        console.print(f"and {len(ordered) - SHOWN} tables more.")
    console.print(f"Batches of {found.batch_size} samples.")


HEAVY = 20
"""Pooling factor from which a table counts as heavy, as in the paper."""


def draw_statistics(found: DataStatistics) -> bytes:
    """Cumulative shares by reuse, and a histogram of pooling factors, as PNG."""
    figure = build_figure(11, 4)
    left, right = figure.subplots(1, 2)
    edges = 2.0 ** np.arange(BIN_COUNT)
    for label, shares, style in (
        ("whole set", found.set_reuse, "-"),
        (f"batches of {found.batch_size}", found.batch_reuse, "--"),
    ):
        left.plot(edges, np.cumsum(shares.of_rows), f"C0{style}", label=f"rows, {label}")
        left.plot(edges, np.cumsum(shares.of_lookups), f"C1{style}", label=f"lookups, {label}")
    left.set_xscale("log", base=2)
    left.set_xlabel("reuse of a row, up to")
    left.set_ylabel("cumulative share")
    left.set_ylim(0, 1.02)
    left.legend(fontsize=8)
    pooling = np.array([table.pooling_mean for table in found.tables])
    top = max(float(pooling.max()), 1.0)
    right.hist(np.maximum(pooling, 0.1), bins=np.geomspace(0.1, 2 * top, 30), color="#7aa6c2")
    right.set_xscale("log")
    right.axvline(HEAVY, color="#b33", linestyle=":")
    right.annotate(" heavy", (HEAVY, 0.95), xycoords=("data", "axes fraction"), color="#b33")
    right.set_xlabel("mean pooling factor")
    right.set_ylabel("tables")
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110, metadata={"Software": ""})
    return target.getvalue()
