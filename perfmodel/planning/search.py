"""Search: the fastest plan that can be found in a given time.

It starts from the named sharders and from an assignment by costs that add up,
then moves, swaps and splits pieces of the busiest ranks and keeps what makes
the replayed iteration shorter. Every plan is judged by the evaluator, none by
a stand-in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.sharders import ShardingTask
from perfmodel.base.errors import PlanError
from perfmodel.planning.assignment import Floats, Int64s, Pieces, assign
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.neighbours import Busy, Neighbourhood, split_table
from perfmodel.prediction.scenario import Mode

ROUND = 32
"""Neighbours judged together."""
PATIENCE = 12
"""Rounds without gain after which the search is shaken up."""
SHAKES = 4
START_SHARE = 0.07
"""Share of the time that each of the three first assignments may take."""
SPLIT_SHARES = (np.inf, 1.0, 0.5)
"""Shares of a rank above which tables are split in the first assignments."""
COPIED_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the tables that seem worth it that stand on every rank in further ones."""
FINE = 1e-3
"""Weight of the busiest rank's own time beside the iteration time.

Where something else bounds the iteration, plans tie; a shorter straggler
breaks the tie and leads off the plateau.
"""


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """When to stop: after so many seconds, or so many plans, whichever comes first."""

    seconds: float
    plans: int = 10**9


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best plan found, its time, and how many plans were judged."""

    plan: ShardingPlan
    time_ns: int
    plans_judged: int


class PlanSearch:
    """Searches plans for *task* that *evaluator* finds fast in *mode*."""

    def __init__(
        self, evaluator: PlanEvaluator, task: ShardingTask, *, mode: Mode, seed: int
    ) -> None:
        self._evaluator = evaluator
        self._task = task
        self._mode = mode
        self._random = random.Random(seed)
        self._judged = 0

    def run(self, starts: Sequence[ShardingPlan], limit: SearchLimit) -> SearchOutcome:
        """The best plan from *starts* and from what is built here."""
        until = time.monotonic() + limit.seconds
        candidates = [*starts, *self._own_starts(START_SHARE * limit.seconds)]
        scores = self._score(candidates)
        place = int(np.argmin(scores))
        best, best_score = candidates[place], float(scores[place])
        current, score, idle = best, best_score, 0
        while time.monotonic() < until and self._judged < limit.plans:
            neighbours = Neighbourhood(self._task, self._random, self._busy(current))
            options = neighbours.propose(current, ROUND)
            if not options:
                break
            scores = self._score(options)
            place = int(np.argmin(scores))
            if scores[place] < score:
                current, score, idle = options[place], float(scores[place]), 0
            else:
                idle += 1
            if score < best_score:
                best, best_score = current, score
            if idle >= PATIENCE:
                current, idle = self._shake(best), 0
                score = float(self._score([current])[0])
        if not np.isfinite(best_score):
            raise PlanError(
                "search: no plan was found that fits in the memory of "
                f"{self._task.rank_count} ranks. Take more ranks or host memory."
            )
        found = self._evaluator.measure([best]).time_ns(self._mode)
        return SearchOutcome(replace(best, name="searched"), int(found[0]), self._judged)

    def _score(self, plans: Sequence[ShardingPlan]) -> Floats:
        """Iteration time, with a little of the busiest rank's own time; endless if too big."""
        self._judged += len(plans)
        found = self._evaluator.measure(plans)
        score = found.time_ns(self._mode) + FINE * found.busiest_ns
        room = self._evaluator.cluster.device.memory_bytes
        return np.where(found.peak_bytes <= room, score, np.inf)

    def _busy(self, plan: ShardingPlan) -> Busy:
        priced = self._evaluator.price([plan])
        return Busy(priced.own_ns[0])

    def _shake(self, plan: ShardingPlan) -> ShardingPlan:
        for _ in range(SHAKES):
            neighbours = Neighbourhood(self._task, self._random, self._busy(plan))
            options = neighbours.propose(plan, 1)
            plan = options[0] if options else plan
        return plan

    def _own_starts(self, seconds: float) -> list[ShardingPlan]:
        """First plans from costs that add up.

        Of whole tables, of tables split until none exceeds a rank's share, and
        of what is left when small tables stand on every rank.
        """
        plans = [self._start(self._pieces(share), (), seconds) for share in SPLIT_SHARES]
        worth = self._worth_copying()
        for share in COPIED_SHARES:
            copied = tuple(sorted(worth[: round(share * len(worth))]))
            if copied and len(copied) < len(self._task.tables):
                rest = [shard for shard in self._pieces(1.0) if shard.table not in copied]
                plans.append(self._start(rest, copied, 0.0))
        return [plan for plan in plans if plan is not None]

    def _worth_copying(self) -> list[int]:
        """Tables that seem to cost less on every rank than spread evenly, most gain first."""
        tables, pricer = self._task.tables, self._evaluator.pricer
        wholes = [split_table(place, table, 1, 1)[0] for place, table in enumerate(tables)]
        alone = self._evaluator.pieces_ns(tables, wholes)
        widths = np.array([table.width for table in tables])
        spread = (alone + pricer.width_ns * widths) / self._task.rank_count
        gains = spread - np.array([pricer.copied_ns(table) for table in tables])
        return [int(place) for place in np.argsort(-gains, kind="stable") if gains[place] > 0]

    def _start(
        self, shards: Sequence[Shard], copied: tuple[int, ...], seconds: float
    ) -> ShardingPlan | None:
        found = self._assign(shards, seconds)
        if found is None:
            return None
        placed = [replace(shard, rank=int(rank)) for shard, rank in zip(shards, found, strict=True)]
        return ShardingPlan(
            tables=self._task.tables,
            rank_count=self._task.rank_count,
            shards=tuple(sorted(placed)),
            data_parallel=copied,
            name="assigned",
            ranks_per_host=self._task.ranks_per_host,
        )

    def _pieces(self, share: float) -> list[Shard]:
        tables = self._task.tables
        wholes = [split_table(place, table, 1, 1)[0] for place, table in enumerate(tables)]
        costs = self._evaluator.pieces_ns(tables, wholes)
        sizes = self._evaluator.pieces_bytes(tables, wholes)
        limit = share * float(costs.sum()) / self._task.rank_count
        shards: list[Shard] = []
        for place, table in enumerate(tables):
            columns = 1
            while costs[place] / columns > limit and table.width // (2 * columns) >= 32:
                if table.width % (8 * columns) or 2 * columns > self._task.rank_count:
                    break
                columns *= 2
            rows = 1
            size = int(sizes[place]) / columns
            while size / rows > self._task.room_bytes / 2 and rows < self._task.rank_count:
                rows *= 2
            shards += split_table(place, table, columns, min(rows, table.rows))
        return shards

    def _assign(self, shards: Sequence[Shard], seconds: float) -> Int64s | None:
        tables = self._task.tables
        pieces = Pieces(
            cost_ns=self._evaluator.pieces_ns(tables, shards),
            widths=np.array([float(shard.width) for shard in shards]),
            memory_bytes=self._evaluator.pieces_bytes(tables, shards).astype(np.float64),
            width_ns=self._evaluator.pricer.width_ns,
            room_bytes=float(self._task.room_bytes),
        )
        return assign(pieces, rank_count=self._task.rank_count, seconds=seconds)
