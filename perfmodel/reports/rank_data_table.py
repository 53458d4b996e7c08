"""Statistics of index data on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from embeddings.statistics import DataStatistics

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
