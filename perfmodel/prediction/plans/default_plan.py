"""Sharders on a machine: the plan of each, and the default one, the fastest by replay.

The default is chosen among the plans that the balanced sharder considers.

The sharder orders plans by a rule that knows no machine. Here they are replayed on the machine, by
the evaluator that `rank` uses, and the fastest that fits is taken. The sharder considers the plans
of a larger job too, so a smaller job gets no worse one.

All plans that copy the same tables to every rank cost little more to replay than one of them.
Other copies, and sums inside hosts, are replayed only where they promise most, and not at all where
the rest of the iteration takes as long as the best plan. These replays leave contention out; plans
that may be the fastest with it are predicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
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
from perfmodel.prediction.plans.evaluator import PlanEvaluator, can_compare
from perfmodel.prediction.plans.layout import COPIED, Cut, LayoutBook
from perfmodel.prediction.plans.placements import FrameKey, PlanColumns
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.job import build_dlrm_job, sharding_task
from perfmodel.workloads.dlrm.memory import room_for_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster

MOST_PIECES = 20_000
"""Pieces of all plans that are priced: with thousands of ranks or tables these are few plans."""
MOST_FRAMES = 24
"""Sets of plans with copied tables of which one frame is built and all are replayed."""
MOST_STEPPED, MOST_CUTS = 10, 6
"""Plans with sums inside hosts, which are replayed whole; and plans of which each is the best."""
MOST_CONTENDED = 16
"""Plans that are predicted with contention."""
FAR = 1.5
"""Time of a plan with sums inside hosts, over the best, beyond which others are not looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenPlan:
    """A plan, and why it was taken, in a sentence."""

    plan: ShardingPlan
    reason: str


class _Judged(NamedTuple):
    """A plan and what it is judged by."""

    candidate: Candidate
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
    flat = _Flat(evaluator, task, _shortlist([one for one in candidates if one.per_place == 1]))
    contention = _Contention(evaluator, task)
    judged = flat.judge_fewest_copies()
    fitting = [one for one in judged if not one.is_too_large]
    least_ns = contention.time_ns(min(fitting, key=_by_time)) if fitting else inf
    if least_ns > flat.rest_ns():
        judged += flat.judge_copies(least_ns)
        stepped = [one for one in candidates if one.per_place > 1]
        judged += _judge_stepped(evaluator, task, stepped, least_ns)
    best = contention.choose(judged).to_plan(task)
    return ChosenPlan(best, _reason(best, len(candidates), len(judged)))


class _Contention:
    """Times under contention, which never makes a plan faster."""

    def __init__(self, evaluator: PlanEvaluator, task: ShardingTask) -> None:
        self._evaluator, self._task = evaluator, task
        self._known_ns: dict[Candidate, int] = {}

    def time_ns(self, one: _Judged) -> int:
        """The predicted iteration."""
        if one.candidate not in self._known_ns:
            evaluator, plan = self._evaluator, one.candidate.to_plan(self._task)
            job = build_dlrm_job(evaluator.spec, plan=plan, stack=evaluator.stack)
            options = PredictOptions(samples=0, is_explained=False)
            question = Question(job, options, cluster=evaluator.cluster, stack=evaluator.stack)
            found = predict(question, executor=SerialExecutor())
            self._known_ns[one.candidate] = found.period_ns
        return self._known_ns[one.candidate]

    def choose(self, judged: Sequence[_Judged]) -> Candidate:
        """The plan with the shortest iterations that fits, of equal ones the least busy.

        Only plans whose time without contention is below the least time with it are predicted,
        those first that promise most: contention slows busy ranks most.
        """
        left = sorted(judged, key=_by_time)
        first = left[0]
        best, least_ns = first.candidate, inf
        # By kind: contention over the time of the busiest ranks, as last seen.
        slopes: defaultdict[Hashable, float] = defaultdict(float)

        def promised_ns(one: _Judged) -> float:
            return one.time_ns + slopes[one.candidate.kind] * one.busiest_ns

        for _ in range(MOST_CONTENDED):
            left = [
                one
                for one in left
                if one.time_ns < least_ns and one.is_too_large == first.is_too_large
            ]
            if not left or len(judged) == 1:
                break
            one = min(left, key=promised_ns)
            left.remove(one)
            time_ns = self.time_ns(one)
            slopes[one.candidate.kind] = (time_ns - one.time_ns) / one.busiest_ns
            if time_ns < least_ns:
                best, least_ns = one.candidate, time_ns
        return best


