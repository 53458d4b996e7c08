"""Starts: first layouts of a search, from costs that add up.

Of whole tables, of tables cut until none exceeds a rank's share, of what is
left when small tables stand on every rank, and what the balanced sharder thinks
of. Plans with steps inside hosts are judged, but not walked from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import numpy as np

from embeddings.balanced import iter_balanced_plans
from embeddings.plan import ShardingPlan
from perfmodel.planning.assignment import Pieces, assign
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.layout import COPIED, WHOLE, Cut, LayoutBook, PlanLayout, split_table

SPLIT_SHARES = (np.inf, 1.0, 0.5)
"""Shares of a rank above which tables are cut."""
COPIED_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the tables that seem worth it that stand on every rank."""
BALANCED_PLANS = 48
"""Plans of the balanced sharder that are looked at, some of them with steps inside hosts."""
MIN_WIDTH = 32


class SearchStarts:
    """First layouts for the task of *book*, with costs from *evaluator*."""

    def __init__(self, evaluator: PlanEvaluator, book: LayoutBook) -> None:
        self._evaluator = evaluator
        self._book = book
        self._tables = book.task.tables
        wholes = [split_table(place, table, WHOLE)[0] for place, table in enumerate(self._tables)]
        self._alone = evaluator.pieces_alone(self._tables, wholes)
        self._bytes = evaluator.pieces_bytes(self._tables, wholes)
        self._balanced = iter_balanced_plans(book.task)
        self._stepped: list[ShardingPlan] = []

    def build(self, seconds: float) -> list[PlanLayout]:
        """All of them; each of the first three may take *seconds*, as may the balanced ones."""
        found = [self._start(self._cuts(share), seconds) for share in SPLIT_SHARES]
        worth = self.worth_copying()
        for share in COPIED_SHARES:
            copied = set(worth[: round(share * len(worth))])
            if copied and len(copied) < len(self._tables):
                cuts = self._cuts(1.0)
                chosen = [COPIED if place in copied else cut for place, cut in enumerate(cuts)]
                found.append(self._start(chosen, 0.0))
        end_s = time.monotonic() + seconds
        for plan in islice(self._balanced, BALANCED_PLANS):
            if plan.summed_in_host:
                self._stepped.append(plan)
            else:
                found.append(self._book.from_plan(plan))
            if time.monotonic() >= end_s:
                break
        return [layout for layout in found if layout is not None]

    def iter_stepped(self) -> Iterator[ShardingPlan]:
        """Plans that sum vectors inside hosts, the most promising first; after `build`."""
        yield from self._stepped
        yield from (plan for plan in self._balanced if plan.summed_in_host)

    def worth_copying(self) -> list[int]:
        """Tables that seem to cost less on every rank than spread evenly, most gain first."""
        pricer = self._evaluator.pricer
        widths = np.array([table.width for table in self._tables])
        spread = (self._alone.total_ns + pricer.width_ns * widths) / self._book.task.rank_count
        gains = spread - pricer.copied_ns(self._tables)
        return [int(place) for place in np.argsort(-gains, kind="stable") if gains[place] > 0]

    def _cuts(self, share: float) -> list[Cut]:
        """Columns halved until no table exceeds *share* of a rank, rows until all fit."""
        task = self._book.task
        costs = self._alone.total_ns
        limit = share * float(costs.sum()) / task.rank_count
        found = []
        for place, table in enumerate(self._tables):
            columns = 1
            while costs[place] / columns > limit and table.width // (2 * columns) >= MIN_WIDTH:
                if table.width % (8 * columns) or 2 * columns > task.rank_count:
                    break
                columns *= 2
            rows = 1
            size = int(self._bytes[place]) / columns
            while size / rows > task.room_bytes / 2 and rows < task.rank_count:
                rows *= 2
            found.append(Cut(columns, min(rows, table.rows)))
        return found

    def _start(self, cuts: list[Cut], seconds: float) -> PlanLayout | None:
        shards = [
            shard
            for place, cut in enumerate(cuts)
            for shard in split_table(place, self._tables[place], cut)
        ]
        pieces = Pieces(
            costs=self._evaluator.pieces_alone(self._tables, shards),
            widths=np.array([float(shard.width) for shard in shards]),
            memory_bytes=self._evaluator.pieces_bytes(self._tables, shards).astype(np.float64),
            width_ns=self._evaluator.pricer.width_ns,
            room_bytes=float(self._book.task.room_bytes),
        )
        ranks = assign(pieces, rank_count=self._book.task.rank_count, seconds=seconds)
        return None if ranks is None else self._book.build(cuts, ranks.tolist())
