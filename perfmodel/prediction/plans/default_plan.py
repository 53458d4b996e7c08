"""Sharders on a machine: the plan of each, and the default one, the fastest by replay.

The default is chosen among the plans that the balanced sharder considers.

The sharder orders plans by a rule that knows no machine. Here they are replayed on the machine, by
the evaluator that `rank` uses, and the fastest that fits is taken. The sharder considers the plans
of a larger job too, so a smaller job gets no worse one.

It is a best-first search. Plans are bound from below by the rest of the iteration, then by their
time without what copied tables cost, then by their replay without contention. What a bound leaves
out is estimated, and estimates are corrected by what was seen. The node that promises most is
opened next; the first that is a predicted plan is the answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count

from embeddings.balanced import PlacementCandidate, find_candidates, plan_by_rows
from embeddings.offloading import OFFLOADED, exceeds_devices, offload_tables
from embeddings.plan import ShardingPlan
from embeddings.sharders import DEFAULT_SHARDER, build_named_plan
from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.plans.layout import COPIED, Cut, LayoutBook
from perfmodel.prediction.plans.placements import FrameKey, PlanColumns
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question, Setting
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job, build_plan, sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.families import family_of
from perfmodel.workloads.fields import Workload
from topologies import Cluster

MOST_PIECES = 20_000
"""Pieces of all plans that are priced: with thousands of ranks or tables these are few plans."""
TRUST = 0.5
"""How far an estimate counts beside a bound: at 0 the plan that is found is proven to be the
fastest, at 1 a plan is left out as soon as it is expected to be slower."""
_COPIED, _STEPPED = "copied", "stepped"
"""Kinds of nodes that are not plans yet."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenPlan:
    """A plan, and why it was taken, in a sentence."""

    plan: ShardingPlan
    reason: str


def spec_of_tables(workload: Workload) -> DlrmSpec:
    """*workload* as plans are made for it; an error where it has no tables to place."""
    family_of(workload).tables(workload)
    assert isinstance(workload, DlrmSpec)
    return workload


def complete_plan(setting: Setting) -> Setting:
    """*setting* with a plan, where the one of the workload's own sharder is not meant."""
    spec, cluster = spec_of_tables(setting.workload), setting.cluster
    if setting.plan is not None:
        return setting
    tables = setting.tables or spec.embedding.tables()
    if spec.sharding.sharder == DEFAULT_SHARDER and cluster.rank_count > 1:
        found = find_default(spec, cluster, setting.stack, tables)
        if found is not None:
            return replace(setting, plan=found.plan, chosen=(*setting.chosen, found.reason))
    if not setting.tables:
        return setting
    plan = build_plan(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        tables=tables,
    )
    return replace(setting, plan=plan)


def find_default(
    spec: DlrmSpec, cluster: Cluster, stack: SoftwareStack, tables: tuple[EmbeddingTable, ...]
) -> ChosenPlan | None:
    """The default placement of *tables*; None where plans do not compare."""
    if DlrmRun(spec, cluster.rank_count, stack).has_lone_bottom:
        return None
    evaluator, task = PlanEvaluator(spec, cluster, stack), build_task(spec, tables, cluster)
    is_offloaded = spec.sharding.host_memory and exceeds_devices(task)
    return place_tables(OFFLOADED if is_offloaded else DEFAULT_SHARDER, evaluator, task)


def build_task(
    spec: DlrmSpec,
    tables: tuple[EmbeddingTable, ...],
    cluster: Cluster,
    *,
    seed: int = 0,
    reserve: float = 0.0,
) -> ShardingTask:
    """The task that *spec* sets a sharder on *cluster*, where pieces have the room that is left.

    The share *reserve* of a GPU's memory stays free.
    """
    ranks = cluster.rank_count
    memory_bytes = int((1 - reserve) * cluster.device.memory_bytes)
    return sharding_task(
        spec,
        tables,
        rank_count=ranks,
        room_bytes=room_for_tables(spec, rank_count=ranks, memory_bytes=memory_bytes),
        ranks_per_host=cluster.ranks_per_host,
        seed=seed,
    )


