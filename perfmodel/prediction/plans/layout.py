"""Layouts: plans as columns that are made and changed without building plans.

A table is cut into a regular grid of pieces or copied to every rank. The final layout becomes an
ordinary plan, which is checked when it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

import numpy as np

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.sharding_task import ShardingTask, cut_table
from embeddings.table import EmbeddingTable
from perfmodel.prediction.plans.placements import Int32s, PieceCatalog, PlanColumns


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """How many pieces a table is cut into, column-wise and row-wise."""

    columns: int = 1
    rows: int = 1

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.columns * self.rows


WHOLE = Cut()
COPIED = Cut(0, 0)
"""The cut of a table that is copied to every rank: no pieces to place."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanLayout(PlanColumns):
    """The columns of a plan whose tables are cut regularly, table by table.

    Pieces of table t are *start*[t] to *start*[t + 1].
    """

    cuts: tuple[Cut, ...] = ()
    start: tuple[int, ...] = ()

    def ranks_of(self, place: int) -> list[int]:
        """The ranks of the pieces of one table."""
        ranks: list[int] = self.rank[self.start[place] : self.start[place + 1]].tolist()
        return ranks


def split_table(place: int, table: EmbeddingTable, cut: Cut) -> list[Shard]:
    """The pieces of the table at *place*, column-wise, then row-wise; rank 0 is a placeholder."""
    if cut == COPIED:
        return []
    return cut_table(place, table, columns=cut.columns, rows=cut.rows)


class LayoutBook:
    """Builds layouts of the tables of *task*, with the piece numbers of *catalog*."""

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
            reduced = (place,) if self._catalog.reduces(tables[place], cut.rows) else ()
            self._pieces[key] = self._catalog.pieces(tables, shards, reduced)
        return self._pieces[key]

    def split(self, cuts: Sequence[Cut]) -> list[Shard]:
        """The pieces of all tables, with rank 0 as placeholder."""
        return [
            shard
            for place, (table, cut) in enumerate(zip(self.task.tables, cuts, strict=True))
            for shard in split_table(place, table, cut)
        ]

    def build(self, cuts: Sequence[Cut], ranks: Sequence[int]) -> PlanLayout:
        """The layout that puts the pieces of all tables on *ranks*, in order."""
        pieces = [self.pieces(place, cut) for place, cut in enumerate(cuts)]
        return self._layout(tuple(cuts), pieces, [np.array(ranks, dtype=np.int32)])

    def recut(self, layout: PlanLayout, place: int, cut: Cut, ranks: Sequence[int]) -> PlanLayout:
        """*layout* with the table at *place* cut anew, its pieces on *ranks*."""
        cuts = (*layout.cuts[:place], cut, *layout.cuts[place + 1 :])
        first, after = layout.start[place], layout.start[place + 1]
        pieces = [layout.piece[:first], self.pieces(place, cut), layout.piece[after:]]
        placed = np.array(ranks, dtype=np.int32)
        return self._layout(cuts, pieces, [layout.rank[:first], placed, layout.rank[after:]])

    def from_plan(self, plan: ShardingPlan) -> PlanLayout | None:
        """*plan* as a layout; None if a table is not cut into a regular grid."""
        cuts, ranks = [], []
        for place, held in enumerate(plan.shards_of_table):
            shards = sorted(held, key=attrgetter("first_column", "first_row"))
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
        """*layout* as a plan."""
        placed = zip(self.split(layout.cuts), layout.rank.tolist(), strict=True)
        shards = [shard.on_rank(rank) for shard, rank in placed]
        return self.task.plan(shards, name, data_parallel=layout.copied)

    def allows(self, layout: PlanLayout, place: int) -> bool:
        """Whether the table at *place* may be where *layout* has it."""
        task, cut, ranks = self.task, layout.cuts[place], layout.ranks_of(place)
        kind = ShardingKind.COLUMN_WISE if cut.columns > 1 else ShardingKind.TABLE_WISE
        if cut == COPIED:
            kind = ShardingKind.DATA_PARALLEL
        elif cut.rows > 1 and cut.columns > 1:
            kind = ShardingKind.GRID
        elif cut.rows > 1:
            per_host = task.ranks_per_host or task.rank_count
            is_inside = task.host_count > 1 and len({rank // per_host for rank in ranks}) == 1
            kind = ShardingKind.TABLE_ROW_WISE if is_inside else ShardingKind.ROW_WISE
        return task.allows(task.tables[place], kind, ranks)

    def _layout(
        self, cuts: tuple[Cut, ...], pieces: Sequence[Int32s], ranks: Sequence[Int32s]
    ) -> PlanLayout:
        partial = reduced = has_direct = 0
        for cut, table in zip(cuts, self.task.tables, strict=True):
            if cut.rows > 1 and self._catalog.reduces(table, cut.rows):
                reduced += table.width * table.features
                continue
            has_direct |= cut != COPIED
            is_partial = cut.rows > 1 and table.is_pooled
            partial += cut.rows * table.width * table.features if is_partial else 0
        return PlanLayout(
            np.concatenate(pieces),
            np.concatenate(ranks),
            tuple(place for place, cut in enumerate(cuts) if cut == COPIED),
            partial_width=partial,
            reduced_width=reduced,
            has_direct=bool(has_direct),
            cuts=cuts,
            start=(0, *accumulate(cut.count for cut in cuts)),
        )
