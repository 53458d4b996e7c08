"""Ranking plans: make them, judge them, order them, explain them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from embeddings.sharders import ShardingTask, build_named_plan
from embeddings.torchrec_plan import load_torchrec_plan
from perfmodel.base.errors import PlanError
from perfmodel.execution.executor import Executor
from perfmodel.planning.batches import BatchSpread, sample_batches
from perfmodel.planning.evaluate import start_and_end
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.placements import Int32s
from perfmodel.planning.question import RankQuestion, Setting, load_setting
from perfmodel.planning.ranking import (
    RankBy,
    RankedPlan,
    Ranking,
    Straggler,
    beats_next,
)
from perfmodel.planning.search import PlanSearch, SearchLimit, SearchOutcome
from perfmodel.planning.uncertainty import PlanSampler, group_by_frame
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.sampling import build_interval
from perfmodel.prediction.scenario import Mode

KEPT_ENUMERATED = 5
CHUNK = 256
SHOWN_TABLES = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """Plans to compare, those refused with reasons, and how many were judged to get there."""

    plans: tuple[ShardingPlan, ...]
    refused: tuple[tuple[str, str], ...]
    judged: int


def rank_plans(
    question: RankQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Ranking:
    """Answer *question*; searches and enumerations fan out over *executor*."""
    on_phase("building the frame", 0.0)
    setting = load_setting(question)
    evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
    made = _make_plans(question, setting, executor, on_phase)
    if not made.plans:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.refused)
        raise PlanError(f"rank: no plan could be made. {reasons}")
    on_phase("explaining", 0.8)
    return order_plans(evaluator, question, made.plans, refused=made.refused, judged=made.judged)


def order_plans(
    evaluator: PlanEvaluator,
    question: RankQuestion,
    plans: Sequence[ShardingPlan],
    *,
    refused: tuple[tuple[str, str], ...] = (),
    judged: int = 0,
) -> Ranking:
    """*plans* in order, each explained."""
    found = evaluator.measure(plans)
    drawn: dict[int, np.ndarray] = {}
    ranked: dict[int, RankedPlan] = {}
    for members in group_by_frame(plans).values():
        sampler = PlanSampler(
            evaluator, plans[members[0]], samples=question.samples, seed=question.seed
        )
        for place in members:
            plan = plans[place]
            is_period = question.mode is Mode.PERIOD
            iterations = int(found.times.iterations[place]) if is_period else 1
            drawn[place] = sampler.times_ns(plan, iterations=iterations)
            gains = sampler.gains_ns(plan, question.mode)
            peak = int(found.peak_bytes[place])
            ranked[place] = RankedPlan(
                plan=plan,
                period_ns=int(found.times.period_ns[place]),
                isolated_ns=int(found.times.isolated_ns[place]),
                interval=build_interval(
                    drawn[place], nominal_ns=int(found.time_ns(question.mode)[place])
                ),
                beats_next=None,
                bound=max(gains, key=lambda bound: gains[bound]),
                gains_ns=gains,
                straggler=_straggler(evaluator, plan),
                peak_bytes=peak,
                fits=peak <= evaluator.cluster.device.memory_bytes,
                spread=_spread(evaluator, plan, question),
            )
    order = sorted(ranked, key=lambda place: _sort_key(ranked[place], question, place))
    shares = beats_next([drawn[place] for place in order])
    return Ranking(
        plans=tuple(
            replace(ranked[place], beats_next=share)
            for place, share in zip(order, shares, strict=True)
        ),
        refused=refused,
        mode=question.mode,
        rank_by=question.rank_by,
        device_memory_bytes=evaluator.cluster.device.memory_bytes,
        plans_judged=judged + len(plans),
        assumptions=_assumptions(evaluator, plans[0], question),
    )


def _sort_key(plan: RankedPlan, question: RankQuestion, place: int) -> tuple[bool, float, int]:
    """Plans that fit first, then by time; ties in the order they were given."""
    time = float(plan.time_ns(question.mode))
    if plan.spread is not None and question.rank_by is RankBy.MEAN:
        time = plan.spread.mean_ns
    if plan.spread is not None and question.rank_by is RankBy.QUANTILE:
        time = plan.spread.high_ns
    return (not plan.fits, time, place)


def _make_plans(
    question: RankQuestion, setting: Setting, executor: Executor, on_phase: OnPhase
) -> _Made:
    # A file that cannot be read is the user's fault and stops; a sharder that finds no room is
    # an answer.
    plans = [
        load_torchrec_plan(
            file,
            tables=setting.task.tables,
            rank_count=setting.task.rank_count,
            ranks_per_host=setting.task.ranks_per_host,
        )
        for file in question.plan_files
    ]
    refused: list[tuple[str, str]] = []
    for name in question.sharders:
        try:
            plans.append(build_named_plan(name, setting.task))
        except PlanError as fault:
            refused.append((name, str(fault)))
    judged = 0
    if question.enumerate_limit:
        on_phase("enumerating", 0.1)
        found = _enumerate(question, setting, executor)
        plans += found.plans
        judged += found.judged
    if question.search_seconds > 0:
        on_phase("searching", 0.2)
        try:
            outcome = _search(question, executor, tuple(plans))
        except PlanError as fault:
            refused.append(("search", str(fault)))
        else:
            plans.append(outcome.plan)
            judged += outcome.plans_judged
    return _Made(tuple(plans), tuple(refused), judged)


def _search(
    question: RankQuestion, executor: Executor, starts: tuple[ShardingPlan, ...]
) -> SearchOutcome:
    """Several searches, each with its own seed; the best outcome counts."""
    seeds = [question.seed + number for number in range(question.searches)]
    outcomes = executor.map(search_from, (question, starts), seeds)
    best = min(outcomes, key=lambda outcome: outcome.time_ns)
    return replace(best, plans_judged=sum(outcome.plans_judged for outcome in outcomes))


def search_from(shared: tuple[RankQuestion, tuple[ShardingPlan, ...]], seed: int) -> SearchOutcome:
    """One search; a function of the module, so that it can run on any worker."""
    question, starts = shared
    setting = _setting(question)
    evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
    search = PlanSearch(evaluator, setting.task, mode=question.mode, seed=seed)
    return search.run(starts, SearchLimit(question.search_seconds))


@lru_cache(maxsize=4)
def _setting(question: RankQuestion) -> Setting:
    return load_setting(question)


@lru_cache(maxsize=4)
def _evaluator(question: RankQuestion) -> PlanEvaluator:
    setting = _setting(question)
    return PlanEvaluator(setting.spec, setting.cluster, setting.stack)


def _enumerate(question: RankQuestion, setting: Setting, executor: Executor) -> _Made:
    """All plans of whole tables up to the names of ranks, if they are not too many."""
    limit = question.enumerate_limit
    all_ranks = list(islice(iter_assignments(setting.task), limit + 1))
    if len(all_ranks) > limit:
        raise PlanError(
            f"rank: more than {limit} plans of whole tables on {setting.task.rank_count} ranks. "
            "Raise --enumerate or take --search."
        )
    table = np.array(all_ranks, dtype=np.int32)
    chunks = [table[first : first + CHUNK] for first in range(0, len(table), CHUNK)]
    times = np.concatenate(executor.map(judge_assignments, question, chunks))
    best = np.argsort(times, kind="stable")[:KEPT_ENUMERATED]
    plans = tuple(
        setting.task.whole(all_ranks[place], f"enumerated-{number + 1}")
        for number, place in enumerate(best.tolist())
    )
    return _Made(plans, (), len(all_ranks))


def judge_assignments(question: RankQuestion, ranks: Int32s) -> NDArray[np.int64]:
    """Times of plans of whole tables, plans x tables; endless where one does not fit."""
    evaluator = _evaluator(question)
    task = _setting(question).task
    found = evaluator.measure_assignments(task, ranks)
    room = evaluator.cluster.device.memory_bytes
    return np.where(found.peak_bytes <= room, found.time_ns(question.mode), np.iinfo(np.int64).max)


def iter_assignments(task: ShardingTask) -> Iterator[tuple[int, ...]]:
    """Assignments of tables to ranks; ranks that hold nothing yet are interchangeable."""
    ranks = [0] * len(task.tables)

    def extend(place: int, used: int) -> Iterator[tuple[int, ...]]:
        if place == len(ranks):
            yield tuple(ranks)
            return
        for rank in range(min(used + 1, task.rank_count)):
            ranks[place] = rank
            yield from extend(place + 1, max(used, rank + 1))

    return extend(0, 0)


def _spread(
    evaluator: PlanEvaluator, plan: ShardingPlan, question: RankQuestion
) -> BatchSpread | None:
    if question.batches < 2:
        return None
    return sample_batches(
        evaluator, plan, mode=question.mode, batches=question.batches, seed=question.seed
    )


def _straggler(evaluator: PlanEvaluator, plan: ShardingPlan) -> Straggler:
    """The rank that comes last to collectives, by what the others wait for it in all."""
    frame = evaluator.frame(plan)
    priced = evaluator.price([plan])
    ready, _ = start_and_end(frame, priced.kinds[0], priced.durations_ns[0])
    waited = np.zeros(plan.rank_count)
    for slot in np.flatnonzero(frame.is_rendezvous):
        last = int(ready[slot].argmax())
        waited[last] += float((ready[slot, last] - ready[slot]).mean())
    rank = int(waited.argmax())
    shards = plan.shards_of_rank[rank]
    costs = evaluator.pieces_alone(plan.tables, shards).total_ns if shards else np.zeros(0)
    dearest = np.argsort(-costs, kind="stable")[:SHOWN_TABLES]
    names = tuple(plan.tables[shards[int(place)].table].name for place in dearest)
    return Straggler(rank, float(waited[rank]), names)


def _assumptions(
    evaluator: PlanEvaluator, plan: ShardingPlan, question: RankQuestion
) -> tuple[str, ...]:
    sentences = list(evaluator.price_variants(plan).job.facts.assumptions)
    sentences.append(
        "Kernels and collectives that overlap take as long as alone, as with "
        "`predict --no-interference`."
    )
    if question.batches:
        sentences.append(
            "Sampled batches differ in how many rows each table is asked for, how many of them are "
            "different, and in which rows are the hottest; where a table states no deviation, bags "
            "are taken to be Poisson."
        )
    return tuple(sentences)