def place_tables(sharder: str, evaluator: PlanEvaluator, task: ShardingTask) -> ChosenPlan:
    """The plan of *task* by the sharder of that name.

    The default one is judged by *evaluator*. So is the one that keeps tables in host memory that
    the GPUs have no room for.
    """
    if sharder == OFFLOADED:
        chosen = choose_default_plan(evaluator, replace(task, tables=offload_tables(task)))
        return replace(chosen, plan=replace(chosen.plan, name=OFFLOADED))
    if sharder == DEFAULT_SHARDER:
        return choose_default_plan(evaluator, task)
    return ChosenPlan(
        build_named_plan(sharder, task), f"Tables are placed by the sharder {sharder}."
    )


def choose_default_plan(evaluator: PlanEvaluator, task: ShardingTask) -> ChosenPlan:
    """The plan of *task* with the shortest iterations of those that fit."""
    candidates = find_candidates(task)
    if not candidates:
        return ChosenPlan(
            plan_by_rows(task),
            "No placement is stated: all tables are split by rows, because nothing else fits.",
        )
    search = _Search(evaluator, task, candidates)
    best = search.run().to_plan(task)
    return ChosenPlan(best, _reason(best, len(candidates), search.replayed))


def _shortlist(candidates: Sequence[PlacementCandidate]) -> list[PlacementCandidate]:
    """The first of each way, the second of each, and so on, up to MOST_PIECES."""
    turns: dict[Hashable, Iterator[int]] = {}
    ordered = sorted(candidates, key=lambda one: next(turns.setdefault(one.way, count())))
    pieces = accumulate(one.piece_count for one in ordered)
    return ordered[: bisect_right(list(pieces), MOST_PIECES)]


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """Plans that take *bound_ns* at least, and about *surplus_ns* more.

    Surpluses of one *kind* are misjudged by about the same ratio. Opening a node gives the plans in
    it, or the same plan with a better bound. A plan that is not to be opened takes its bound.
    """

    bound_ns: float
    surplus_ns: float
    kind: Hashable
    open: Callable[[], list[_Node]] | None
    candidate: PlacementCandidate | None = None
    is_too_large: bool = False


