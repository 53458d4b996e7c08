"""Sharders on a machine: the plan of each, and the default one, the fastest by replay.

The default is chosen among the plans that the balanced sharder considers.

The sharder orders plans by a rule that knows no machine. Here they are replayed on the machine, by
the evaluator that `rank` uses, and the fastest that fits is taken. The sharder considers most
plans of a larger job too, so a smaller job gets no worse one, but for differences below 1 %.

All plans that copy the same tables to every rank cost little more to replay than one of them.
Other copies, and sums inside hosts, are replayed only where they promise most. These replays leave
contention out; where it may decide, two or three plans are predicted with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from operator import attrgetter
from typing import NamedTuple

from embeddings.balanced import Candidate, find_candidates, plan_by_rows
from embeddings.offloading import OFFLOADED, exceeds_devices, offload_tables
from embeddings.plan import ShardingPlan
from embeddings.sharders import DEFAULT_SHARDER, build_named_plan
from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.plans.evaluator import PlanEvaluator, can_compare, has_steps
from perfmodel.prediction.plans.placements import FrameKey, PlanColumns
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job, sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster

MOST_PLANS, MOST_PIECES = 64, 20_000
"""Plans that are priced, and pieces of all of them: with thousands of ranks these are few plans."""
MOST_FRAMES = 4
"""Sets of plans with copied tables of which one frame is built and all are replayed."""
MOST_STEPPED, MOST_CUTS = 5, 6
"""Plans with sums inside hosts, which are replayed whole; and plans of which each is the best."""
BUSIER = 1.02
"""Time of the busiest ranks of one plan over that of another that differ."""
MOST_CONTENDED = 4
"""Plans that are predicted with contention."""
NEAR = 1.1
"""Time of a plan without contention, over the best, up to which it may still be the fastest."""
FAR = 1.5
"""The same for plans with sums inside hosts, beyond which others of them are not looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenPlan:
    """A plan, and why it was taken, in a sentence."""

    plan: ShardingPlan
    reason: str


class _Judged(NamedTuple):
    """A plan and what it is judged by."""

    plan: ShardingPlan
    is_too_large: bool
    time_ns: int
    busiest_ns: float


_by_time = attrgetter("is_too_large", "time_ns", "busiest_ns")


def find_default(
    spec: DlrmSpec, cluster: Cluster, stack: SoftwareStack, tables: tuple[EmbeddingTable, ...]
) -> ChosenPlan | None:
    """The default placement of *tables*; None where plans do not compare."""
    if not can_compare(spec, cluster, stack):
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
    flat = [one.to_plan(task) for one in _shortlist(candidates) if one.per_place == 1]
    frames = _Frames(evaluator, flat)
    judged = frames.judge_fewest_copies()
    best = _find_undecided(evaluator, judged)
    if best is None:
        judged += frames.judge_copies(_least_ns(judged))
        stepped = [one for one in candidates if one.per_place > 1]
        judged += _judge_stepped(evaluator, task, stepped, _least_ns(judged))
        best = _choose(evaluator, judged)
    return ChosenPlan(best, _reason(best, len(candidates), len(judged)))


def _least_ns(judged: Sequence[_Judged]) -> float:
    return min((one.time_ns for one in judged), default=inf)


def _find_undecided(evaluator: PlanEvaluator, judged: Sequence[_Judged]) -> ShardingPlan | None:
    """The least busy plan where the rest of the iteration decides; None where plans do.

    Then the fastest plans take equally long although some are busier. Copies and sums inside hosts
    would only add to what all ranks do.
    """
    fastest = [one for one in judged if one.time_ns == _least_ns(judged)]
    best = min(fastest, key=_by_time, default=None)
    if best is None or best.is_too_large:
        return None
    if all(one.busiest_ns <= BUSIER * best.busiest_ns for one in fastest):
        return None
    return best.plan if _contended_ns(evaluator, best.plan) == best.time_ns else None


