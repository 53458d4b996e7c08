"""Search: the fastest plan that can be found with a given amount of work.

It starts from the named sharders, from the candidates of the balanced one and from assignments by
additive costs. Then it moves, swaps and cuts pieces of the busiest ranks (simulated annealing),
only to where constraints of tables and the framework allow. The objective is always the replayed
iteration time, never a proxy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import ShardingKind, ShardingPlan
from embeddings.sharders import ShardingTask
from perfmodel.base.errors import PlanError
from perfmodel.planning.starts import SearchStarts
from perfmodel.prediction.plans.evaluator import PlanEvaluator, has_steps
from perfmodel.prediction.plans.layout import COPIED, WHOLE, Cut, LayoutBook, PlanLayout
from perfmodel.prediction.plans.plan_costs import Floats
from perfmodel.prediction.scenario import Mode

ROUND = 32
"""Neighbours evaluated together."""
PLANS_A_FRAME = 400
"""Plans evaluated before another set of copied tables may build a frame."""
WARMTH = 1e-3
"""Initial temperature as a share of the iteration time; it falls to zero."""
FARTHEST = 3
"""Largest distance from the best plan, in initial temperatures."""
ANNEALINGS = 3
"""Number of times the temperature rises again."""
ENDLESS = int(np.iinfo(np.int64).max)
START_SHARE = 0.06
"""Pieces of the balanced plans to start from, over those of all plans to judge."""
STEPPED_SHARE = 0.4
"""Share of the work after which no further plan with steps inside hosts is evaluated."""
MOST_PIECES = 100_000
"""Larger plans are not used as starts once some plan fits: they take too long."""
FINE = 1e-2
"""Weight of the longest parts, added to the iteration time.

