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
"""Sets of plans that share one frame and are all replayed."""
MOST_STEPPED = 4
"""Plans with sums inside hosts, which are replayed whole."""
NEAR = 1.1
"""Time of a plan without contention, over the best, up to which it may still be the fastest."""
FAR = 1.5
"""The same for plans with sums inside hosts, beyond which others of them are not looked at."""
CALM = 0.9
"""Time of the busiest ranks, over those of the fastest plan, that is worth a closer look."""


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
    some = _shortlist(candidates)
    flat = [one.to_plan(task) for one in some if one.per_place == 1]
    stepped = [one for one in some if one.per_place > 1]
    judged = _judge_flat(evaluator, flat)
    for one in _in_turns(stepped, attrgetter("copied"))[:MOST_STEPPED]:
        least_ns = min((other.time_ns for other in judged), default=inf)
        judged += _judge(evaluator, [one.to_plan(task)], [None])
        if judged[-1].time_ns > FAR * least_ns:
            break
    best = _choose(evaluator, judged)
    return ChosenPlan(best, _reason(best, len(candidates), len(judged)))


def _choose(evaluator: PlanEvaluator, judged: Sequence[_Judged]) -> ShardingPlan:
    """The fastest, of equal ones the first; or one that is near and suffers less from contention.

    Contention slows busy ranks most. So the fastest plans with and without sums inside hosts, and
    of each kind one that is much less busy, are predicted with contention.
    """
    best = min(judged, key=_by_time)
    finalists = []
    for is_stepped in (False, True):
        near = [
            one
            for one in judged
            if has_steps(one.plan) == is_stepped
            and one.is_too_large == best.is_too_large
            and one.time_ns <= NEAR * best.time_ns
        ]
        if not near:
            continue
        fastest = min(near, key=_by_time)
        calm = min(near, key=attrgetter("busiest_ns", "time_ns"))
        finalists += [fastest, calm] if calm.busiest_ns < CALM * fastest.busiest_ns else [fastest]
    if len(finalists) == 1:
        return best.plan
    times_ns = [(_contended_ns(evaluator, one.plan), one.busiest_ns) for one in finalists]
    return finalists[times_ns.index(min(times_ns))].plan


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


def _judge_flat(evaluator: PlanEvaluator, plans: Sequence[ShardingPlan]) -> list[_Judged]:
    """Plans without sums inside hosts, of the frames that promise most."""
    columns = [evaluator.catalog.columns_of(plan) for plan in plans]
    of_frame: dict[FrameKey, list[int]] = {}
    for place, one in enumerate(columns):
        of_frame.setdefault(one.frame_key, []).append(place)
    least_ns = {}
    for frame, places in of_frame.items():
        busiest_ns = evaluator.price([columns[place] for place in places]).busiest_ns
        copied = plans[places[0]].copied_tables
        least_ns[frame] = float(busiest_ns.min() + evaluator.pricer.copied_ns(copied).sum())
    # Those that copy fewest tables, as the host may decide, and those with the least work.
    least_copied = min((len(frame[0]) for frame in of_frame), default=0)
    fewest = sorted(frame for frame in of_frame if len(frame[0]) == least_copied)
    others = sorted(of_frame.keys() - set(fewest), key=lambda frame: (least_ns[frame], frame))
    chosen = [place for frame in fewest + others[: MOST_FRAMES - 1] for place in of_frame[frame]]
    return _judge(
        evaluator, [plans[place] for place in chosen], [columns[place] for place in chosen]
    )


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