def _choose(evaluator: PlanEvaluator, judged: Sequence[_Judged]) -> ShardingPlan:
    """The plan with the shortest iterations under contention, of equal ones the first.

    Contention never makes a plan faster. So only plans whose time without it is below the least
    time with it are predicted, those first that promise most: contention slows busy ranks most.
    """
    best = min(judged, key=_by_time)
    left = sorted((one for one in judged if one.is_too_large == best.is_too_large), key=_by_time)
    least_ns: float = inf
    # By kind of plan: contention over the time of the busiest ranks, as last seen.
    slopes = {False: 0.0, True: 0.0}
    for _ in range(MOST_CONTENDED):
        left = [one for one in left if one.time_ns < least_ns]
        if not left or (least_ns == inf and not _may_be_beaten(left)):
            break
        next_one = min(
            left, key=lambda one: one.time_ns + slopes[has_steps(one.plan)] * one.busiest_ns
        )
        left.remove(next_one)
        contended_ns = _contended_ns(evaluator, next_one.plan)
        slopes[has_steps(next_one.plan)] = (contended_ns - next_one.time_ns) / next_one.busiest_ns
        if contended_ns < least_ns:
            best, least_ns = next_one, contended_ns
    return best.plan


def _may_be_beaten(ordered: Sequence[_Judged]) -> bool:
    """Whether a plan that is near the first of *ordered* ones is less busy, or of another kind.

    Kinds differ in what overlaps: sums inside hosts, and gradients of copied tables.
    """
    first, *others = ordered
    return any(
        one.busiest_ns < first.busiest_ns or _kind_of(one.plan) != _kind_of(first.plan)
        for one in others
        if one.time_ns <= NEAR * first.time_ns
    )


def _kind_of(plan: ShardingPlan) -> tuple[bool, bool]:
    return has_steps(plan), bool(plan.copied_tables)


def _contended_ns(evaluator: PlanEvaluator, plan: ShardingPlan) -> int:
    job = build_dlrm_job(evaluator.spec, plan=plan, stack=evaluator.stack)
    options = PredictOptions(samples=0, is_explained=False)
    question = Question(job, options, cluster=evaluator.cluster, stack=evaluator.stack)
    return predict(question, executor=SerialExecutor()).period_ns


