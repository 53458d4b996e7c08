"""Search: the fastest plan that can be found in a given time.

It starts from the named sharders, from the candidates of the balanced one and from assignments by
additive costs. Then it moves, swaps and cuts pieces of the busiest ranks (simulated annealing). The
objective is always the replayed iteration time, never a proxy.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.sharders import ShardingTask
from perfmodel.base.errors import PlanError
from perfmodel.planning.layout import LayoutBook, Neighbourhood, PlanLayout
from perfmodel.planning.starts import SearchStarts
from perfmodel.prediction.plans.evaluator import PlanEvaluator, has_steps
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
"""Share of the time that each first assignment may take."""
STEPPED_SHARE = 0.4
"""Share of the time after which no further plan with steps inside hosts is evaluated."""
MOST_PIECES = 100_000
"""Larger plans are not used as starts once some plan fits: they take too long."""
FINE = 1e-2
"""Weight of the longest parts, added to the iteration time.

If something else bounds the iteration, plans tie. Shorter parts break the tie and lead off the
plateau.
"""


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """Stop after this many seconds or plans, whichever comes first."""

    seconds: float
    plans: int | None = None


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best plan found, its time, and the number of plans evaluated."""

    plan: ShardingPlan
    time_ns: int
    plans_judged: int


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A layout and its score."""

    layout: PlanLayout
    score: float


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
        self._judged = 0
        self._frames = 0

    def run(self, starts: Sequence[ShardingPlan], limit: SearchLimit) -> SearchOutcome:
        """The best plan found from *starts* and from the search's own start layouts."""
        begin = time.monotonic()
        first = SearchStarts(self._evaluator, self._book)
        made = first.build(START_SHARE * limit.seconds)
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
        while self._share_done(begin, limit) < STEPPED_SHARE and (candidate := next(stepped, None)):
            apart.append(self._judge(candidate))
        best = None if best is None else self._anneal(best, begin, limit)
        return self._outcome(best, apart)

    def _anneal(self, best: Judged, begin: float, limit: SearchLimit) -> Judged:
        """The best layout on a walk from *best* whose temperature falls."""
        current = best
        while (done := self._share_done(begin, limit)) < 1:
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
        found = min([*own, *apart], key=lambda outcome: outcome.time_ns)
        if found.time_ns == ENDLESS:
            raise PlanError(
                "search: no plan was found that fits in the memory of "
                f"{self._task.rank_count} ranks. Use more ranks or host memory."
            )
        return replace(found, plan=replace(found.plan, name="searched"), plans_judged=self._judged)

    def _judge(self, plan: ShardingPlan) -> SearchOutcome:
        """Evaluate any plan; its time is ENDLESS if it does not fit."""
        self._judged += 1
        found = self._evaluator.measure([plan])
        is_small = found.peak_bytes[0] <= self._evaluator.cluster.device.memory_bytes
        time_ns = int(found.time_ns(self._mode)[0]) if is_small else ENDLESS
        return SearchOutcome(plan, time_ns, self._judged)

    def _share_done(self, begin: float, limit: SearchLimit) -> float:
        """Share of the limit that is used; counts plans if they are limited."""
        used = (time.monotonic() - begin) / limit.seconds if limit.seconds > 0 else 1.0
        if limit.plans is None or used >= 1:
            return used
        return self._judged / limit.plans

    def _next(self, current: Judged) -> Judged | None:
        """The best of a round of neighbours."""
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
        found = self._evaluator.measure_columns(
            layouts, lambda place: self._book.to_plan(layouts[place], "layout")
        )
        score = found.time_ns(self._mode) + FINE * found.busiest_ns
        room = self._evaluator.cluster.device.memory_bytes
        return np.where(found.peak_bytes <= room, score, np.inf)
