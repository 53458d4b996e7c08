"""Neighbours: layouts one step away, made where they promise most.

Steps take from the ranks that are busiest in one part (lookup, update or
exchange) and give to others: a piece moves, pieces swap, a table is cut by rows
or columns or put together again, or stands on every rank.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from perfmodel.planning.layout import COPIED, WHOLE, Cut, LayoutBook, PlanLayout
from perfmodel.planning.plan_costs import Floats

NEAR = 6
"""How many of the busiest and of the least busy ranks take part in steps."""
MIN_WIDTH = 16
MOVE, SWAP, TRADE = 0.3, 0.7, 0.8
"""Shares of steps, added up: a piece moves, one swaps with one, two with one; others cut."""
COPIED_BYTES = 2**24
"""Tables up to this size may be put on every rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Busy:
    """Nanoseconds of every rank in every part of its own work, parts x ranks."""

    own_ns: Floats


class Neighbourhood:
    """Steps from a layout whose ranks are as *busy* as said."""

    def __init__(self, book: LayoutBook, chance: random.Random, busy: Busy) -> None:
        self._book = book
        self._tables = book.task.tables
        self._random = chance
        total = busy.own_ns.sum(axis=0)
        near = min(NEAR, max(1, len(total) // 2))
        order = np.argsort(-total, kind="stable").tolist()
        # Whoever is last in a part holds up all others there.
        leaders = [int(part.argmax()) for part in busy.own_ns]
        self._busiest = [*leaders, *order[:near]]
        self._least = order[::-1][: 2 * near]

    def propose(self, layout: PlanLayout, count: int) -> list[PlanLayout]:
        """Up to *count* layouts one step from *layout*."""
        table_of = np.repeat(np.arange(len(layout.cuts)), np.diff(layout.start)).tolist()
        of_rank: dict[int, list[int]] = {}
        for number, rank in enumerate(layout.rank.tolist()):
            of_rank.setdefault(rank, []).append(number)
        found: list[PlanLayout] = []
        for _ in range(4 * count):
            changed = self._step(layout, of_rank, table_of)
            found += [] if changed is None else [changed]
            if len(found) >= count:
                break
        return found

    def copy_steps(self, layout: PlanLayout) -> list[PlanLayout]:
        """A small table more, one less, or one for another on every rank."""
        small = [
            place
            for place, table in enumerate(self._tables)
            if table.size_bytes <= COPIED_BYTES and layout.cuts[place] != COPIED
        ]
        removed = layout
        if layout.copied and (not small or self._random.random() < 0.5):
            place = self._random.choice(layout.copied)
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
        return layout.with_ranks(rank)

    def _recut(self, layout: PlanLayout, place: int) -> PlanLayout | None:
        """More or fewer pieces by rows or columns, on ranks with little to do."""
        table, cut = self._tables[place], layout.cuts[place]
        most = self._book.task.rank_count
        options = [
            Cut(cut.columns, cut.rows + 1),
            Cut(cut.columns, cut.rows - 1),
            Cut(2 * cut.columns, cut.rows),
            Cut(cut.columns // 2, cut.rows),
            WHOLE,
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