If something else bounds the iteration, plans tie. Shorter parts break the tie and lead off the
plateau.
"""


NEAR = 6
"""Number of busiest and of least busy ranks that steps use."""
MOVE, SWAP, TRADE = 0.3, 0.7, 0.8
"""Cumulative shares of steps: a piece moves, one swaps with one, two with one; the rest cut."""
COPIED_BYTES = 2**24
"""Tables up to this size may be copied to every rank."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best plan found, its time and memory, and the number of plans evaluated."""

    plan: ShardingPlan
    time_ns: int
    peak_bytes: int
    plans_judged: int


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A layout and its score."""

    layout: PlanLayout
    score: float


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
            of_rank.setdefault(rank, []).append(number)
        found: list[PlanLayout] = []
        for _ in range(4 * count):
            changed, places = self._step(layout, of_rank, table_of)
            if places and all(self._book.allows(changed, place) for place in places):
                found.append(changed)
            if len(found) >= count:
                break
        return found

    def copy_steps(self, layout: PlanLayout) -> list[PlanLayout]:
        """Copy one more small table to every rank, one less, or replace one."""
        kinds_of = self._book.task.kinds_of
        small = [
            place
            for place, table in enumerate(self._tables)
            if table.size_bytes <= COPIED_BYTES and layout.cuts[place] != COPIED
            if not table.ranks and ShardingKind.DATA_PARALLEL in kinds_of(table)
        ]
        removed = layout
        if layout.copied and (not small or self._random.random() < 0.5):
            place = self._random.choice(layout.copied)
            removed = self._book.recut(layout, place, WHOLE, [self._random.choice(self._least)])
            if not self._book.allows(removed, place):
                return []
            if self._random.random() < 0.5 or not small:
                return [removed]
        if not small:
            return []
        changed = self._book.recut(removed, self._random.choice(small), COPIED, [])
        return [changed] if len(changed.rank) else []

    def _step(
        self, layout: PlanLayout, of_rank: dict[int, list[int]], table_of: list[int]
    ) -> tuple[PlanLayout, set[int]]:
        """A step from *layout*, and the tables that it changes; none if it leads nowhere."""
        source = self._random.choice(self._busiest)
        target = self._random.choice(self._least)
        mine, others = of_rank.get(source), of_rank.get(target)
        if source == target or not mine:
            return layout, set()
        number = self._random.choice(mine)
        draw = self._random.random()
        if draw >= TRADE:
            return self._recut(layout, table_of[number])
        rank, moved = layout.rank.copy(), [number]
        rank[number] = target
        if draw >= MOVE:
            if not others:
                return layout, set()
            moved.append(self._random.choice(others))
            rank[moved[-1]] = source
            if draw >= SWAP and len(mine) > 1:
                moved.append(self._random.choice(mine))
                rank[moved[-1]] = target
        return replace(layout, rank=rank), {table_of[one] for one in moved}

    def _recut(self, layout: PlanLayout, place: int) -> tuple[PlanLayout, set[int]]:
        """More or fewer pieces by rows or columns, on the least busy ranks."""
        table, cut = self._tables[place], layout.cuts[place]
        most, narrowest = self._book.task.rank_count, self._book.task.min_width
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
            return layout, set()
        if chosen.columns > 1 and (
            table.width % (4 * chosen.columns) or table.width // chosen.columns < narrowest
        ):
            return layout, set()
        kept = list(dict.fromkeys(layout.ranks_of(place)))
        fresh = [rank for rank in self._least if rank not in kept]
        self._random.shuffle(fresh)
        placed = (kept + fresh)[: chosen.count] if chosen.rows < most else list(range(most))
        if len(placed) < chosen.count:
            return layout, set()
        return self._book.recut(layout, place, chosen, placed), {place}


class PlanSearch:
    """Searches the plan of *task* that is fastest in *mode*, measured by *evaluator*."""

    def __init__(
        self, evaluator: PlanEvaluator, task: ShardingTask, *, mode: Mode, seed: int
    ) -> None:
        self._evaluator = evaluator
        self._task = task
        self._mode = mode
        self._random = random.Random(seed)
        self._book = LayoutBook(task, evaluator.catalog)
        self._judged = self._work = 0
        self._frames = 0

    def run(self, starts: Sequence[ShardingPlan], most: int) -> SearchOutcome:
        """The best plan found from *starts* and from the search's own start layouts.

        It takes the work of judging *most* plans, so it gives the same plan on a busy machine.
        """
        first = SearchStarts(self._evaluator, self._book)
        made = first.build(START_SHARE * most * len(self._task.tables))
        best = self._best(made) if made else None
        # Plans with irregular pieces or steps inside hosts compete, but no walk starts from them.
        apart: list[SearchOutcome] = []
        for plan in sorted(starts, key=lambda plan: len(plan.shards)):
            is_found = best is not None and math.isfinite(best.score)
            if is_found and len(plan.shards) > MOST_PIECES:
                break
            layout = self._book.from_plan(plan)
            if layout is None or has_steps(plan):
                apart.append(self._judge(plan))
            if layout is not None:
                judged = self._best([layout])
                best = judged if best is None or judged.score < best.score else best
        stepped = first.iter_stepped()
        while self._work < STEPPED_SHARE * most and (candidate := next(stepped, None)):
            apart.append(self._judge(candidate))
            # Such a plan is replayed whole.
            self._work += PLANS_A_FRAME
        best = None if best is None else self._anneal(best, most)
        return self._outcome(best, apart)

    def _anneal(self, best: Judged, most: int) -> Judged:
        """The best layout on a walk from *best* whose temperature falls."""
        current = best
        while (done := self._work / max(most, 1)) < 1:
            warmth = WARMTH * (1 - (done * ANNEALINGS) % 1) ** 2 * (1 - done)
            found = self._next(current)
            if found is None:
                break
            worse = found.score / current.score - 1
            if worse < 0 or (warmth > 0 and self._random.random() < math.exp(-worse / warmth)):
                current = found
            if current.score < best.score:
                best = current
            elif current.score > best.score * (1 + FARTHEST * WARMTH):
                current = best
        return best

    def _outcome(self, best: Judged | None, apart: Sequence[SearchOutcome]) -> SearchOutcome:
        """The faster of the plan of *best* and those *apart*."""
        own = [] if best is None else [self._judge(self._book.to_plan(best.layout, "searched"))]
        found = min([*own, *apart], key=lambda outcome: (outcome.time_ns, outcome.peak_bytes))
        if found.time_ns == ENDLESS:
            raise PlanError(
                "search: no plan was found that fits in the memory of "
                f"{self._task.rank_count} ranks. Use more ranks or host memory."
            )
        return replace(found, plan=replace(found.plan, name="searched"), plans_judged=self._judged)

    def _judge(self, plan: ShardingPlan) -> SearchOutcome:
        """Evaluate any plan; its time is ENDLESS if it does not fit."""
        self._judged += 1
        self._work += 1
        found = self._evaluator.measure([plan])
        is_small = found.peak_bytes[0] <= self._evaluator.cluster.device.memory_bytes
        time_ns = int(found.time_ns(self._mode)[0]) if is_small else ENDLESS
        return SearchOutcome(plan, time_ns, int(found.peak_bytes[0]), self._judged)

    def _next(self, current: Judged) -> Judged | None:
        """The best of a round of neighbours."""
        self._work += 1
        own_ns = self._evaluator.price([current.layout]).own_ns[0]
        neighbours = Neighbourhood(self._book, self._random, own_ns)
        options = neighbours.propose(current.layout, ROUND)
        for option in neighbours.copy_steps(current.layout):
            is_known = self._evaluator.knows(option)
            if is_known or self._frames * PLANS_A_FRAME <= self._judged:
                self._frames += not is_known
                options.append(option)
        return self._best(options) if options else None

    def _best(self, layouts: Sequence[PlanLayout]) -> Judged:
        scores = self._score(layouts)
        place = int(np.argmin(scores))
        return Judged(layouts[place], float(scores[place]))

    def _score(self, layouts: Sequence[PlanLayout]) -> Floats:
        """Iteration time plus the weighted longest parts; infinite if a layout does not fit."""
        self._judged += len(layouts)
        self._work += len(layouts)
        found = self._evaluator.measure_columns(
            layouts, lambda place: self._book.to_plan(layouts[place], "layout")
        )
        score = found.time_ns(self._mode) + FINE * found.busiest_ns
        room = self._evaluator.cluster.device.memory_bytes
        return np.where(found.peak_bytes <= room, score, np.inf)
