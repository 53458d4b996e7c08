"""Ranking plans: make them, judge them, order them, explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import PlanError
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.condensed import evaluate_variants, start_and_end
from perfmodel.execution.executor import Executor
from perfmodel.execution.serial import SerialExecutor
from perfmodel.planning.batches import BatchSpread, sample_batches
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.frame import build_frame
from perfmodel.planning.making import MadePlans, make_plans
from perfmodel.planning.plan_costs import GRADIENTS, INDICES, LOOKUP, POOLED, UPDATE
from perfmodel.planning.question import RankQuestion, load_setting
from perfmodel.planning.ranking import (
    PlanBound,
    RankBy,
    RankedPlan,
    Ranking,
    Straggler,
    beats_next,
)
from perfmodel.prediction.answer import Answer
from perfmodel.prediction.answering import answer
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.question import Asked, workload_question
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster

SHOWN_TABLES = 3


def rank_plans(
    question: RankQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Ranking:
    """Answer *question*; searches and enumerations fan out over *executor*."""
    on_phase("building the frame", 0.0)
    setting = load_setting(question)
    evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
    made = make_plans(question, setting, executor, on_phase)
    if not made.plans:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.refused)
        raise PlanError(f"rank: no plan could be made. {reasons}")
    on_phase("answering", 0.8)
    return order_plans(evaluator, question, made, executor=executor)


def order_plans(
    evaluator: PlanEvaluator,
    question: RankQuestion,
    made: MadePlans,
    *,
    executor: Executor,
) -> Ranking:
    """The plans that were *made* in order of their answers, each explained."""
    plans = made.plans
    askers = _Askers(evaluator.spec, evaluator.cluster, evaluator.stack, _asked(question))
    answered = executor.map(answer_plan, askers, plans)
    ranked = [
        _rank_one(evaluator, question, plan, found)
        for plan, found in zip(plans, answered, strict=True)
    ]
    order = sorted(range(len(ranked)), key=lambda place: sort_key(ranked[place], question, place))
    shares = beats_next([np.array(ranked[place].answer.drawn_ns) for place in order])
    return Ranking(
        plans=tuple(
            replace(ranked[place], beats_next=share)
            for place, share in zip(order, shares, strict=True)
        ),
        refused=made.refused,
        mode=question.mode,
        rank_by=question.rank_by,
        device_memory_bytes=evaluator.cluster.device.memory_bytes,
        plans_judged=made.judged + len(plans),
        assumptions=_assumptions(ranked[order[0]].answer, made, question),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Askers:
    """What the questions about all plans share."""

    spec: DlrmSpec
    cluster: Cluster
    stack: SoftwareStack
    asked: Asked


@dataclass(frozen=True, slots=True, eq=False)
class PlanAnswer:
    """What `predict --plan` answers for a plan, and what its fullest rank needs."""

    answer: Answer
    peak_bytes: int


def answer_plan(askers: _Askers, plan: ShardingPlan) -> PlanAnswer:
    """Answer one plan; a function of the module, so it can run on any worker."""
    question = workload_question(
        askers.spec, cluster=askers.cluster, stack=askers.stack, asked=askers.asked, plan=plan
    )
    peak_bytes = max(memory.total_bytes for memory in question.memory_of_rank)
    return PlanAnswer(answer(question, executor=SerialExecutor()), peak_bytes)


def _asked(question: RankQuestion) -> Asked:
    return Asked(
        mode=question.mode, samples=question.samples, seed=question.seed, is_explained=False
    )


def _rank_one(
    evaluator: PlanEvaluator, question: RankQuestion, plan: ShardingPlan, found: PlanAnswer
) -> RankedPlan:
    gains = find_gains(evaluator, plan, question.mode)
    return RankedPlan(
        plan=plan,
        answer=found.answer,
        beats_next=None,
        bound=max(gains, key=lambda bound: gains[bound]),
        gains_ns=gains,
        straggler=_straggler(evaluator, plan),
        peak_bytes=found.peak_bytes,
        fits=found.peak_bytes <= evaluator.cluster.device.memory_bytes,
        spread=_spread(evaluator, plan, question, found.answer.iteration_ns),
    )


def sort_key(plan: RankedPlan, question: RankQuestion, place: int) -> tuple[bool, float, int]:
    """Plans that fit first, then by time; ties in the order they were given."""
    time = float(plan.answer.iteration_ns)
    if plan.spread is not None and question.rank_by is RankBy.MEAN:
        time = plan.spread.mean_ns
    if plan.spread is not None and question.rank_by is RankBy.QUANTILE:
        time = plan.spread.high_ns
    return (not plan.fits, time, place)


def _spread(
    evaluator: PlanEvaluator, plan: ShardingPlan, question: RankQuestion, iteration_ns: int
) -> BatchSpread | None:
    """The spread over sampled batches, around the time that was answered."""
    if question.batches < 2:
        return None
    spread = sample_batches(
        evaluator, plan, mode=question.mode, batches=question.batches, seed=question.seed
    )
    condensed_ns = int(evaluator.measure([plan]).time_ns(question.mode)[0])
    return spread.scaled(iteration_ns / condensed_ns)


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


def _assumptions(best: Answer, made: MadePlans, question: RankQuestion) -> tuple[str, ...]:
    sentences = list(best.assumptions)
    sentences.append(
        "The plans that are listed were answered in full, as `predict --plan` answers; what would "
        "shorten them, and who comes last, is judged with interference left out."
    )
    if made.judged:
        sentences.append(
            f"The {made.judged:,} plans that were tried to find them were ordered with "
            "interference left out."
        )
    if question.batches:
        sentences.append(
            "Sampled batches differ in how many rows each table is asked for, how many of them are "
            "different, and in which rows are the hottest; where a table states no deviation, bags "
            "are taken to be Poisson. Their spread is found with interference left out and laid "
            "around the time that was answered."
        )
    return tuple(sentences)


FASTER = 0.9
"""How much faster a part is made to see what it bounds."""
_PLAN_PARTS = {
    PlanBound.LOOKUP: (LOOKUP, UPDATE),
    PlanBound.ALL_TO_ALL: (POOLED, GRADIENTS, INDICES),
}
_FIXED_FAMILIES = {
    PlanBound.MLP: ("gemm", "memory", "attention"),
    PlanBound.REDUCTION: (COMMUNICATION_FAMILY,),
    PlanBound.HOST: ("host",),
}


def find_gains(evaluator: PlanEvaluator, plan: ShardingPlan, mode: Mode) -> dict[PlanBound, float]:
    """What a tenth less of each part would save."""
    variants, priced = evaluator.price_variants(plan), evaluator.price([plan])
    changed = [_faster(variants, families) for families in _FIXED_FAMILIES.values()]
    vectors = np.column_stack([variants.durations.values_ns[:, 0], *changed])
    frame = build_frame(variants, np.ascontiguousarray(vectors))

    def time_ns(durations_ns: NDArray[np.int64], vector: int) -> int:
        found = evaluate_variants(frame, priced.kinds, durations_ns, vector=vector)
        return int((found.period_ns if mode is Mode.PERIOD else found.isolated_ns)[0])

    nominal_ns = time_ns(priced.durations_ns, 0)
    gains = {}
    for bound, columns in _PLAN_PARTS.items():
        durations_ns = priced.durations_ns.copy()
        durations_ns[:, columns] = np.rint(FASTER * durations_ns[:, columns])
        gains[bound] = float(nominal_ns - time_ns(durations_ns, 0))
    for vector, bound in enumerate(_FIXED_FAMILIES, start=1):
        gains[bound] = float(nominal_ns - time_ns(priced.durations_ns, vector))
    return gains


def _faster(priced: PricedJob, families: Sequence[str]) -> NDArray[np.int64]:
    chosen = np.isin(priced.family, [FAMILIES.index(name) for name in families])
    scaled = np.where(chosen, FASTER * priced.float_ns, priced.float_ns)
    return np.rint(scaled).astype(np.int64)
