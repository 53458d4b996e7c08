"""Search: the fastest plan that can be found in a given time.

It starts from the named sharders, from what the balanced one thinks of and from
assignments by costs that add up, then moves, swaps and cuts pieces of the busiest
ranks. A step is kept if it makes the replayed iteration shorter, and early on now
and then if it does not (annealing). Every plan is judged by the evaluator, none
by a stand-in.
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
from perfmodel.planning.evaluator import FrameKey, PlanEvaluator, has_steps
from perfmodel.planning.layout import LayoutBook, PlanLayout
from perfmodel.planning.neighbours import Busy, Neighbourhood
from perfmodel.planning.plan_costs import Floats
from perfmodel.planning.starts import SearchStarts
from perfmodel.prediction.scenario import Mode

ROUND = 32
"""Neighbours judged together."""
PLANS_A_FRAME = 400
"""Plans judged before another set of copied tables may ask for a frame of its own."""
WARMTH = 1e-3
"""Share of the time by which a step may be worse at first; it falls to nothing."""
FARTHEST = 3
"""How many times that share it may stray from the best plan."""
ANNEALINGS = 3
"""How often it warms up again."""
ENDLESS = int(np.iinfo(np.int64).max)
START_SHARE = 0.06
"""Share of the time that each first assignment may take."""
STEPPED_SHARE = 0.4
"""Share of the time by which no further plan with steps inside hosts is begun."""
MOST_PIECES = 100_000
"""Pieces up to which a plan is started from where another one fits: more take too long."""
FINE = 1e-2
"""Weight of what the busiest ranks take for their parts beside the iteration time.

Where something else bounds the iteration, plans tie; shorter parts break the
tie and lead off the plateau.
"""


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """When to stop: after so many seconds, or so many plans, whichever comes first."""

    seconds: float
    plans: int | None = None


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best plan found, its time, and how many plans were judged."""

    plan: ShardingPlan
    time_ns: int
    plans_judged: int


@dataclass(frozen=True, slots=True, eq=False)
class _Judged:
    """A layout and its score."""

    layout: PlanLayout
    score: float


class PlanSearch:
    """Searches plans for *task* that *evaluator* finds fast in *mode*."""

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
        """The best plan from *starts* and from what is built here."""
        begin = time.monotonic()
        first = SearchStarts(self._evaluator, self._book)
        made = first.build(START_SHARE * limit.seconds)
        best = self._best(made) if made else None
        # Of uneven pieces and steps inside hosts the fastest counts, but no walk begins there.
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

    def _anneal(self, best: _Judged, begin: float, limit: SearchLimit) -> _Judged:
        """The best layout on a walk from *best* that gets stricter with time."""
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

    def _outcome(self, best: _Judged | None, apart: Sequence[SearchOutcome]) -> SearchOutcome:
        """The plan of *best*, or one of those *apart* if that is faster."""
        own = [] if best is None else [self._judge(self._book.to_plan(best.layout, "searched"))]
        found = min([*own, *apart], key=lambda outcome: outcome.time_ns)
        if found.time_ns == ENDLESS:
            raise PlanError(
                "search: no plan was found that fits in the memory of "
                f"{self._task.rank_count} ranks. Take more ranks or host memory."
            )
        return replace(found, plan=replace(found.plan, name="searched"), plans_judged=self._judged)

    def _judge(self, plan: ShardingPlan) -> SearchOutcome:
        """One plan, whatever its pieces and steps; endless if it is too big."""
        self._judged += 1
        found = self._evaluator.measure([plan])
        is_small = found.peak_bytes[0] <= self._evaluator.cluster.device.memory_bytes
        time_ns = int(found.time_ns(self._mode)[0]) if is_small else ENDLESS
        return SearchOutcome(plan, time_ns, self._judged)

    def _share_done(self, begin: float, limit: SearchLimit) -> float:
        """How much of the limit is used; by plans alone where they are limited."""
        used = (time.monotonic() - begin) / limit.seconds if limit.seconds > 0 else 1.0
        if limit.plans is None or used >= 1:
            return used
        return self._judged / limit.plans

    def _next(self, current: _Judged) -> _Judged | None:
        """The best of a round of neighbours."""
        busy = Busy(self._own_ns(current.layout))
        neighbours = Neighbourhood(self._book, self._random, busy)
        options = neighbours.propose(current.layout, ROUND)
        for option in neighbours.copy_steps(current.layout):
            key = FrameKey(option.copied, option.partial_width > 0)
            if self._evaluator.knows(key) or self._frames * PLANS_A_FRAME <= self._judged:
                self._frames += not self._evaluator.knows(key)
                options.append(option)
        return self._best(options) if options else None

    def _best(self, layouts: Sequence[PlanLayout]) -> _Judged:
        scores = self._score(layouts)
        place = int(np.argmin(scores))
        return _Judged(layouts[place], float(scores[place]))

    def _score(self, layouts: Sequence[PlanLayout]) -> Floats:
        """Iteration time, with a little of the busiest ranks' own; endless if too big."""
        self._judged += len(layouts)
        found = self._evaluator.measure_layouts(self._book, layouts)
        score = found.time_ns(self._mode) + FINE * found.busiest_ns
        room = self._evaluator.cluster.device.memory_bytes
        return np.where(found.peak_bytes <= room, score, np.inf)

    def _own_ns(self, layout: PlanLayout) -> Floats:
        priced = self._evaluator.price_layout(layout)
        own: Floats = priced.own_ns[0]
        return own
