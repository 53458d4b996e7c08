"""Tables of a ranking that only a page shows: loads, where tables are, who sends whom, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS
from perfmodel.planning.ranking import RankedPlan, Ranking
from perfmodel.reports.blocks import Table

MOST_RANKS, MOST_TABLES = 32, 60


def load_matrix(ranked: RankedPlan) -> Table:
    """Lookups, bytes sent and memory, one column per rank, each row shaded by its largest."""
    loads = ranked.loads
    rows, shades = [], []
    for words, values, unit, form in (
        ("rows looked up, thousand", loads.lookups, 1e3, ",.0f"),
        ("vectors sent, MB", loads.sent_bytes, 1e6, ",.1f"),
        ("memory, GiB", loads.memory_bytes, BYTES_PER_GIB, ".1f"),
    ):
        most = max(*values, 1)
        rows.append([words, *(format(value / unit, form) for value in values[:MOST_RANKS])])
        shades.append([value / most for value in values[:MOST_RANKS]])
    return _rank_table("", rows, shades, ranked)


def memory_front(ranking: Ranking) -> Table:
    """Plans that no other beats in both time and memory, and those that need least of one."""
    rows, least = [], float("inf")
    for plan in sorted(
        ranking.plans, key=lambda one: (one.answer.iteration_ns, one.loads.peak_bytes)
    ):
        if plan.loads.peak_bytes < least:
            least = plan.loads.peak_bytes
            further = plan.answer.iteration_ns / ranking.plans[0].answer.iteration_ns - 1
            rows.append(
                [
                    plan.plan.name,
                    f"{plan.answer.iteration_ns / NS_PER_MS:.3f}",
                    f"{further:+.1%}",
                    f"{least / BYTES_PER_GIB:.1f}",
                    "" if plan.fits else "does not fit",
                ]
            )
    headings = ["plan", "time ms", "against the first", "memory of the fullest rank, GiB", ""]
    note = "Every other plan is both slower and larger than one of these, or equal to it."
    return Table(headings, rows if len(ranking.plans) > 1 else [], (1, 2, 3), (0,), note=note)


def table_matrix(ranked: RankedPlan) -> Table:
    """The share of each table that each rank holds, largest tables first."""
    plan = ranked.plan
    held = np.zeros((len(plan.tables), plan.rank_count))
    for shard in plan.shards:
        held[shard.table, shard.rank] += shard.rows * shard.width
    order = sorted(range(len(plan.tables)), key=lambda place: (-plan.tables[place].rows, place))
    rows, shades = [], []
    for place in order[:MOST_TABLES]:
        table, kind = plan.tables[place], plan.kinds[place].value.replace("_", " ")
        shares = held[place] / (table.rows * table.width)
        if place in plan.copied_places:
            shares = np.ones(plan.rank_count)
        name = f"{table.name}: {table.rows:,} x {table.width}, {kind}"
        rows.append([name, *(f"{share:.0%}" if share else "" for share in shares[:MOST_RANKS])])
        shades.append(shares[:MOST_RANKS].tolist())
    notes = []
    if len(order) > MOST_TABLES:
        notes.append(f"{len(order) - MOST_TABLES} smaller tables are in the JSON.")
    if plan.summed_in_host:
        notes.append(
            f"Vectors of {len(plan.summed_in_host)} tables are summed inside a host first."
        )
    return _rank_table("table \\ rank", rows, shades, ranked, *notes)


def _rank_table(
    corner: str,
    rows: Sequence[Sequence[str]],
    shades: Sequence[Sequence[float]],
    ranked: RankedPlan,
    *notes: str,
) -> Table:
    """A table with a column per rank."""
    count = ranked.plan.rank_count
    more = [f"{count - MOST_RANKS} more ranks are in the JSON."] if count > MOST_RANKS else []
    headings = [corner, *map(str, range(min(count, MOST_RANKS)))]
    note = " ".join([*more, *notes])
    return Table(headings, rows, range(1, len(headings)), note=note, shades=shades)
