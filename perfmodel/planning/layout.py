"""Layouts: plans as columns that a search changes without building and checking a plan each time.

A table is cut into a regular grid of pieces, or copied to every rank; what
comes out at the end is a plan like any other, checked when it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.planning.placements import Int32s, PieceCatalog


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """How many pieces a table is cut into, by columns and by rows."""

    columns: int = 1
    rows: int = 1

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.columns * self.rows


WHOLE = Cut()
COPIED = Cut(0, 0)
"""The cut of a table that stands on every rank: no pieces to place."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanLayout:
    """The cut of every table, and piece and rank of all pieces, table by table.

    Those of table t are *start*[t] to *start*[t + 1]; *partial_width* are the
    numbers a sample gets as partial sums, *copied* the tables on every rank.
    """

    cuts: tuple[Cut, ...]
    start: tuple[int, ...]
    piece: Int32s
    rank: Int32s
    partial_width: int
    copied: tuple[int, ...]

    def ranks_of(self, place: int) -> list[int]:
        """The ranks of the pieces of one table."""
        ranks: list[int] = self.rank[self.start[place] : self.start[place + 1]].tolist()
        return ranks

    def with_ranks(self, rank: Int32s) -> PlanLayout:
        """The same pieces on other ranks."""
        return PlanLayout(self.cuts, self.start, self.piece, rank, self.partial_width, self.copied)


def split_table(place: int, table: EmbeddingTable, cut: Cut) -> list[Shard]:
    """The pieces of the table at *place*, by columns and then by rows, all on rank 0 for now."""
    if cut == COPIED:
        return []
    bounds = [table.rows * piece // cut.rows for piece in range(cut.rows + 1)]
    width = table.width // cut.columns
    return [
        Shard(place, 0, first, after - first, column * width, width)
        for column in range(cut.columns)
        for first, after in pairwise(bounds)
    ]


class LayoutBook:
    """Makes layouts of the tables of *task*, with pieces as *catalog* numbers them."""

    def __init__(self, task: ShardingTask, catalog: PieceCatalog) -> None:
        self.task = task
        self._catalog = catalog
        self._pieces: dict[tuple[int, Cut], Int32s] = {}

    def pieces(self, place: int, cut: Cut) -> Int32s:
        """Numbers of the pieces of the table at *place*."""
        key = (place, cut)
        if key not in self._pieces:
            tables = self.task.tables
            shards = split_table(place, tables[place], cut)
            self._pieces[key] = self._catalog.pieces(tables, shards)
        return self._pieces[key]

    def build(self, cuts: Sequence[Cut], ranks: Sequence[int]) -> PlanLayout:
        """The layout that puts the pieces of all tables on *ranks*, in order."""
        start = (0, *accumulate(cut.count for cut in cuts))
        pieces = [self.pieces(place, cut) for place, cut in enumerate(cuts)]
        return PlanLayout(
            tuple(cuts),
            start,
            np.concatenate(pieces),
            np.array(ranks, dtype=np.int32),
            self._partial_width(cuts),
            tuple(place for place, cut in enumerate(cuts) if cut == COPIED),
        )

    def recut(self, layout: PlanLayout, place: int, cut: Cut, ranks: Sequence[int]) -> PlanLayout:
        """*layout* with the table at *place* cut anew, its pieces on *ranks*."""
        cuts = (*layout.cuts[:place], cut, *layout.cuts[place + 1 :])
        first, after = layout.start[place], layout.start[place + 1]
        placed = np.array(ranks, dtype=np.int32)
        return PlanLayout(
            cuts,
            (0, *accumulate(one.count for one in cuts)),
            np.concatenate([layout.piece[:first], self.pieces(place, cut), layout.piece[after:]]),
            np.concatenate([layout.rank[:first], placed, layout.rank[after:]]),
            self._partial_width(cuts),
            tuple(place for place, cut in enumerate(cuts) if cut == COPIED),
        )

    def from_plan(self, plan: ShardingPlan) -> PlanLayout | None:
        """*plan* as a layout; None where a table is not cut into a regular grid."""
        held: list[list[Shard]] = [[] for _ in plan.tables]
        for shard in plan.shards:
            held[shard.table].append(shard)
        cuts, ranks = [], []
        for place, shards in enumerate(held):
            shards.sort(key=lambda shard: (shard.first_column, shard.first_row))
            cut = COPIED
            if shards:
                columns = len({shard.first_column for shard in shards})
                cut = Cut(columns, len(shards) // columns)
            if [shard.on_rank(0) for shard in shards] != split_table(
                place, plan.tables[place], cut
            ):
                return None
            cuts.append(cut)
            ranks += [shard.rank for shard in shards]
        return self.build(cuts, ranks)

    def to_plan(self, layout: PlanLayout, name: str) -> ShardingPlan:
        """The plan that *layout* is."""
        task = self.task
        shards = [
            shard
            for place, cut in enumerate(layout.cuts)
            for shard in split_table(place, task.tables[place], cut)
        ]
        placed = [
            shard.on_rank(rank) for shard, rank in zip(shards, layout.rank.tolist(), strict=True)
        ]
        return ShardingPlan(
            tables=task.tables,
            rank_count=task.rank_count,
            shards=tuple(sorted(placed)),
            data_parallel=layout.copied,
            name=name,
            ranks_per_host=task.ranks_per_host,
        )

    def _partial_width(self, cuts: Sequence[Cut]) -> int:
        tables = self.task.tables
        return sum(cut.rows * tables[place].width for place, cut in enumerate(cuts) if cut.rows > 1)
