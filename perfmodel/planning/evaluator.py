"""PlanEvaluator: iteration times of thousands of plans for one workload on one cluster.

What plans share is built, priced and condensed once (a frame for every set of
data-parallel tables); of each plan only lookups and exchanges are priced anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embeddings.plan import Shard, ShardingKind, ShardingPlan
from embeddings.sharders import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job
from perfmodel.engine.condensed import CondensedJob, Int8s, VariantTimes, evaluate_variants
from perfmodel.engine.replay import find_period, replay
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.frame import EMPTY, HOLDER, build_frame
from perfmodel.planning.layout import LayoutBook, PlanLayout
from perfmodel.planning.placements import (
    Int32s,
    Int64s,
    PieceCatalog,
    Placements,
    RankLoads,
    join_placements,
)
from perfmodel.planning.plan_costs import (
    GRADIENTS,
    LOOKUP,
    POOLED,
    UPDATE,
    AloneCosts,
    Floats,
    PlanCosts,
    PlanPricer,
)
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job, build_variant_job
from perfmodel.workloads.dlrm.memory import base_memory_bytes, dlrm_memory
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from topologies import Cluster

EMBEDDING_FAMILY = "embedding"
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
        """Lookup, update and both exchanges of every rank, plans x parts x ranks."""
        parts: Floats = self.costs.float_ns[:, (LOOKUP, UPDATE, POOLED, GRADIENTS)]
        return np.where(self.kinds[:, None, :] == HOLDER, parts, 0.0)

    @property
    def busiest_ns(self) -> Floats:
        """What the busiest rank of each part takes for it, added up, by plan."""
        total: Floats = self.own_ns.max(axis=2).sum(axis=1)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class PlanMeasures:
    """By plan: times, what its busiest ranks take for their parts, memory of its fullest rank."""

    times: VariantTimes
    busiest_ns: Floats
    peak_bytes: Int64s

    def time_ns(self, mode: Mode) -> Int64s:
        """The time that counts in *mode*."""
        return self.times.period_ns if mode is Mode.PERIOD else self.times.isolated_ns


@dataclass(frozen=True, slots=True, eq=False)
class _KnownFrame:
    """A frame, and the memory of a rank that holds no piece."""

    frame: CondensedJob
    base_bytes: int


class PlanEvaluator:
    """Times of plans of *spec*, filled in by *stack*, on *cluster*."""

    def __init__(self, spec: DlrmSpec, cluster: Cluster, stack: SoftwareStack) -> None:
        if cluster.rank_count < 2:
            raise PlanError("rank: plans differ only on two ranks or more. Take more ranks.")
        if stack.has(FrameworkBehaviour.LEAN_EXCHANGES) and cluster.host_count > 1:
            raise PlanError(
                f"stack {stack.name!r}: has exchanges of its own on several hosts; plans are "
                "compared only under a collective library. Take another stack, or predict each "
                "plan alone."
            )
        self.spec = spec
        self.cluster = cluster
        self.stack = stack
        self.catalog = PieceCatalog(spec, cluster.device, rank_count=cluster.rank_count)
        self.pricer = PlanPricer(spec, cluster, stack)
        self._frames: dict[FrameKey, _KnownFrame] = {}
        self._whole: tuple[ShardingPlan, PricedJob] | None = None

    def times(self, plans: Sequence[ShardingPlan]) -> VariantTimes:
        """Times of *plans*, in their order."""
        return self.measure(plans).times

    def measure(self, plans: Sequence[ShardingPlan]) -> PlanMeasures:
        """Everything that plans are compared by, in their order."""
        apart = [place for place, plan in enumerate(plans) if has_steps(plan)]
        others = [place for place, plan in enumerate(plans) if not has_steps(plan)]
        parts = [self._measure_whole(plans[place]) for place in apart]
        if others:
            parts.append(self._measure_condensed([plans[place] for place in others]))
        order = np.argsort([*apart, *others])
        return PlanMeasures(
            VariantTimes(
                *(
                    np.concatenate([getattr(part.times, name) for part in parts])[order]
                    for name in ("isolated_ns", "period_ns", "iterations", "cyclicity")
                )
            ),
            np.concatenate([part.busiest_ns for part in parts])[order],
            np.concatenate([part.peak_bytes for part in parts])[order],
        )

    def price_whole(self, plan: ShardingPlan) -> PricedJob:
        """The whole job of *plan*, priced: for plans that no frame stands for.

        The last one is kept, because several things are asked of a plan one after the other.
        """
        if self._whole is not None and self._whole[0] is plan:
            return self._whole[1]
        job = build_dlrm_job(self.spec, plan=plan, stack=self.stack)
        self._whole = (plan, price_job(job, cluster=self.cluster, stack=self.stack))
        return self._whole[1]

    def _measure_whole(self, plan: ShardingPlan) -> PlanMeasures:
        priced = self.price_whole(plan)
        steady = find_period(SerialExecutor().replay, priced.job, priced.durations)
        isolated = replay(priced.job, priced.durations, iterations=1)
        memory = dlrm_memory(self.spec, rank_count=plan.rank_count, plan=plan)
        parts = lookups_of_ranks_ns(priced)
        return PlanMeasures(
            VariantTimes(
                isolated_ns=isolated.iteration_end_ns[0].astype(np.int64),
                period_ns=np.rint(steady.period_ns).astype(np.int64),
                iterations=np.array([steady.replay.iteration_count]),
                cyclicity=np.array([steady.cyclicity]),
            ),
            np.array([parts.max()]),
            np.array([max(rank.total_bytes for rank in memory)]),
        )

    def _measure_condensed(self, plans: Sequence[ShardingPlan]) -> PlanMeasures:
        widths = np.array([partial_width(plan) for plan in plans], dtype=np.int64)
        keys = [
            FrameKey(plan.data_parallel, bool(width > 0))
            for plan, width in zip(plans, widths, strict=True)
        ]
        placements = self.catalog.placements(plans)
        return self._measure(placements, widths, keys, lambda place: plans[place])

    def measure_layouts(self, book: LayoutBook, layouts: Sequence[PlanLayout]) -> PlanMeasures:
        """The same for layouts: a plan is built only where none is known with its frame."""
        return self._measure(
            join_placements(
                [layout.piece for layout in layouts], [layout.rank for layout in layouts]
            ),
            np.array([layout.partial_width for layout in layouts], dtype=np.int64),
            [FrameKey(layout.copied, layout.partial_width > 0) for layout in layouts],
            lambda place: book.to_plan(layouts[place], "layout"),
        )

    def measure_assignments(self, task: ShardingTask, ranks: Int32s) -> PlanMeasures:
        """The same for plans of whole tables, *ranks* being plans x tables: no plan is built."""
        like = task.whole([int(rank) for rank in ranks[0]], "assignment")
        pieces = self.catalog.placements([like]).piece
        starts = np.arange(len(ranks) + 1, dtype=np.int64) * len(pieces)
        flat = np.ascontiguousarray(ranks, dtype=np.int32).reshape(-1)
        placements = Placements(np.tile(pieces, len(ranks)), flat, starts)
        keys = [frame_key(like)] * len(ranks)
        return self._measure(placements, np.zeros(len(ranks), dtype=np.int64), keys, lambda _: like)

    def _measure(
        self,
        placements: Placements,
        partial_widths: Int64s,
        keys: Sequence[FrameKey],
        plan_of: Callable[[int], ShardingPlan],
    ) -> PlanMeasures:
        count = placements.plan_count
        times = np.zeros((4, count), dtype=np.int64)
        busiest, peak = np.zeros(count), np.zeros(count, dtype=np.int64)
        members: dict[FrameKey, list[int]] = {}
        for place, key in enumerate(keys):
            members.setdefault(key, []).append(place)
        for key, places in members.items():
            known = self._known_frame(key, plan_of, places[0])
            for first in range(0, len(places), AT_ONCE):
                part = places[first : first + AT_ONCE]
                priced = self.price_placements(placements.take(part), partial_widths[part])
                found = evaluate_variants(known.frame, priced.kinds, priced.durations_ns)
                times[:, part] = np.stack(
                    [found.isolated_ns, found.period_ns, found.iterations, found.cyclicity]
                )
                busiest[part] = priced.busiest_ns
                peak[part] = priced.loads.memory_bytes.max(axis=1) + known.base_bytes
        return PlanMeasures(VariantTimes(*times), busiest, peak)

    def _known_frame(
        self, key: FrameKey, plan_of: Callable[[int], ShardingPlan], place: int
    ) -> _KnownFrame:
        if key not in self._frames:
            plan = plan_of(place)
            priced = self.price_variants(plan)
            copied = [plan.tables[copy] for copy in plan.data_parallel]
            samples = local_batch(self.spec, rank_count=plan.rank_count)
            self._frames[key] = _KnownFrame(
                build_frame(priced, priced.durations.values_ns),
                base_memory_bytes(self.spec, copied, samples=samples),
            )
        return self._frames[key]

    def knows(self, key: FrameKey) -> bool:
        """Whether plans with *key* can be judged without building a frame first."""
        return key in self._frames

    def price(self, plans: Sequence[ShardingPlan]) -> PricedPlans:
        """Durations of what *plans* change; they share a frame."""
        widths = np.array([partial_width(plan) for plan in plans], dtype=np.int64)
        return self.price_placements(self.catalog.placements(plans), widths)

    def price_layout(self, layout: PlanLayout) -> PricedPlans:
        """Durations of what one layout changes."""
        placements = join_placements([layout.piece], [layout.rank])
        return self.price_placements(placements, np.array([layout.partial_width]))

    def price_placements(self, placements: Placements, partial_widths: Int64s) -> PricedPlans:
        """Durations of what *placements* change."""
        loads = self.catalog.load(placements)
        costs = self.pricer.price(loads, partial_widths)
        kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
        return PricedPlans(kinds, costs, loads)

    def frame(self, plan: ShardingPlan) -> CondensedJob:
        """The frame of plans like *plan*, nominal durations only."""
        return self._known_frame(frame_key(plan), lambda _: plan, 0).frame

    def price_variants(self, plan: ShardingPlan) -> PricedJob:
        """The two kinds of rank of plans like *plan*, priced."""
        if not plan.shards:
            raise PlanError(
                f"plan {plan.name!r}: all tables are data-parallel, so nothing is exchanged. "
                "Predict it alone."
            )
        job = build_variant_job(self.spec, plan=plan, stack=self.stack)
        return price_job(job, cluster=self.cluster, stack=self.stack)

    def pieces_bytes(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> Int64s:
        """Memory that each piece takes on its rank, buffers for it included."""
        pieces = self.catalog.pieces(tables, shards)
        return self.catalog.columns.memory_bytes[pieces]

    def pieces_alone(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> AloneCosts:
        """What lookup and update of each piece would take alone, without the floor."""
        pieces = self.catalog.pieces(tables, shards)
        return self.pricer.alone(self.catalog.columns.terms[0][pieces])


def has_steps(plan: ShardingPlan) -> bool:
    """Whether vectors travel in two steps or only for some rows, which no frame stands for."""
    return bool(plan.summed_in_host or plan.frequent_rows)


def lookups_of_ranks_ns(priced: PricedJob) -> Floats:
    """What lookups and updates of every rank take."""
    code = FAMILIES.index(EMBEDDING_FAMILY)
    found = []
    for rank in range(priced.job.rank_count):
        rows = priced.rows_of_rank(rank)
        found.append(priced.float_ns[rows][priced.family[rows] == code].sum())
    return np.array(found)


def frame_key(plan: ShardingPlan) -> FrameKey:
    """Which plans *plan* shares its frame with."""
    return FrameKey(plan.data_parallel, partial_width(plan) > 0)


def partial_width(plan: ShardingPlan) -> int:
    """Numbers a sample gets as partial sums, from pieces by rows."""
    tables = plan.tables
    for shard in plan.shards:
        if shard.rows != tables[shard.table].rows:
            kinds = plan.kinds
            return sum(piece.width for piece in plan.shards if kinds[piece.table] in BY_ROWS)
    return 0
