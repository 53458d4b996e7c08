"""PlanEvaluator: iteration times of thousands of plans for one workload on one cluster.

The common part is built, priced and condensed once per set of data-parallel tables (a frame).
Only lookups and exchanges are priced per plan.
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
"""Plans priced together: large enough to vectorise, small enough for the cache."""
BY_ROWS = (ShardingKind.ROW_WISE, ShardingKind.TABLE_ROW_WISE, ShardingKind.GRID)


@dataclass(frozen=True, slots=True)
class FrameKey:
    """Plans with equal keys have the same frame."""

    data_parallel: tuple[int, ...]
    has_partial_sums: bool


@dataclass(frozen=True, slots=True, eq=False)
class PricedPlans:
    """Kinds of ranks (plans x ranks), durations (plans x columns x ranks), and loads of ranks."""

    kinds: Int8s
    float_ns: Floats
    loads: RankLoads

    @property
    def durations_ns(self) -> Int64s:
        """Durations rounded to the clock."""
        return np.rint(self.float_ns).astype(np.int64)

    @property
    def own_ns(self) -> Floats:
        """Lookup, update and both exchanges of every rank, plans x parts x ranks."""
        parts: Floats = self.float_ns[:, (LOOKUP, UPDATE, POOLED, GRADIENTS)]
        return np.where(self.kinds[:, None, :] == HOLDER, parts, 0.0)

    @property
    def busiest_ns(self) -> Floats:
        """Per plan, the sum over parts of the time of the busiest rank."""
        total: Floats = self.own_ns.max(axis=2).sum(axis=1)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class PlanMeasures:
    """Per plan: times, sum of its longest parts, memory of its fullest rank."""

    times: VariantTimes
    busiest_ns: Floats
    peak_bytes: Int64s

    def time_ns(self, mode: Mode) -> Int64s:
        """The times to compare in *mode*."""
        return times_in_mode(self.times, mode)


def times_in_mode(times: VariantTimes, mode: Mode) -> Int64s:
    """Periods or isolated times, as *mode* says."""
    return times.period_ns if mode is Mode.PERIOD else times.isolated_ns


class PlanEvaluator:
    """Times of plans of *spec* under *stack* on *cluster*."""

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
        self._frames: dict[FrameKey, tuple[CondensedJob, int]] = {}
        self._whole: tuple[ShardingPlan, PricedJob] | None = None

    def measure(self, plans: Sequence[ShardingPlan]) -> PlanMeasures:
        """Times and memory of *plans*, in their order."""
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
        """The whole job of *plan*, priced: for plans that have no frame.

        The last one is cached: a plan is measured and explained one after the other.
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
        keys = [frame_key(plan) for plan in plans]
        return self._measure(self.catalog.placements(plans), widths, keys, plans.__getitem__)

    def measure_layouts(self, book: LayoutBook, layouts: Sequence[PlanLayout]) -> PlanMeasures:
        """The same for layouts. A plan is built only for a new frame."""
        return self._measure(
            join_placements(
                [layout.piece for layout in layouts], [layout.rank for layout in layouts]
            ),
            np.array([layout.partial_width for layout in layouts], dtype=np.int64),
            [FrameKey(layout.copied, layout.partial_width > 0) for layout in layouts],
            lambda place: book.to_plan(layouts[place], "layout"),
        )

    def measure_assignments(self, task: ShardingTask, ranks: Int32s) -> PlanMeasures:
        """The same for plans of whole tables, *ranks* being plans x tables. Builds no plans."""
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
            frame, base_bytes = self._known_frame(key, plan_of, places[0])
            for first in range(0, len(places), AT_ONCE):
                part = places[first : first + AT_ONCE]
                priced = self.price_placements(placements.take(part), partial_widths[part])
                found = evaluate_variants(frame, priced.kinds, priced.durations_ns)
                times[:, part] = np.stack(
                    [found.isolated_ns, found.period_ns, found.iterations, found.cyclicity]
                )
                busiest[part] = priced.busiest_ns
                peak[part] = priced.loads.memory_bytes.max(axis=1) + base_bytes
        return PlanMeasures(VariantTimes(*times), busiest, peak)

    def _known_frame(
        self, key: FrameKey, plan_of: Callable[[int], ShardingPlan], place: int
    ) -> tuple[CondensedJob, int]:
        """The frame for *key*, and the memory of a rank without pieces."""
        if key not in self._frames:
            plan = plan_of(place)
            priced = self.price_variants(plan)
            copied = [plan.tables[copy] for copy in plan.data_parallel]
            samples = local_batch(self.spec, rank_count=plan.rank_count)
            self._frames[key] = (
                build_frame(priced, priced.durations.values_ns),
                base_memory_bytes(self.spec, copied, samples=samples),
            )
        return self._frames[key]

    def knows(self, key: FrameKey) -> bool:
        """Whether the frame for *key* is built already."""
        return key in self._frames

    def price(self, plans: Sequence[ShardingPlan]) -> PricedPlans:
        """Durations of the tasks that *plans* change; all must have the same frame."""
        widths = np.array([partial_width(plan) for plan in plans], dtype=np.int64)
        return self.price_placements(self.catalog.placements(plans), widths)

    def price_layout(self, layout: PlanLayout) -> PricedPlans:
        """Durations of the tasks that *layout* changes."""
        placements = join_placements([layout.piece], [layout.rank])
        return self.price_placements(placements, np.array([layout.partial_width]))

    def price_placements(self, placements: Placements, partial_widths: Int64s) -> PricedPlans:
        """Durations of the tasks that *placements* change."""
        return self.price_loads(self.catalog.load(placements), partial_widths)

    def price_loads(self, loads: RankLoads, partial_widths: Int64s) -> PricedPlans:
        """Durations for ranks with *loads*."""
        kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
        return PricedPlans(kinds, self.pricer.price(loads, partial_widths), loads)

    def frame(self, plan: ShardingPlan) -> CondensedJob:
        """The frame of plans like *plan*, with nominal durations only."""
        return self._known_frame(frame_key(plan), lambda _: plan, 0)[0]

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
        """Memory of each piece on its rank, with its buffers."""
        pieces = self.catalog.pieces(tables, shards)
        return self.catalog.columns.memory_bytes[pieces]

    def pieces_alone(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> AloneCosts:
        """Lookup and update cost of each piece on its own, without fixed kernel time."""
        pieces = self.catalog.pieces(tables, shards)
        return self.pricer.alone(self.catalog.columns.terms[0][pieces])


def has_steps(plan: ShardingPlan) -> bool:
    """Whether vectors are exchanged in two steps or only for some rows: no frame covers that."""
    return bool(plan.summed_in_host or plan.frequent_rows)


def lookups_of_ranks_ns(priced: PricedJob) -> Floats:
    """Time of all lookups and updates, per rank."""
    code = FAMILIES.index(EMBEDDING_FAMILY)
    found = []
    for rank in range(priced.job.rank_count):
        rows = priced.rows_of_rank(rank)
        found.append(priced.float_ns[rows][priced.family[rows] == code].sum())
    return np.array(found)


def frame_key(plan: ShardingPlan) -> FrameKey:
    """The key of the frame of *plan*."""
    return FrameKey(plan.data_parallel, partial_width(plan) > 0)


def partial_width(plan: ShardingPlan) -> int:
    """Width of the partial sums per sample, from row-wise pieces."""
    tables = plan.tables
    for shard in plan.shards:
        if shard.rows != tables[shard.table].rows:
            kinds = plan.kinds
            return sum(piece.width for piece in plan.shards if kinds[piece.table] in BY_ROWS)
    return 0
