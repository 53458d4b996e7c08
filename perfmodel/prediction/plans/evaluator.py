"""PlanEvaluator: iteration times of thousands of plans for one workload on one cluster.

The part of an iteration that is the same for all plans (a frame) is built, priced and condensed
once per set of data-parallel tables. A plan changes the duration of lookups, exchanges and a few
small kernels, and which ranks hold no piece: only that is priced per plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from embeddings.plan import Shard, ShardingPlan
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import GraphError, PlanError
from perfmodel.costs.models import FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.costs.pricing import price_job, slow_down
from perfmodel.engine.condensed import (
    FIXED,
    CondensedJob,
    Int8s,
    RankKind,
    VariantTimes,
    condense_job,
    evaluate_variants,
)
from perfmodel.engine.replay import find_period, replay
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.program import PLAIN, Role
from perfmodel.prediction.plans.placements import (
    FrameKey,
    Int64s,
    PieceCatalog,
    PieceColumns,
    PlanColumns,
    RankLoads,
)
from perfmodel.prediction.plans.plan_costs import (
    CHANGING,
    GRADIENTS,
    LOOKUP,
    POOLED,
    ROW_GRADIENTS,
    ROW_SUMS,
    UPDATE,
    AloneCosts,
    Floats,
    PlanPricer,
)
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.exchange import as_exchanged
from perfmodel.workloads.dlrm.job import build_dlrm_job, build_variant_job
from perfmodel.workloads.dlrm.memory import base_memory_bytes, dlrm_memory
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import DlrmSpec, local_batch
from topologies import Cluster

EMBEDDING_FAMILY = "embedding"
RANKS_AT_ONCE = 6144
"""Ranks, over all plans that are priced together: enough to vectorise, few enough for the cache."""
HOLDER, EMPTY = 0, 1
"""The two kinds of rank: with pieces and without. Further pairs are those of slower GPUs."""
KINDS = 2


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
        return np.where(self.kinds[:, None, :] % KINDS == HOLDER, parts, 0.0)

    @property
    def busiest_ns(self) -> Floats:
        """Per plan, the sum over parts of the time of the busiest rank."""
        shared = self.float_ns[:, (ROW_SUMS, ROW_GRADIENTS), 0].sum(axis=1)
        total: Floats = self.own_ns.max(axis=2).sum(axis=1) + shared
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
    """Times of plans of *spec* under *stack* on *cluster*.

    Batches are ready: a loader takes as long under every plan, and would hide what they change.
    Exchanges are those of a collective library: kernels of the stack's own have no frame.
    """

    def __init__(self, spec: DlrmSpec, cluster: Cluster, stack: SoftwareStack) -> None:
        if cluster.rank_count < 2:
            raise PlanError("rank: plans differ only on two ranks or more. Use more ranks.")
        self.load_ns = spec.input.load_time
        self.spec = spec.model_copy(
            update={"input": spec.input.model_copy(update={"load_time": None})}
        )
        self.cluster = cluster
        habits = stack.habits - {FrameworkBehaviour.LEAN_EXCHANGES}
        self.stack = stack = replace(stack, habits=habits)
        local_batch(spec, rank_count=cluster.rank_count)
        run = DlrmRun(self.spec, cluster.rank_count, stack)
        self.catalog, self.pricer = PieceCatalog(run, cluster.device), PlanPricer(run, cluster)
        self._frames: dict[FrameKey, tuple[CondensedJob, int]] = {}
        speeds = cluster.speeds_of(np.arange(cluster.rank_count, dtype=np.int64))
        self._speeds, number = np.unique(speeds, return_inverse=True)
        self._slower_kinds = (KINDS * number).astype(np.int8)

    def measure(self, plans: Sequence[ShardingPlan]) -> PlanMeasures:
        """Times and memory of *plans*, in their order."""
        row_sums = self.stack.tables.row_sums
        columns = [
            None if has_steps(as_exchanged(plan, row_sums)) else self.catalog.columns_of(plan)
            for plan in plans
        ]
        return self.measure_columns(columns, plans.__getitem__)

    def measure_columns(
        self, plans: Sequence[PlanColumns | None], plan_of: Callable[[int], ShardingPlan]
    ) -> PlanMeasures:
        """The same for plans as columns; *plan_of* builds the one at a place, for a new frame.

        Plans that no frame covers are None and replayed whole.
        """
        count = len(plans)
        times = np.zeros((4, count), dtype=np.int64)
        busiest, peak = np.zeros(count), np.zeros(count, dtype=np.int64)
        members: dict[FrameKey, list[int]] = {}
        for place, plan in enumerate(plans):
            if plan is None:
                times[:, place], busiest[place], peak[place] = self._measure_whole(plan_of(place))
            else:
                members.setdefault(plan.frame_key, []).append(place)
        for places in members.values():
            some = [plan for place in places if (plan := plans[place]) is not None]
            frame, base_bytes = self._known_frame(some[0], partial(plan_of, places[0]))
            at_once = max(RANKS_AT_ONCE // self.cluster.rank_count, 1)
            for first in range(0, len(places), at_once):
                part = places[first : first + at_once]
                priced = self.price(some[first : first + at_once])
                times[:, part] = evaluate_variants(frame, priced.kinds, priced.durations_ns)
                busiest[part] = priced.busiest_ns
                peak[part] = priced.loads.memory_bytes.max(axis=1) + base_bytes
        return PlanMeasures(VariantTimes(*times), busiest, peak)

    def _measure_whole(self, plan: ShardingPlan) -> tuple[tuple[int, ...], float, int]:
        """Times, longest lookups and peak memory of a plan that has no frame."""
        job = build_dlrm_job(self.spec, plan=plan, stack=self.stack)
        priced = price_job(job, cluster=self.cluster, stack=self.stack)
        steady = find_period(SerialExecutor().replay, priced.job, priced.durations)
        isolated = replay(priced.job, priced.durations, iterations=1)
        memory = dlrm_memory(self.spec, rank_count=plan.rank_count, plan=plan)
        times = (
            int(isolated.iteration_end_ns[0, 0]),
            int(np.rint(steady.period_ns[0])),
            steady.replay.iteration_count,
            steady.cyclicity,
        )
        longest_ns = max(lookups_of_ranks_ns(priced))
        return times, longest_ns, max(rank.total_bytes for rank in memory)

    def _known_frame(
        self, columns: PlanColumns, plan_of: Callable[[], ShardingPlan]
    ) -> tuple[CondensedJob, int]:
        """The frame of plans like *columns*, and the memory of a rank without pieces."""
        key = columns.frame_key
        if key not in self._frames:
            plan = plan_of()
            copied = [plan.tables[copy] for copy in plan.data_parallel]
            samples = local_batch(self.spec, rank_count=plan.rank_count)
            self._frames[key] = (
                self._build_frame(plan),
                base_memory_bytes(self.spec, copied, samples=samples),
            )
        return self._frames[key]

    def _build_frame(self, plan: ShardingPlan) -> CondensedJob:
        """Condense a rank with pieces and one without, as plans like *plan* have them."""
        if not plan.shards:
            raise PlanError(
                f"plan {plan.name!r}: all tables are data-parallel, so nothing is exchanged. "
                "Predict it alone."
            )
        job = build_variant_job(self.spec, plan=plan, stack=self.stack)
        priced = price_job(job, cluster=self.cluster.at_full_speed, stack=self.stack)
        for group in job.groups:
            if len(group.ranks) != job.rank_count:
                raise GraphError(
                    f"group {group.name!r}: plans are compared on groups of all ranks."
                )
        column = {operator: place for place, operator in enumerate(CHANGING)}
        of_origin = np.array([column.get(origin.operator, FIXED) for origin in job.origins])
        kinds = []
        for speed, rank in product(self._speeds.tolist(), (0, job.rank_count - 1)):
            program = job.program_of(rank)
            if (program.role[program.slot != PLAIN] != Role.BOTH).any():
                raise GraphError("plans are compared on collectives in which all ranks wait.")
            changing = np.where(program.is_on_device(), of_origin[program.origin], FIXED)
            rows = priced.rows_of_rank(rank)
            durations_ns = np.rint(slow_down(priced.float_ns[rows], priced.family[rows], speed))
            kinds.append(
                RankKind(program, durations_ns.astype(np.int64), changing.astype(np.int32))
            )
        return condense_job(kinds)

    def rest_ns(self, frame: FrameKey) -> int:
        """The time of plans with a known *frame* if their pieces cost nothing."""
        kinds = EMPTY + self._slower_kinds[np.newaxis]
        kinds[0, 0] += HOLDER - EMPTY
        nothing = np.zeros((1, len(CHANGING), self.cluster.rank_count), dtype=np.int64)
        return int(evaluate_variants(self._frames[frame][0], kinds, nothing).period_ns[0])

    def knows(self, columns: PlanColumns) -> bool:
        """Whether the frame for *columns* is built already."""
        return columns.frame_key in self._frames

    def frame(self, plan: ShardingPlan) -> CondensedJob:
        """The frame of plans like *plan*."""
        return self._known_frame(self.catalog.columns_of(plan), lambda: plan)[0]

    def price(
        self, plans: Sequence[PlanColumns], columns: PieceColumns | None = None
    ) -> PricedPlans:
        """Durations of the tasks that *plans* change; all must have the same frame.

        *columns* replace the loads of the catalog's pieces.
        """
        loads = self.catalog.load(plans, columns)
        kinds = np.where(loads.piece_counts > 0, HOLDER, EMPTY).astype(np.int8)
        return PricedPlans(kinds + self._slower_kinds, self.pricer.price(plans, loads), loads)

    def pieces_bytes(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> Int64s:
        """Memory of each piece on its rank, with its buffers."""
        pieces = self.catalog.pieces(tables, shards)
        return self.catalog.columns.memory_bytes[pieces]

    def pieces_alone(self, tables: Sequence[EmbeddingTable], shards: Sequence[Shard]) -> AloneCosts:
        """Lookup and update cost of each piece on its own, without fixed kernel time."""
        pieces = self.catalog.pieces(tables, shards)
        return self.pricer.alone(self.catalog.columns.terms[0, 0][pieces])


def has_steps(plan: ShardingPlan) -> bool:
    """Whether vectors are exchanged in two steps or only for some rows: no frame covers that."""
    return bool(plan.summed_in_host or plan.frequent_rows)


def lookups_of_ranks_ns(priced: PricedJob) -> list[float]:
    """Time of all lookups and updates, per rank."""
    is_lookup = priced.family == FAMILIES.index(EMBEDDING_FAMILY)
    rows = map(priced.rows_of_rank, range(priced.job.rank_count))
    return [float(priced.float_ns[own][is_lookup[own]].sum()) for own in rows]
