"""Starts: the first layouts of a plan search, from costs that add up.

They are: whole tables, tables cut until none exceeds a rank's share, small tables copied to every
rank, and the plans that the balanced sharder considers. Plans that sum inside hosts are judged,
but the search does not continue from them.

Pieces are assigned to ranks greedily, by the sum of lookup, update and exchange. The search judges
the result by the replayed time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddings.balanced import iter_balanced_plans
from embeddings.plan import ShardingKind, ShardingPlan
from embeddings.sharding_task import NOWHERE, Placer, Rule
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.plans.layout import COPIED, WHOLE, Cut, LayoutBook, PlanLayout
from perfmodel.prediction.plans.plan_costs import AloneCosts, Floats

Int64s = NDArray[np.int64]

SPLIT_SHARES = (np.inf, 1.0, 0.5)
"""Shares of a rank above which tables are cut."""
COPIED_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the tables worth copying that are copied to every rank."""
BALANCED_PLANS = 48
"""Plans of the balanced sharder to look at; some of them sum inside hosts."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces to place: costs, exchanged width and memory of each.

    *width_ns* is the cost per unit of width, so that all costs add up.
    """

    costs: AloneCosts
    widths: Floats
    memory_bytes: Floats
    width_ns: float
    room_bytes: float

    @property
    def parts_ns(self) -> Floats:
        """Lookup, update and exchange of every piece, parts x pieces; tails aside."""
        return np.stack([self.costs.lookup_ns, self.costs.update_ns, self.width_ns * self.widths])


def assign_greedily(pieces: Pieces, *, rank_count: int) -> Int64s | None:
    """Most expensive piece first, to the least loaded rank with room; None if some do not fit."""
    total = pieces.parts_ns.sum(axis=0) + pieces.costs.tail_ns
    placer = Placer(rank_count, pieces.room_bytes, Rule.LEAST_WORK)
    ranks = placer.place(np.argsort(-total, kind="stable"), pieces.memory_bytes, total)
    return None if (ranks == NOWHERE).any() else ranks


class SearchStarts:
    """First layouts for the task of *book*, with costs from *evaluator*."""

    def __init__(self, evaluator: PlanEvaluator, book: LayoutBook) -> None:
        self._evaluator = evaluator
        self._book = book
        self._tables = book.task.tables
        wholes = book.split([WHOLE] * len(self._tables))
        self._alone = evaluator.pieces_alone(self._tables, wholes)
        self._bytes = evaluator.pieces_bytes(self._tables, wholes)
        self._balanced = iter_balanced_plans(book.task)
        self._stepped: list[ShardingPlan] = []

    def build(self, most_pieces: float) -> list[PlanLayout]:
        """All first layouts; those of the balanced sharder may have *most_pieces* together."""
        found = [self._start(self._cuts(share)) for share in SPLIT_SHARES]
        worth = self.worth_copying()
        for share in COPIED_SHARES:
            copied = set(worth[: round(share * len(worth))])
            if copied and len(copied) < len(self._tables):
                cuts = self._cuts(1.0)
                chosen = [COPIED if place in copied else cut for place, cut in enumerate(cuts)]
                found.append(self._start(chosen))
        pieces = 0
        for plan in islice(self._balanced, BALANCED_PLANS):
            if plan.summed_in_host:
                self._stepped.append(plan)
            else:
                found.append(self._book.from_plan(plan))
            pieces += len(plan.shards)
            if pieces >= most_pieces:
                break
        return [layout for layout in found if layout is not None]

    def iter_stepped(self) -> Iterator[ShardingPlan]:
        """Plans that sum vectors inside hosts, the most promising first; after `build`."""
        yield from self._stepped
        yield from (plan for plan in self._balanced if plan.summed_in_host)

    def worth_copying(self) -> list[int]:
        """Tables that cost less copied to every rank than spread evenly, largest gain first."""
        pricer = self._evaluator.pricer
        widths = np.array([table.width for table in self._tables])
        spread = (self._alone.total_ns + pricer.width_ns * widths) / self._book.task.rank_count
        gains = spread - pricer.copied_ns(self._tables)
        return [
            int(place)
            for place in np.argsort(-gains, kind="stable")
            if gains[place] > 0
            and ShardingKind.DATA_PARALLEL in self._book.task.kinds_of(self._tables[place])
        ]

    def _cuts(self, share: float) -> list[Cut]:
        """Columns halved until no table exceeds *share* of a rank, rows until all fit."""
        task = self._book.task
        costs = self._alone.total_ns
        limit = share * float(costs.sum()) / task.rank_count
        found = []
        for place, table in enumerate(self._tables):
            columns, kinds = 1, task.kinds_of(table)
            may_columns = ShardingKind.COLUMN_WISE in kinds
            narrowest = task.min_width if may_columns else table.width
            while costs[place] / columns > limit and table.width // (2 * columns) >= narrowest:
                if table.width % (8 * columns) or 2 * columns > task.rank_count:
                    break
                columns *= 2
            rows = 1
            size = int(self._bytes[place]) / columns
            while size / rows > task.room_bytes / 2 and rows < task.rank_count:
                rows *= 2
            if rows > 1 and task.splits_evenly:
                columns, rows = 1, task.rank_count
            is_divided = (ShardingKind.GRID if columns > 1 else ShardingKind.ROW_WISE) in kinds
            found.append(Cut(columns, min(rows, table.rows) if is_divided else 1))
        return found

    def _start(self, cuts: list[Cut]) -> PlanLayout | None:
        shards = self._book.split(cuts)
        pieces = Pieces(
            costs=self._evaluator.pieces_alone(self._tables, shards),
            widths=np.array([float(shard.width) for shard in shards]),
            memory_bytes=self._evaluator.pieces_bytes(self._tables, shards).astype(np.float64),
            width_ns=self._evaluator.pricer.width_ns,
            room_bytes=float(self._book.task.room_bytes),
        )
        ranks = assign_greedily(pieces, rank_count=self._book.task.rank_count)
        if ranks is None:
            return None
        # As a plan it keeps the constraints of tables.
        layout = self._book.build(cuts, ranks.tolist())
        return self._book.from_plan(self._book.to_plan(layout, "start"))
