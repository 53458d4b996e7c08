"""Layouts: plans as columns that a search changes step by step without building plans.

A table is cut into a regular grid of pieces or copied to every rank. The final layout becomes an
ordinary plan, which is checked when it is built.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharding_task import ShardingTask, cut_table
from embeddings.table import EmbeddingTable
from perfmodel.prediction.plans.placements import Int32s, PieceCatalog, PlanColumns
from perfmodel.prediction.plans.plan_costs import Floats

NEAR = 6
"""Number of busiest and of least busy ranks that steps use."""
MIN_WIDTH = 16
MOVE, SWAP, TRADE = 0.3, 0.7, 0.8
"""Cumulative shares of steps: a piece moves, one swaps with one, two with one; the rest cut."""
COPIED_BYTES = 2**24
"""Tables up to this size may be copied to every rank."""


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


class Neighbourhood:
    """Layouts one step away, taken from the busiest ranks.

    A piece moves, pieces swap, a table is split by rows or columns, merged again or copied to every
    rank. *own_ns* is the time of each rank in lookup, update and exchange, parts x ranks.
    """

    def __init__(self, book: LayoutBook, chance: random.Random, own_ns: Floats) -> None:
        self._book = book
        self._tables = book.task.tables
        self._random = chance
        total = own_ns.sum(axis=0)
        near = min(NEAR, max(1, len(total) // 2))
        order = np.argsort(-total, kind="stable").tolist()
        # All other ranks wait for the last one of each part.
        leaders = [int(part.argmax()) for part in own_ns]
        self._busiest = [*leaders, *order[:near]]
        self._least = order[::-1][: 2 * near]

    def propose(self, layout: PlanLayout, count: int) -> list[PlanLayout]:
        """Up to *count* layouts one step from *layout*."""
        table_of = np.repeat(np.arange(len(layout.cuts)), np.diff(layout.start)).tolist()
        of_rank: dict[int, list[int]] = {}
        for number, rank in enumerate(layout.rank.tolist()):
            # A table with constraints stays where these let a start put it.
            if not self._tables[table_of[number]].is_constrained:
                of_rank.setdefault(rank, []).append(number)
        found: list[PlanLayout] = []
        for _ in range(4 * count):
            changed = self._step(layout, of_rank, table_of)
            found += [] if changed is None else [changed]
            if len(found) >= count:
                break
        return found

    def copy_steps(self, layout: PlanLayout) -> list[PlanLayout]:
        """Copy one more small table to every rank, one less, or replace one."""
        small = [
            place
            for place, table in enumerate(self._tables)
            if table.size_bytes <= COPIED_BYTES and layout.cuts[place] != COPIED
            if not table.is_constrained
        ]
        removed = layout
        copied = [one for one in layout.copied if not self._tables[one].is_constrained]
        if copied and (not small or self._random.random() < 0.5):
            place = self._random.choice(copied)
            removed = self._book.recut(layout, place, WHOLE, [self._random.choice(self._least)])
            if self._random.random() < 0.5 or not small:
                return [removed]
        if not small:
            return []
        changed = self._book.recut(removed, self._random.choice(small), COPIED, [])
        return [changed] if len(changed.rank) else []

    def _step(
        self, layout: PlanLayout, of_rank: dict[int, list[int]], table_of: list[int]
    ) -> PlanLayout | None:
        source = self._random.choice(self._busiest)
        target = self._random.choice(self._least)
        mine, others = of_rank.get(source), of_rank.get(target)
        if source == target or not mine:
            return None
        number = self._random.choice(mine)
        draw = self._random.random()
        if draw >= TRADE:
            return self._recut(layout, table_of[number])
        rank = layout.rank.copy()
        rank[number] = target
        if draw >= MOVE:
            if not others:
                return None
            rank[self._random.choice(others)] = source
            if draw >= SWAP and len(mine) > 1:
                rank[self._random.choice(mine)] = target
        return replace(layout, rank=rank)

    def _recut(self, layout: PlanLayout, place: int) -> PlanLayout | None:
        """More or fewer pieces by rows or columns, on the least busy ranks."""
        table, cut = self._tables[place], layout.cuts[place]
        most = self._book.task.rank_count
        options = [
            Cut(cut.columns, cut.rows + 1),
            Cut(cut.columns, cut.rows - 1),
            Cut(2 * cut.columns, cut.rows),
            Cut(cut.columns // 2, cut.rows),
            WHOLE,
            # A collective sums a row-wise table over all ranks.
            Cut(rows=most),
        ]
        chosen = self._random.choice(options)
        if chosen == cut or not 1 <= chosen.count <= most or chosen.rows > table.rows:
            return None
        if chosen.columns > 1 and (
            table.width % (4 * chosen.columns) or table.width // chosen.columns < MIN_WIDTH
        ):
            return None
        kept = list(dict.fromkeys(layout.ranks_of(place)))
        fresh = [rank for rank in self._least if rank not in kept]
        self._random.shuffle(fresh)
        placed = (kept + fresh)[: chosen.count]
        if len(placed) < chosen.count:
            return None
        return self._book.recut(layout, place, chosen, placed)
