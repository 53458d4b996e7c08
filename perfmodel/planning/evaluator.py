"""PlanEvaluator: iteration times of thousands of plans for one workload on one cluster.

What plans share is built, priced and condensed once (a frame for every set of
data-parallel tables); of each plan only lookups and exchanges are priced anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.sharders import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.planning.evaluate import Int8s, PlanTimes, evaluate_plans
from perfmodel.planning.frame import EMPTY, HOLDER, Frame, build_frame
from perfmodel.planning.placements import Int32s, Int64s, PieceCatalog, Placements, RankLoads
from perfmodel.planning.plan_costs import (
    GRADIENTS,
    LOOKUP,
    POOLED,
    UPDATE,
    Floats,
    PlanCosts,
    PlanPricer,
)
from perfmodel.prediction.scenario import Mode
from perfmodel.workloads.dlrm.job import build_variant_job, local_batch
from perfmodel.workloads.dlrm.memory import base_memory_bytes
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
    """Kinds of ranks, plans x ranks, durations, plans x columns x ranks, and what ranks hold."""

    kinds: Int8s
    costs: PlanCosts
    loads: RankLoads

    @property
    def durations_ns(self) -> Int64s:
        """Durations on the clock."""
        return self.costs.durations_ns

    @property
    def own_ns(self) -> Floats:
        """Lookup, update and exchanges of every rank, plans x ranks."""
        columns = (LOOKUP, UPDATE, POOLED, GRADIENTS)
        total: Floats = self.costs.float_ns[:, columns].sum(axis=1)
        return np.where(self.kinds == HOLDER, total, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class PlanMeasures:
    """By plan: times, its busiest rank's own work, and memory of its fullest rank."""

    times: PlanTimes
    busiest_ns: Floats
    peak_bytes: Int64s

    def time_ns(self, mode: Mode) -> Int64s:
        """The time that counts in *mode*."""
        return self.times.period_ns if mode is Mode.PERIOD else self.times.isolated_ns


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
        return self.measure(plans).times

    def measure(self, plans: Sequence[ShardingPlan]) -> PlanMeasures:
        """Everything that plans are compared by, in their order."""
        keys = [frame_key(plan) for plan in plans]
        times = np.zeros((4, len(plans)), dtype=np.int64)
        busiest, peak = np.zeros(len(plans)), np.zeros(len(plans), dtype=np.int64)
        for key in dict.fromkeys(keys):
            members = [place for place, of_plan in enumerate(keys) if of_plan == key]
            for first in range(0, len(members), AT_ONCE):
                part = members[first : first + AT_ONCE]
                chosen = [plans[place] for place in part]
                priced = self.price(chosen)
                found = evaluate_plans(self.frame(chosen[0]), priced.kinds, priced.durations_ns)
                times[:, part] = np.stack(
                    [found.isolated_ns, found.period_ns, found.iterations, found.cyclicity]
                )
                busiest[part] = priced.own_ns.max(axis=1)
                base = self.base_bytes(chosen[0])
                peak[part] = priced.loads.memory_bytes.max(axis=1) + base
        return PlanMeasures(PlanTimes(*times), busiest, peak)

    def measure_assignments(self, task: ShardingTask, ranks: Int32s) -> PlanMeasures:
        """The same for plans of whole tables, *ranks* being plans x tables: no plan is built."""
        like = task.whole([int(rank) for rank in ranks[0]], "assignment")
        pieces = self.catalog.placements([like]).piece
        frame, base = self.frame(like), self.base_bytes(like)
        times, busiest, peak = [], [], []
        for first in range(0, len(ranks), AT_ONCE):
            part = np.ascontiguousarray(ranks[first : first + AT_ONCE], dtype=np.int32)
            starts = np.arange(len(part) + 1, dtype=np.int64) * len(pieces)
            placements = Placements(np.tile(pieces, len(part)), part.reshape(-1), starts)
            priced = self.price_placements(placements, np.zeros(len(part), dtype=np.int64))
            found = evaluate_plans(frame, priced.kinds, priced.durations_ns)
            times.append([found.isolated_ns, found.period_ns, found.iterations, found.cyclicity])
            busiest.append(priced.own_ns.max(axis=1))
            peak.append(priced.loads.memory_bytes.max(axis=1) + base)
        columns = np.concatenate([np.stack(part) for part in times], axis=1)
        return PlanMeasures(PlanTimes(*columns), np.concatenate(busiest), np.concatenate(peak))

    def price(self, plans: Sequence[ShardingPlan]) -> PricedPlans:
        """Durations of what *plans* change; they share a frame."""
        widths = np.array([partial_width(plan) for plan in plans], dtype=np.int64)
        return self.price_placements(self.catalog.placements(plans), widths)

    def price_placements(self, placements: Placements, partial_widths: Int64s) -> PricedPlans:
        """Durations of what *placements* change."""
        loads = self.catalog.load(placements)
        costs = self.pricer.price(loads, partial_widths)
        kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
        return PricedPlans(kinds, costs, loads)

    def frame(self, plan: ShardingPlan) -> Frame:
        """The frame of plans like *plan*, nominal durations only."""
        key = frame_key(plan)
        if key not in self._frames:
            priced = self.price_variants(plan)
            self._frames[key] = build_frame(priced, priced.durations.values_ns)
        return self._frames[key]

    def price_variants(self, plan: ShardingPlan) -> PricedJob:
        """The two kinds of rank of plans like *plan*, priced."""
        if not plan.shards:
            raise PlanError(
                f"plan {plan.name!r}: all tables are data-parallel, so nothing is exchanged. "
                "Predict it alone."
            )
        job = build_variant_job(self.spec, plan=plan, stack=self.stack)
        return price_job(job, cluster=self.cluster, stack=self.stack)

    def base_bytes(self, plan: ShardingPlan) -> int:
        """Memory of a rank that holds no piece."""
        copied = [plan.tables[place] for place in plan.data_parallel]
        samples = local_batch(self.spec, rank_count=plan.rank_count)
        return base_memory_bytes(self.spec, copied, samples=samples)

    def pieces_bytes(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> Int64s:
        """Memory that each piece takes on its rank, buffers for it included."""
        pieces = [self.catalog.piece(tables, shard) for shard in shards]
        return self.catalog.columns.memory_bytes[pieces]

    def pieces_ns(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> Floats:
        """What lookup and update of each piece would take alone, without the floor."""
        pieces = [self.catalog.piece(tables, shard) for shard in shards]
        return self.pricer.alone_ns(self.catalog.columns.terms[0][pieces])


def frame_key(plan: ShardingPlan) -> FrameKey:
    """Which plans *plan* shares its frame with."""
    return FrameKey(plan.data_parallel, partial_width(plan) > 0)


def partial_width(plan: ShardingPlan) -> int:
    """Numbers a sample gets as partial sums, from pieces by rows."""
    if all(shard.rows == plan.tables[shard.table].rows for shard in plan.shards):
        return 0
    return sum(shard.width for shard in plan.shards if plan.kinds[shard.table] in BY_ROWS)
