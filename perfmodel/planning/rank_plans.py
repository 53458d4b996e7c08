"""Ranking plans: make, predict, order and explain them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.base.cautions import join_cautions
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.planning.making import MadePlans, load_task, make_plans
from perfmodel.planning.plan_work import (
    PlanLoads,
    PlanWork,
    RankWork,
    dearest_tables,
    difference,
    find_awaited,
    find_loads,
    find_straggler,
)
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import (
    RankedPlan,
    Ranking,
    beats_next,
    join_reasons,
    number_ties,
)
from perfmodel.prediction.answer import PathShare, Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.plans.evaluator import (
    PlanEvaluator,
    lookups_of_ranks_ns,
)
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.workloads.dlrm.dense import dense_parameters
from perfmodel.workloads.dlrm.run import DlrmRun

PAIR_SIGMA = 0.134
"""How far the ratio of two plans' times is off if all of an iteration differs (`difference`).

Four measured pairs (DLRM-DCNv2 on 8 x B200, two plans, one source) are 4.7 % off where 0.84 of the
iteration differ: 0.056. Drawn worlds (`experiments/plan_choice`) fit 0.22 without the spread of
costs, which is drawn beside it here. Set between them before the worlds were scored."""
REPEAT_SIGMA = 0.01
"""How far it is off for equal plans: measured runs do not repeat better."""
AT_ONCE = 4
"""Plans predicted between two progress reports."""


def rank_plans(
    question: RankQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Ranking:
    """Answer *question*; searches fan out over *executor*."""
    on_phase("building the frame", 0.0)
    loaded = load_task(question)
    made = make_plans(question, loaded, executor, on_phase)
    if not made.plans:
        reasons = "; ".join(join_reasons(made.refused))
        raise PlanError(f"rank: no plan could be made. {reasons}")
    ranking = order_plans(loaded.evaluator, question, made, executor=executor, on_phase=on_phase)
    return replace(ranking, facts=(*ranking.facts, *loaded.facts))


def order_plans(
    evaluator: PlanEvaluator,
    question: RankQuestion,
    made: MadePlans,
    *,
    executor: Executor,
    on_phase: OnPhase = ignore_phase,
) -> Ranking:
    """The *made* plans in order of their predicted times, each explained."""
    plans = made.plans
    options = PredictOptions(mode=question.mode, samples=question.samples, seed=question.seed)
    setting = Setting(evaluator.spec, evaluator.cluster, evaluator.stack, options)
    answered: list[PlanAnswer] = []
    for first in range(0, len(plans), AT_ONCE):
        on_phase(f"predicting plan {first + 1} of {len(plans)}", first / len(plans))
        answered += executor.map(answer_plan, setting, plans[first : first + AT_ONCE])
    ranked: list[RankedPlan] = []
    for plan, found in zip(plans, answered, strict=True):
        on_phase(f"finding the loads of {plan.name}", len(ranked) / len(plans))
        ranked.append(_rank_one(evaluator, question, plan, found))
    ordered = order_by_time(ranked)
    return Ranking(
        plans=ordered,
        refused=made.refused,
        facts=_facts(evaluator, question),
        mode=question.mode,
        device_memory_bytes=evaluator.cluster.device.memory_bytes,
        plans_judged=made.judged + len(plans),
        assumptions=_assumptions(ordered[0].answer, made),
        load_ns=evaluator.load_ns,
        cautions=join_cautions(one.answer.cautions for one in ordered),
    )


def _facts(evaluator: PlanEvaluator, question: RankQuestion) -> tuple[str, ...]:
    spec, cluster = evaluator.spec, evaluator.cluster
    tables, named = spec.embedding.tables(), spec.name
    if question.tables:
        named = f"{Path(question.tables).name}, with the dense part of {named} "
        named += f"({dense_parameters(spec) / 1e6:,.3g} M parameters)"
    total = sum(table.size_bytes for table in tables) / BYTES_PER_GIB
    hosts = f"{cluster.host_count} host{'s' if cluster.host_count > 1 else ''}"
    return (
        f"{question.topology}: {hosts}, {cluster.rank_count} ranks",
        f"{named}: {len(tables):,} tables, {total:.1f} GiB of weights",
        f"batch {spec.batch:,}, {spec.batch // cluster.rank_count:,} samples per rank",
        f"stack {evaluator.stack.name}",
    )


def order_by_time(ranked: Sequence[RankedPlan]) -> tuple[RankedPlan, ...]:
    """Plans in order: those that fit first. Of equal times less memory, then more even lookups."""
    placed: list[RankedPlan] = []
    for fits in (True, False):
        timed = sorted(
            (one for one in ranked if one.fits == fits),
            key=lambda one: (
                one.answer.iteration_ns,
                one.loads.peak_bytes,
                one.loads.unevenness,
            ),
        )
        behind = len(placed)
        places = number_ties([one.answer.iteration_ns for one in timed])
        placed += [
            replace(one, place=behind + place, beats_next=None)
            for place, one in zip(places, timed, strict=True)
        ]
        heads = [place for place in range(behind, len(placed)) if placed[place].place == place + 1]
        drawn = [np.array(placed[place].answer.drawn_ns) for place in heads]
        works = [placed[place].work for place in heads]
        unlike = [difference(*pair) for pair in pairwise(works)]
        shares = beats_next(drawn, [math.hypot(REPEAT_SIGMA, PAIR_SIGMA * one) for one in unlike])
        for place, share in zip(heads, shares, strict=True):
            placed[place] = replace(placed[place], beats_next=share)
    return tuple(placed)


class PlanAnswer(NamedTuple):
    """The prediction of one plan, memory and awaited time of each rank, and its critical path."""

    prediction: Prediction
    memory_bytes: tuple[int, ...]
    awaited_ns: tuple[float, ...]
    path: tuple[PathShare, ...]
    parts_ns: dict[str, float]
    lookups_ns: tuple[float, ...]


def answer_plan(setting: Setting, plan: ShardingPlan) -> PlanAnswer:
    """What `predict --plan` answers, and what bounds the plan, from the same replay.

    A module-level function, so that any worker can run it.
    """
    question = build_question(replace(setting, plan=plan))
    answer = predict(question, executor=SerialExecutor())
    reasons = answer.reasons
    assert reasons is not None
    assert reasons.evidence.priced is not None
    return PlanAnswer(
        # What was replayed is not sent back.
        replace(answer, reasons=None),
        tuple(memory.total_bytes for memory in question.memory_of_rank),
        find_awaited(reasons.explanation, plan.rank_count),
        reasons.explanation.critical_path.by_kind,
        {
            part.value.replace("_", " "): float(part_ns)
            for part, part_ns in reasons.explanation.time.of_part_ns.items()
        },
        tuple(lookups_of_ranks_ns(reasons.evidence.priced)),
    )


def _rank_one(
    evaluator: PlanEvaluator, question: RankQuestion, plan: ShardingPlan, found: PlanAnswer
) -> RankedPlan:
    run = DlrmRun(evaluator.spec, plan.rank_count, evaluator.stack)
    loads = find_loads(run, plan, found.memory_bytes)
    room_bytes = (1 - question.reserve) * evaluator.cluster.device.memory_bytes
    return RankedPlan(
        plan=plan,
        answer=found.prediction,
        place=0,
        beats_next=None,
        path=found.path,
        straggler=find_straggler(evaluator, plan, found.awaited_ns),
        loads=loads,
        fits=max(found.memory_bytes) <= room_bytes,
        work=_work(evaluator, plan, found, loads),
    )


def _work(
    evaluator: PlanEvaluator, plan: ShardingPlan, found: PlanAnswer, loads: PlanLoads
) -> PlanWork:
    busiest, largest = int(np.argmax(found.lookups_ns)), int(np.argmax(loads.sent_bytes))
    sent = np.array(loads.sent_bytes, dtype=np.int64)
    hosts = np.array([plan.host_of(rank) for rank in range(plan.rank_count)])
    return PlanWork(
        name=plan.name,
        iteration_ns=float(found.prediction.iteration_ns),
        parts_ns=found.parts_ns,
        lookup=RankWork(
            busiest, found.lookups_ns[busiest], dearest_tables(evaluator, plan, busiest)
        ),
        sent=RankWork(largest, float(sent[largest]), ()),
        host_bytes=int(np.bincount(hosts, weights=sent).max()),
    )


def _assumptions(best: Prediction, made: MadePlans) -> tuple[str, ...]:
    sentences = list(best.assumptions)
    sentences.append(
        "Listed plans are predicted in full, as by `predict --plan`. Order, bound and straggler "
        "include contention."
    )
    if made.judged:
        sentences.append(
            f"The {made.judged:,} plans that the search tried were compared without contention."
        )
    return tuple(sentences)
