"""A lower bound of the replayed time over all plans of a task, piece kinds mixed at will.

Lookup, both exchanges and update lie on one way through the iteration, so no
plan is faster than the rest of that way and the least that they can take
together; nor faster than a replay with the least that each can take alone:

* Lookup and update of a rank are convex in sums over its pieces. Their tangent at the even share
  bounds them from below and adds up over tables; the busiest rank has at least the mean. Each table
  is in the kind that costs least: whole, by columns, by rows, both; wider exchanges are charged.
* Tails (the longest bag) do not add up; a rank waits for the longest it holds. Tables in order of
  their tails fill ranks one by one, and whoever does not fit any more gives the next rank its tail.
  The tables with the longest tails are cut by rows in all ways; the next are whole or cut, and then
  count with the tail of the finest and the width of the coarsest cut; others with that tail.
* Exchanges: the width of all tables, spread evenly.

Copied tables have a frame of their own: every single one is tried, then more while that helps.

Leaves out: that a rank of small tables alone may sort in fewer passes, that a rank with a single
piece has the L2 for itself, and copied tables that gain only in company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.sharders import ShardingTask
from perfmodel.costs.embedding_constants import constants_for
from perfmodel.costs.embedding_terms import (
    MILLI,
    Term,
    TermsSetting,
    most_tables_at_once,
    tables_terms,
)
from perfmodel.engine.condensed import evaluate_variants
from perfmodel.graph.ops import Pass
from perfmodel.prediction.plans.evaluator import HOLDER, PlanEvaluator
from perfmodel.prediction.plans.layout import WHOLE, Cut, split_table
from perfmodel.prediction.plans.placements import PlanColumns, RankLoads
from perfmodel.prediction.plans.plan_costs import GRADIENTS, LOOKUP, POOLED, UPDATE

COLUMN_CUTS = (1, 2, 4, 8)
EXACT_TABLES, LOOSE_TABLES = 3, 3
"""Tables with the longest tails: those cut by rows in all ways, and the next, whole or cut."""
COPIED_BYTES = 2**24
ENDLESS_NS = 10**9
"""Longer than an iteration: whatever takes so long is on the way that decides."""
ANY_CUT, ALL_WAYS = -2, -1
"""Stand for the number of pieces by rows: two or more, and one or more."""
_PASSES = ((Pass.FORWARD,), (Pass.BACKWARD,), tuple(Pass))


@dataclass(frozen=True, slots=True)
class Bound:
    """No plan is faster than *time_ns*; *copied* are the tables on every rank that allow it."""

    time_ns: int
    copied: tuple[int, ...]


class Bounder:
    """Bounds plans of *task*."""

    def __init__(self, evaluator: PlanEvaluator, task: ShardingTask) -> None:
        self._evaluator = evaluator
        self._task = task
        self._ranks = task.rank_count
        device = evaluator.cluster.device
        self._levels = most_tables_at_once(device, evaluator.spec.batch)
        self._kinds = [self._kinds_of(place) for place in range(len(task.tables))]
        self._whole = np.array([kinds[WHOLE] for kinds in self._kinds])
        tail_ns = constants_for(device).tail_row_ns / MILLI
        self._tails = self._whole[:, Term.TAIL_ROWS] * tail_ns

    def bound(self) -> Bound:
        """Without copied tables, or with those that allow less."""
        best = self.bound_with(())
        small = [
            place
            for place, table in enumerate(self._task.tables)
            if table.size_bytes <= COPIED_BYTES
        ]
        while True:
            options = [
                self.bound_with((*best.copied, place), (0, LOOSE_TABLES))
                for place in small
                if place not in best.copied
            ]
            promising = [option for option in options if option.time_ns < best.time_ns]
            exact = [self.bound_with(option.copied) for option in promising]
            found = min(exact, key=lambda bound: bound.time_ns, default=best)
            if found.time_ns >= best.time_ns:
                return best
            best = found

    def bound_with(
        self,
        copied: tuple[int, ...],
        effort: tuple[int, int] = (EXACT_TABLES, LOOSE_TABLES),
    ) -> Bound:
        """The bound of plans in which *copied* stand on every rank.

        *effort* is how many tables are tried in all ways by rows, and in two.
        """
        kept = [place for place in range(len(self._task.tables)) if place not in copied]
        even = self._even(kept)
        mean = self._whole[kept].sum(axis=0) / self._ranks
        tangents = [_Tangent.at(self._evaluator, mean, directions) for directions in _PASSES]
        setting = _Setting(copied, kept, even, self._rest_ns(copied, even), self._least_width_ns())
        costs = [self._costs_by_rows(setting, tangent, charged) for tangent, charged in zip(
            tangents, (0.0, 0.0, setting.width_ns), strict=True
        )]  # fmt: skip
        longest = sorted(kept, key=lambda place: -self._tails[place])[: sum(effort)]
        ways = [range(1, self._ranks + 1)] * effort[0] + [(1, ANY_CUT)] * effort[1]
        found = [
            self._cut_bound_ns(setting, tangents, costs, dict(zip(longest, rows, strict=True)))
            for rows in product(*ways)
        ]
        return Bound(int(min(found)), copied)

    def _cut_bound_ns(
        self, setting: _Setting, tangents: list[_Tangent], costs: list[Any], cut: dict[int, int]
    ) -> float:
        """The bound when tables in *cut* have that many pieces by rows."""
        even = setting.even
        rows = np.array([cut.get(place, ALL_WAYS) for place in setting.kept])
        finest = np.where(rows <= ALL_WAYS, self._ranks, rows)
        tails = self._tails[setting.kept] / finest
        numbers = np.arange(len(rows))
        lookup, update, both = (
            tangent.rest_ns + self._busiest_ns(cost[numbers, rows], company)
            for tangent, cost, company in zip(
                tangents, costs, (tails, 0 * tails, tails), strict=True
            )
        )
        added = sum(
            (max(number, 2) - 1) * self._task.tables[place].width
            for place, number in cut.items()
            if number != 1
        )
        pooled = even[POOLED] + setting.width_ns * added / self._ranks / 2
        apart = {LOOKUP: lookup, UPDATE: update, POOLED: pooled, GRADIENTS: pooled}
        return max(
            setting.rest_ns + both + float(even[POOLED] + even[GRADIENTS]),
            self._replay_ns(setting.copied, even, apart),
        )

    def _even(self, kept: list[int]) -> Any:
        """Durations of a rank with an even share of everything, by column."""
        shape = (1, self._ranks)
        samples = self._evaluator.spec.batch // self._ranks
        tables = [self._task.tables[place] for place in kept]
        widths = np.full(shape, sum(table.width for table in tables) // self._ranks)
        loads = RankLoads(
            terms=np.zeros((*shape, len(Term)), dtype=np.int64),
            made_numbers=self._evaluator.spec.batch * widths,
            sent_numbers=samples * widths,
            index_counts=np.full(
                shape, int(sum(samples * table.pooling_factor for table in tables)) // self._ranks
            ),
            piece_counts=np.full(shape, len(kept) // self._ranks),
            memory_bytes=np.zeros(shape, dtype=np.int64),
        )
        pieces = np.zeros(0, dtype=np.int32)
        return self._evaluator.pricer.price([PlanColumns(pieces, pieces)], loads)[0, :, 0]

    def _rest_ns(self, copied: tuple[int, ...], even: Any) -> float:
        """What lies beside lookup, exchanges and update on the way through all of them."""
        parts = dict.fromkeys((LOOKUP, UPDATE, POOLED, GRADIENTS), float(ENDLESS_NS))
        return self._replay_ns(copied, even, parts) - sum(parts.values())

    def _replay_ns(self, copied: tuple[int, ...], even: Any, parts: Mapping[int, float]) -> float:
        """The iteration when every rank has *even* durations but for *parts*."""
        column = np.floor(even).astype(np.int64)
        for part, ns in parts.items():
            column[part] = int(ns)
        durations = np.repeat(column[None, :, None], self._ranks, axis=2)
        kinds = np.full((1, self._ranks), HOLDER, dtype=np.int8)
        frame = self._evaluator.frame(self._like(copied))
        return float(evaluate_variants(frame, kinds, durations).isolated_ns[0])

    def _least_width_ns(self) -> float:
        """The least that a further number of width costs in both exchanges, over all ranks."""
        pricer, tables = self._evaluator.pricer, self._task.tables
        mean = sum(table.width for table in tables) // self._ranks
        samples = self._evaluator.spec.batch // self._ranks
        size = self._evaluator.spec.embedding.exchange_dtype.size_bytes
        widths = np.arange(mean, 4 * mean, max(mean // 8, 1))
        sent = np.repeat((samples * size * widths)[:, None], self._ranks, axis=1)
        times = pricer.exchange.times_ns(sent).max(axis=1)
        return float(2 * (np.diff(times) / np.diff(widths)).min())

    def _costs_by_rows(self, setting: _Setting, tangent: _Tangent, width_ns: float) -> Any:
        """What each table adds to all ranks together, by its number of pieces by rows.

        The last columns are for cut in whatever way, and for all ways.
        """
        costs = np.full((len(setting.kept), self._ranks + 3), np.inf)
        for number, place in enumerate(setting.kept):
            width = self._task.tables[place].width
            for kind, terms in self._kinds[place].items():
                cost = float(tangent.slope @ terms) + width_ns * width * (kind.rows - 1)
                costs[number, kind.rows] = min(costs[number, kind.rows], cost)
        costs[:, ANY_CUT] = costs[:, 2 : self._ranks + 1].min(axis=1)
        costs[:, ALL_WAYS] = costs[:, 1 : self._ranks + 1].min(axis=1)
        return costs

    def _busiest_ns(self, weights: Any, tails: Any) -> float:
        """The least that the busiest rank can have of *weights* and its longest tail."""
        order = np.argsort(-tails, kind="stable")
        filled, tails = np.cumsum(weights[order]), tails[order]
        low = float(filled[-1]) / self._ranks
        high = low + float(tails[0])
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if self._holds(middle, filled, tails) else (middle, high)
        return low

    def _holds(self, busiest_ns: float, filled: Any, tails: Any) -> bool:
        """Whether all tables find a place when no rank has more than *busiest_ns*."""
        room, first = 0.0, 0
        for _ in range(self._ranks):
            room += max(busiest_ns - float(tails[first]), 0.0)
            first = int(np.searchsorted(filled, room, side="right"))
            if first >= len(filled):
                return True
        return False

    def _like(self, copied: tuple[int, ...]) -> ShardingPlan:
        plan = self._task.whole([0] * len(self._task.tables), "like")
        shards = tuple(shard for shard in plan.shards if shard.table not in copied)
        return replace(plan, shards=shards, data_parallel=tuple(sorted(copied)))

    def _kinds_of(self, place: int) -> dict[Cut, Any]:
        """Terms of the table in all kinds, its pieces together."""
        width = self._task.tables[place].width
        cuts = [
            Cut(columns, rows)
            for columns in COLUMN_CUTS
            if width % (4 * columns) == 0
            for rows in range(1, self._ranks + 1)
        ]
        return {cut: self._piece_terms(place, cut) for cut in cuts}

    def _piece_terms(self, place: int, cut: Cut) -> Any:
        tables = self._task.tables
        plan = self._task.whole([0] * len(tables), "whole")
        spec, device = self._evaluator.spec, self._evaluator.cluster.device
        setting = TermsSetting(spec.batch, spec.embedding.optimizer, device.l2_bytes, self._levels)
        shards = split_table(place, tables[place], cut)
        return tables_terms([plan.table_of(shard) for shard in shards], setting).sum(axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """Tables that are *copied* and *kept*, and what that alone decides."""

    copied: tuple[int, ...]
    kept: list[int]
    even: Any
    rest_ns: float
    width_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class _Tangent:
    """Lookup and update as *rest_ns* + *slope* x terms, never above the truth."""

    rest_ns: float
    slope: Any

    @classmethod
    def at(cls, evaluator: PlanEvaluator, terms: Any, passes: Sequence[Pass]) -> _Tangent:
        """The tangent at *terms*; rows to sort stay, tails are left out."""
        fixed = [Term.ROWS, Term.TAIL_ROWS]
        here = terms.astype(np.int64)
        here[Term.TAIL_ROWS] = 0
        steps = np.maximum(np.abs(here) // 1000, 1)
        steps[fixed] = 0
        around = np.concatenate([[here], here + np.diag(steps)])
        times = sum(evaluator.pricer.pass_ns(around, direction) for direction in passes)
        slope = np.where(steps > 0, (times[1:] - times[0]) / np.maximum(steps, 1), 0.0)
        return cls(float(times[0] - slope @ here), slope)