class _Search:
    """Opens the node that promises most, until that is a plan whose time is predicted."""

    def __init__(
        self, evaluator: PlanEvaluator, task: ShardingTask, candidates: Sequence[PlacementCandidate]
    ) -> None:
        self._evaluator, self._task = evaluator, task
        self._stepped = _shortlist([one for one in candidates if one.per_place > 1])
        flat = _shortlist([one for one in candidates if one.per_place == 1])
        if not flat and not self._stepped:
            (self._stepped if candidates[0].per_place > 1 else flat).append(candidates[0])
        # By frame, of which one is built for all plans that share it.
        self._flat: dict[FrameKey, list[tuple[PlacementCandidate, PlanColumns]]] = {}
        book, tables = LayoutBook(task, evaluator.catalog), range(len(task.tables))
        for one in flat:
            cut_of = {place: Cut(*cut) for place, *cut in one.cuts}
            columns = book.build([cut_of.get(t, COPIED) for t in tables], one.places.tolist())
            if not all(book.allows(columns, place) for place in tables):
                # As the plan that keeps all constraints.
                kept = book.from_plan(one.to_plan(task))
                assert kept is not None
                columns = kept
            self._flat.setdefault(columns.frame_key, []).append((one, columns))
        self._fewest = min((frame[0] for frame in self._flat), key=len, default=())
        self._rest_ns = 0
        self.replayed = 0

    def run(self) -> PlacementCandidate:
        """The fastest plan that fits."""
        nodes = self._start()
        # By kind of node: what opening it added to its bound, over the estimate, as last seen.
        ratios: defaultdict[Hashable, float] = defaultdict(float)

        def promised_ns(node: _Node) -> tuple[bool, float]:
            surplus_ns = TRUST * ratios.get(node.kind, 0.0) * node.surplus_ns
            return node.is_too_large, node.bound_ns + surplus_ns

        while True:
            # Of equals the first: plans that were opened before others.
            node = min(nodes, key=promised_ns)
            if node.candidate and (node.open is None or len(nodes) == 1):
                return node.candidate
            assert node.open is not None
            nodes.remove(node)
            opened = node.open()
            if opened and node.surplus_ns:
                least_ns = min(one.bound_ns for one in opened)
                ratio = (least_ns - node.bound_ns) / node.surplus_ns
                ratios[node.kind] = min(ratios.get(node.kind, ratio), ratio)
            nodes = opened + nodes

    def _start(self) -> list[_Node]:
        """The plans that copy fewest tables, and the others, bound by the rest of an iteration."""
        frames = [frame for frame in self._flat if frame[0] == self._fewest]
        nodes = [node for frame in frames for node in self._replay(self._flat.pop(frame))]
        self._rest_ns = min(map(self._evaluator.rest_ns, frames), default=0)
        if self._flat or self._stepped:
            nodes.append(_Node(self._rest_ns, 0.0, None, self._others))
        return nodes

    def _others(self) -> list[_Node]:
        """Plans by the tables that they copy, and those that sum inside hosts one by one.

        Copied tables never make the rest of an iteration faster, so the time without them is a
        bound.
        """
        nodes: list[_Node] = []
        for frame, plans in self._flat.items():
            tables = [self._task.tables[place] for place in frame[0]]
            copied_ns = float(self._evaluator.pricer.copied_ns(tables).sum())
            opening = partial(self._replay, plans)
            nodes.append(_Node(self._bound_ns(plans), copied_ns, _COPIED, opening))
        if self._stepped:
            built = [one.to_plan(self._task) for one in self._stepped]
            priced = self._evaluator.price(list(map(self._evaluator.catalog.columns_of, built)))
            lookup_ns, update_ns, pooled_ns, gradients_ns = priced.own_ns.max(axis=2).T
            # Each rank of a host sends a part of the sums.
            sent_ns = (pooled_ns + gradients_ns) / self._stepped[0].per_place
            for one, busy_ns in zip(self._stepped, lookup_ns + update_ns + sent_ns, strict=True):
                bound_ns = max(self._rest_ns, float(busy_ns))
                opening = partial(self._replay, [(one, None)])
                nodes.append(_Node(bound_ns, float(busy_ns), _STEPPED, opening))
        return nodes

    def _bound_ns(self, plans: Sequence[tuple[PlacementCandidate, PlanColumns]]) -> float:
        """The least time of plans if the tables that they copy in addition cost nothing."""
        free = [replace(columns, copied=self._fewest) for _, columns in plans]
        if not self._evaluator.knows(free[0]):
            return max(self._rest_ns, float(self._evaluator.price(free).busiest_ns.min()))
        # The frame is known, so no plan is built.
        found = self._evaluator.measure_columns(free, lambda _: plan_by_rows(self._task))
        return float(found.times.period_ns.min())

    def _replay(
        self, plans: Sequence[tuple[PlacementCandidate, PlanColumns | None]]
    ) -> list[_Node]:
        """Every plan with its time without contention, which slows busy ranks most."""
        evaluator, task = self._evaluator, self._task
        candidates, columns = zip(*plans, strict=True)
        found = evaluator.measure_columns(columns, lambda place: candidates[place].to_plan(task))
        is_too_large = found.peak_bytes > evaluator.cluster.device.memory_bytes
        self.replayed += len(candidates)
        return [
            _Node(time_ns, busiest_ns, one.kind, partial(self._predict, one, large), one, large)
            for one, time_ns, busiest_ns, large in zip(
                candidates,
                found.times.period_ns.tolist(),
                found.busiest_ns.tolist(),
                is_too_large.tolist(),
                strict=True,
            )
        ]

    def _predict(self, one: PlacementCandidate, is_too_large: bool) -> list[_Node]:
        """The plan with its time under contention."""
        evaluator, plan = self._evaluator, one.to_plan(self._task)
        job = build_dlrm_job(evaluator.spec, plan=plan, stack=evaluator.stack)
        options = PredictOptions(samples=0, is_explained=False)
        question = Question(job, options, cluster=evaluator.cluster, stack=evaluator.stack)
        time_ns = predict(question, executor=SerialExecutor()).period_ns
        return [_Node(time_ns, 0.0, None, None, one, is_too_large)]


def _reason(plan: ShardingPlan, considered: int, replayed: int) -> str:
    kinds = Counter(kind.value for kind in plan.kinds)
    shown = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    in_host = ", summed inside hosts" if plan.summed_in_host else ""
    return (
        f"No placement is stated: of {considered} candidates {replayed} were replayed, and the "
        f"fastest that fits is used ({shown}{in_host}). "
        "`perfmodel rank` compares others."
    )