def _shortlist(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The first of each way, the second of each, and so on, up to MOST_PIECES."""
    turns: dict[Hashable, Iterator[int]] = {}
    ordered = sorted(candidates, key=lambda one: next(turns.setdefault(one.way, count())))
    pieces = accumulate(one.piece_count for one in ordered)
    return ordered[: max(1, bisect_right(list(pieces), MOST_PIECES))]


class _Flat:
    """Plans without sums inside hosts, by frame: one is built for all plans that share it."""

    def __init__(
        self, evaluator: PlanEvaluator, task: ShardingTask, candidates: Sequence[Candidate]
    ) -> None:
        self._evaluator, self._task, self._candidates = evaluator, task, candidates
        book, tables = LayoutBook(task, evaluator.catalog), range(len(task.tables))
        self._columns: list[PlanColumns] = []
        for one in candidates:
            cut_of = {place: Cut(*cut) for place, *cut in one.cuts}
            cuts = [cut_of.get(place, COPIED) for place in tables]
            self._columns.append(book.build(cuts, one.places.tolist()))
        self._of_frame: dict[FrameKey, list[int]] = {}
        for place, columns in enumerate(self._columns):
            self._of_frame.setdefault(columns.frame_key, []).append(place)
        self._fewest = min((one.copied for one in self._columns), key=len, default=())
        self._first = sorted(frame for frame in self._of_frame if frame[0] == self._fewest)

    def judge_fewest_copies(self) -> list[_Judged]:
        """The plans that copy fewest tables."""
        return [one for frame in self._first for one in self._judge(frame)]

    def rest_ns(self) -> float:
        """The time of the rest of an iteration, once the plans with fewest copies are judged."""
        return min(map(self._evaluator.rest_ns, self._first), default=0)

    def judge_copies(self, least_ns: float) -> list[_Judged]:
        """Plans of the frames that promise most of those that copy more tables.

        Copied tables never make the rest of an iteration faster. So the time that plans would
        take without them is a bound; frames whose bound is not below *least_ns* are left out. What
        copies add to it is estimated by their cost, and by what they added in the last frame.
        """
        frames = sorted(self._of_frame.keys() - self._first)
        bound_ns = {frame: self._bound_ns(frame) for frame in frames}
        copied_ns = {frame: self._copied_ns(frame) for frame in frames}
        judged: list[_Judged] = []
        slope = 1.0
        for _ in range(MOST_FRAMES):
            frames = [frame for frame in frames if bound_ns[frame] < least_ns]
            if not frames:
                break
            frame = min(frames, key=lambda one: bound_ns[one] + slope * copied_ns[one])
            frames.remove(frame)
            some = self._judge(frame)
            fastest_ns = min(one.time_ns for one in some)
            slope = (fastest_ns - bound_ns[frame]) / copied_ns[frame]
            judged += some
        return judged

    def _bound_ns(self, frame: FrameKey) -> float:
        """The least time of the plans of *frame* if their copied tables cost nothing."""
        columns = [
            replace(self._columns[place], copied=self._fewest) for place in self._of_frame[frame]
        ]
        if not self._evaluator.knows(columns[0]):
            return float(self._evaluator.price(columns).busiest_ns.min())
        return min(one.time_ns for one in self._judge(frame, columns))

    def _copied_ns(self, frame: FrameKey) -> float:
        copied = [self._task.tables[place] for place in frame[0]]
        return float(self._evaluator.pricer.copied_ns(copied).sum())

    def _judge(self, frame: FrameKey, columns: Sequence[PlanColumns] = ()) -> list[_Judged]:
        """The plans of *frame*, or what they would be with other *columns*."""
        places = self._of_frame[frame]
        candidates = [self._candidates[place] for place in places]
        own = columns or [self._columns[place] for place in places]
        return _judge(self._evaluator, self._task, candidates, own)


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
    replayed = 0
    while wanted and len(judged) < MOST_STEPPED and replayed < MOST_PIECES:
        copies = wanted.pop(0)
        if copies not in judged:
            some = _shortlist(of_copies[copies])[:MOST_CUTS]
            one = _least_busy(evaluator, task, some)
            judged[copies] = _judge(evaluator, task, [one], [None])[0]
            replayed += one.piece_count
        if not wanted:
            best = min(judged, key=lambda count: _by_time(judged[count]))
            if judged[best].time_ns > FAR * least_ns:
                break
            place = counts.index(best)
            near = counts[max(place - 1, 0) : place + 2]
            wanted = [count for count in near if count not in judged][:1]
    return list(judged.values())


def _least_busy(
    evaluator: PlanEvaluator, task: ShardingTask, candidates: Sequence[Candidate]
) -> Candidate:
    """The one of *candidates* with sums inside hosts that keeps its busiest ranks least busy."""
    if len(candidates) == 1:
        return candidates[0]
    columns = [evaluator.catalog.columns_of(one.to_plan(task)) for one in candidates]
    lookup_ns, update_ns, pooled_ns, gradients_ns = evaluator.price(columns).own_ns.max(axis=2).T
    # Each rank of a host sends a part of the sums.
    sent_ns = (pooled_ns + gradients_ns) / candidates[0].per_place
    return candidates[int((lookup_ns + update_ns + sent_ns).argmin())]


def _judge(
    evaluator: PlanEvaluator,
    task: ShardingTask,
    candidates: Sequence[Candidate],
    columns: Sequence[PlanColumns | None],
) -> list[_Judged]:
    found = evaluator.measure_columns(columns, lambda place: candidates[place].to_plan(task))
    is_too_large = found.peak_bytes > evaluator.cluster.device.memory_bytes
    measures = is_too_large.tolist(), found.times.period_ns.tolist(), found.busiest_ns.tolist()
    return list(map(_Judged, candidates, *measures))


def _reason(plan: ShardingPlan, considered: int, replayed: int) -> str:
    kinds = Counter(kind.value for kind in plan.kinds)
    shown = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    in_host = ", summed inside hosts" if plan.summed_in_host else ""
    return (
        f"No placement is stated: of {considered} candidates {replayed} were replayed, and the "
        f"fastest that fits is used ({shown}{in_host}). "
        "`perfmodel rank` compares others."
    )
