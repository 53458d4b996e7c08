"""PlanEvaluator: iteration times of thousands of plans for one workload on one cluster.

What plans share is built, priced and condensed once (a frame for every set of
data-parallel tables); of each plan only lookups and exchanges are priced anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embeddings.plan import ShardingKind, ShardingPlan
from perfmodel.base.errors import PlanError
from perfmodel.costs.pricing import price_job
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.planning.evaluate import Int8s, PlanTimes, evaluate_plans
from perfmodel.planning.frame import EMPTY, HOLDER, Frame, build_frame
from perfmodel.planning.placements import Int64s, PieceCatalog, Placements
from perfmodel.planning.plan_costs import PlanPricer
from perfmodel.workloads.dlrm.job import build_variant_job
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster

AT_ONCE = 64
"""Plans priced together: enough for vectors to pay, few enough to stay in the cache."""
BY_ROWS = (ShardingKind.ROW_WISE, ShardingKind.TABLE_ROW_WISE, ShardingKind.GRID)


@dataclass(frozen=True, slots=True)
class FrameKey:
    """What plans must share to share a frame."""

    data_parallel: tuple[int, ...]
    has_partial_sums: bool


@dataclass(frozen=True, slots=True, eq=False)
class PricedPlans:
    """Kinds of ranks, plans x ranks, and durations, plans x columns x ranks."""

    kinds: Int8s
    durations_ns: Int64s


class PlanEvaluator:
    """Times of plans of *spec* on *cluster* under *stack*."""

    def __init__(self, spec: DlrmSpec, cluster: Cluster, stack: SoftwareStack) -> None:
        if cluster.rank_count < 2:
            raise PlanError("rank: plans differ only on two ranks or more. Take more ranks.")
        self.spec = spec
        self.cluster = cluster
        self.stack = stack
        self.catalog = PieceCatalog(spec, cluster.device, rank_count=cluster.rank_count)
        self.pricer = PlanPricer(spec, cluster, stack)
        self._frames: dict[FrameKey, Frame] = {}

    def times(self, plans: Sequence[ShardingPlan]) -> PlanTimes:
        """Times of *plans*, in their order."""
        keys = [frame_key(plan) for plan in plans]
        columns = np.zeros((4, len(plans)), dtype=np.int64)
        for key in dict.fromkeys(keys):
            members = [place for place, of_plan in enumerate(keys) if of_plan == key]
            frame = self.frame(plans[members[0]])
            chosen = [plans[place] for place in members]
            widths = np.array([partial_width(plan) for plan in chosen], dtype=np.int64)
            found = self.evaluate(frame, self.catalog.placements(chosen), widths)
            columns[:, members] = np.stack(
                [found.isolated_ns, found.period_ns, found.iterations, found.cyclicity]
            )
        return PlanTimes(*columns)

    def evaluate(self, frame: Frame, placements: Placements, partial_widths: Int64s) -> PlanTimes:
        """Times of *placements* that share *frame*."""
        parts = []
        for first in range(0, placements.plan_count, AT_ONCE):
            part = _slice(placements, first, min(first + AT_ONCE, placements.plan_count))
            priced = self.price(part, partial_widths[first : first + AT_ONCE])
            parts.append(evaluate_plans(frame, priced.kinds, priced.durations_ns))
        return PlanTimes(
            np.concatenate([part.isolated_ns for part in parts]),
            np.concatenate([part.period_ns for part in parts]),
            np.concatenate([part.iterations for part in parts]),
            np.concatenate([part.cyclicity for part in parts]),
        )

    def price(self, placements: Placements, partial_widths: Int64s) -> PricedPlans:
        """Durations of what *placements* change."""
        loads = self.catalog.load(placements)
        costs = self.pricer.price(loads, partial_widths)
        kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
        return PricedPlans(kinds, costs.durations_ns)

    def frame(self, plan: ShardingPlan) -> Frame:
        """The frame of plans like *plan*, nominal durations only."""
        key = frame_key(plan)
        if key not in self._frames:
            if not plan.shards:
                raise PlanError(
                    f"plan {plan.name!r}: all tables are data-parallel, so nothing is exchanged. "
                    "Predict it alone."
                )
            job = build_variant_job(self.spec, plan=plan)
            priced = price_job(job, cluster=self.cluster, stack=self.stack)
            self._frames[key] = build_frame(priced, priced.durations.values_ns)
        return self._frames[key]


def frame_key(plan: ShardingPlan) -> FrameKey:
    """Which plans *plan* shares its frame with."""
    return FrameKey(plan.data_parallel, partial_width(plan) > 0)


def partial_width(plan: ShardingPlan) -> int:
    """Numbers a sample gets as partial sums, from pieces by rows."""
    if all(shard.rows == plan.tables[shard.table].rows for shard in plan.shards):
        return 0
    return sum(shard.width for shard in plan.shards if plan.kinds[shard.table] in BY_ROWS)


def _slice(placements: Placements, first: int, last: int) -> Placements:
    start = placements.plan_start[first : last + 1]
    rows = slice(int(start[0]), int(start[-1]))
    return Placements(placements.piece[rows], placements.rank[rows], start - start[0])