def _shortlist(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Some of each way, up to MOST_PLANS and MOST_PIECES."""
    taken: list[Candidate] = []
    pieces = 0
    for one in _in_turns(candidates, attrgetter("way")):
        pieces += one.piece_count
        if taken and (pieces > MOST_PIECES or len(taken) == MOST_PLANS):
            break
        taken.append(one)
    return taken


def _in_turns(
    candidates: Sequence[Candidate], kind_of: Callable[[Candidate], Hashable]
) -> list[Candidate]:
    """The first of each kind, the second of each, and so on."""
    turns: dict[Hashable, Iterator[int]] = {}
    return sorted(candidates, key=lambda one: next(turns.setdefault(kind_of(one), count())))


class _Frames:
    """Plans without sums inside hosts, by frame: one is built for all plans that share it."""

    def __init__(self, evaluator: PlanEvaluator, plans: Sequence[ShardingPlan]) -> None:
        self._evaluator, self._plans = evaluator, plans
        self._columns = [evaluator.catalog.columns_of(plan) for plan in plans]
        self._of_frame: dict[FrameKey, list[int]] = {}
        for place, one in enumerate(self._columns):
            self._of_frame.setdefault(one.frame_key, []).append(place)
        self._fewest = min((one.copied for one in self._columns), key=len, default=())

    def judge_fewest_copies(self) -> list[_Judged]:
        """The plans that copy fewest tables."""
        frames = sorted(frame for frame in self._of_frame if frame[0] == self._fewest)
        return self._judge([place for frame in frames for place in self._of_frame[frame]])

    def judge_copies(self, least_ns: float) -> list[_Judged]:
        """Plans of the frames that promise most of those that copy more tables.

        Copied tables never make the rest of an iteration faster. So the time that plans would
        take without them is a bound; frames whose bound is far above *least_ns* are left out. What
        copies add to it is estimated by their cost, and by what they added in the last frame.
        """
        frames = sorted(frame for frame in self._of_frame if frame[0] != self._fewest)
        bound_ns = {frame: self._bound_ns(frame) for frame in frames}
        copied_ns = {frame: self._copied_ns(frame) for frame in frames}
        judged: list[_Judged] = []
        slope = 1.0
        for _ in range(MOST_FRAMES):
            frames = [frame for frame in frames if bound_ns[frame] < NEAR * least_ns]
            if not frames:
                break
            frame = min(frames, key=lambda one: bound_ns[one] + slope * copied_ns[one])
            frames.remove(frame)
            some = self._judge(self._of_frame[frame])
            slope = (_least_ns(some) - bound_ns[frame]) / copied_ns[frame]
            least_ns = min(least_ns, _least_ns(some))
            judged += some
        return judged

    def _bound_ns(self, frame: FrameKey) -> float:
        """The least time of the plans of *frame* if their copied tables cost nothing."""
        columns = [
            replace(self._columns[place], copied=self._fewest) for place in self._of_frame[frame]
        ]
        if not self._evaluator.knows(columns[0]):
            return float(self._evaluator.price(columns).busiest_ns.min())
        found = self._evaluator.measure_columns(columns, self._plans.__getitem__)
        return float(found.times.period_ns.min())

    def _copied_ns(self, frame: FrameKey) -> float:
        copied = self._plans[self._of_frame[frame][0]].copied_tables
        return float(self._evaluator.pricer.copied_ns(copied).sum())

    def _judge(self, places: Sequence[int]) -> list[_Judged]:
        return _judge(
            self._evaluator,
            [self._plans[place] for place in places],
            [self._columns[place] for place in places],
        )


def _judge_stepped(
    evaluator: PlanEvaluator, task: ShardingTask, candidates: Sequence[Candidate], least_ns: float
) -> list[_Judged]:
    """Some plans with sums inside hosts.

    By the number of copied tables: the fewest, those with least work, and from the fastest of them
    on to its neighbours. None of the others if the first are far above *least_ns*.
    """
    of_copies: dict[int, list[Candidate]] = {}
    for one in candidates:
        of_copies.setdefault(len(one.copied), []).append(one)
    counts = sorted(of_copies)
    judged: dict[int, _Judged] = {}
    wanted = [counts[0], len(candidates[0].copied)] if counts else []
    while wanted and len(judged) < MOST_STEPPED:
        copies = wanted.pop(0)
        if copies not in judged:
            some = _shortlist(of_copies[copies])[:MOST_CUTS]
            plan = _least_busy(evaluator, [one.to_plan(task) for one in some])
            judged[copies] = _judge(evaluator, [plan], [None])[0]
        if not wanted:
            best = min(judged, key=lambda count: _by_time(judged[count]))
            if judged[best].time_ns > FAR * least_ns:
                break
            place = counts.index(best)
            near = counts[max(place - 1, 0) : place + 2]
            wanted = [count for count in near if count not in judged][:1]
    return list(judged.values())


def _least_busy(evaluator: PlanEvaluator, plans: Sequence[ShardingPlan]) -> ShardingPlan:
    """The one of *plans* with sums inside hosts that keeps its busiest ranks least busy."""
    if len(plans) == 1:
        return plans[0]
    own_ns = evaluator.price([evaluator.catalog.columns_of(plan) for plan in plans]).own_ns
    lookup_ns, update_ns, pooled_ns, gradients_ns = own_ns.max(axis=2).T
    # Each rank of a host sends a part of the sums.
    sent_ns = (pooled_ns + gradients_ns) / (plans[0].ranks_per_host or 1)
    return plans[int((lookup_ns + update_ns + sent_ns).argmin())]


def _judge(
    evaluator: PlanEvaluator, plans: Sequence[ShardingPlan], columns: Sequence[PlanColumns | None]
) -> list[_Judged]:
    found = evaluator.measure_columns(columns, plans.__getitem__)
    is_too_large = found.peak_bytes > evaluator.cluster.device.memory_bytes
    measures = is_too_large.tolist(), found.times.period_ns.tolist(), found.busiest_ns.tolist()
    return list(map(_Judged, plans, *measures))


def _reason(plan: ShardingPlan, considered: int, replayed: int) -> str:
    kinds = Counter(kind.value for kind in plan.kinds)
    shown = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    in_host = ", summed inside hosts" if plan.summed_in_host else ""
    return (
        f"No placement is stated: of {considered} candidates {replayed} were replayed, and the "
        f"fastest that fits is used ({shown}{in_host}). "
        "`perfmodel rank` compares others."
    )
