"""Ranking plans: make, predict, order and explain them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from embeddings.plan import ShardingPlan
from perfmodel.base.errors import PlanError
from perfmodel.base.units import BYTES_PER_GIB
from perfmodel.costs.models import COMMUNICATION_FAMILY, FAMILIES
from perfmodel.costs.priced_job import PricedJob
from perfmodel.engine.replay import find_period, replay
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.graph.program import LaneKind
from perfmodel.planning.batches import BatchSpread, sample_batches
from perfmodel.planning.comparing import PlanWork, RankWork
from perfmodel.planning.making import MadePlans, load_task, make_plans
from perfmodel.planning.question import RankBy, RankQuestion
from perfmodel.planning.ranking import (
    PlanBound,
    PlanLoads,
    RankedPlan,
    Ranking,
    Straggler,
    beats_next,
    number_ties,
)
from perfmodel.prediction.answer import Explanation, Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.plans.evaluator import (
    EMBEDDING_FAMILY,
    PlanEvaluator,
    lookups_of_ranks_ns,
)
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import check_has_tables
from perfmodel.workloads.dlrm.exchange import Exchanges, sent_by_members
from perfmodel.workloads.dlrm.job import exchanges_of
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.spec import DlrmSpec

SHOWN_TABLES = 3
AT_ONCE = 4
"""Plans predicted between two progress reports."""


def rank_plans(
    question: RankQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Ranking:
    """Answer *question*; searches and enumerations fan out over *executor*."""
    on_phase("building the frame", 0.0)
    loaded = load_task(question)
    made = make_plans(question, loaded, executor, on_phase)
    if not made.plans:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in made.refused)
        raise PlanError(f"rank: no plan could be made. {reasons}")
    return order_plans(loaded.evaluator, question, made, executor=executor, on_phase=on_phase)


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
    ordered = order_by_time(ranked, question)
    return Ranking(
        plans=ordered,
        refused=made.refused,
        facts=_facts(evaluator, question),
        mode=question.mode,
        rank_by=question.rank_by,
        device_memory_bytes=evaluator.cluster.device.memory_bytes,
        plans_judged=made.judged + len(plans),
        assumptions=_assumptions(evaluator, ordered[0].answer, made, question),
    )


def _facts(evaluator: PlanEvaluator, question: RankQuestion) -> tuple[str, ...]:
    spec, cluster = evaluator.spec, evaluator.cluster
    tables = spec.embedding.tables()
    total = sum(table.size_bytes for table in tables) / BYTES_PER_GIB
    hosts = f"{cluster.host_count} host{'s' if cluster.host_count > 1 else ''}"
    return (
        f"{question.topology}: {hosts}, {cluster.rank_count} ranks",
        f"{spec.name}: {len(tables)} tables, {total:.1f} GiB of weights",
        f"batch {spec.batch:,}, {spec.batch // cluster.rank_count:,} samples per rank",
        f"stack {evaluator.stack.name}",
    )


def order_by_time(ranked: Sequence[RankedPlan], question: RankQuestion) -> tuple[RankedPlan, ...]:
    """Plans in order: those that fit first. Ties: less memory first, then more even lookups."""
    placed: list[RankedPlan] = []
    for fits in (True, False):
        timed = sorted(
            (order_time(one, question), number)
            for number, one in enumerate(ranked)
            if one.fits == fits
        )
        places = number_ties([time_ns for time_ns, _ in timed])
        behind = len(placed)
        tied = [
            (place, ranked[number].loads.peak_bytes, ranked[number].loads.unevenness, number)
            for place, (_, number) in zip(places, timed, strict=True)
        ]
        placed += [
            replace(ranked[number], place=behind + place, beats_next=None)
            for place, _, _, number in sorted(tied)
        ]
        heads = [place for place in range(behind, len(placed)) if placed[place].place == place + 1]
        if any(one.decided_ns != one.answer.iteration_ns for one in placed):
            # The samples count the loader, which the order does not.
            continue
        shares = beats_next([np.array(placed[place].answer.drawn_ns) for place in heads])
        for place, share in zip(heads, shares, strict=True):
            placed[place] = replace(placed[place], beats_next=share)
    return tuple(placed)


class PlanAnswer(NamedTuple):
    """The prediction of one plan, memory and awaited time of each rank, and `find_gains`."""

    prediction: Prediction
    memory_bytes: tuple[int, ...]
    awaited_ns: tuple[float, ...]
    decided_ns: float
    gains_ns: dict[PlanBound, float]
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
    is_assumed = assumes_loader(check_has_tables(setting.workload), setting.stack)
    decided_ns, gains_ns = find_gains(
        reasons.evidence.priced, setting.options.mode, is_loader_left_out=is_assumed
    )
    return PlanAnswer(
        # What was replayed is not sent back.
        replace(answer, reasons=None),
        tuple(memory.total_bytes for memory in question.memory_of_rank),
        find_awaited(reasons.explanation, plan.rank_count),
        decided_ns if is_assumed else float(answer.iteration_ns),
        gains_ns,
        {
            part.value.replace("_", " "): float(part_ns)
            for part, part_ns in reasons.explanation.time.of_part_ns.items()
        },
        tuple(lookups_of_ranks_ns(reasons.evidence.priced)),
    )


def assumes_loader(spec: DlrmSpec, stack: SoftwareStack) -> bool:
    """Whether the time that *spec* needs to load a batch is the assumption of *stack*."""
    return spec.input.load_time is not None and spec.input.load_time == stack.loader.load_ns(
        spec.batch
    )


def find_awaited(explanation: Explanation, rank_count: int) -> tuple[float, ...]:
    """How long ranks wait for each of them in collectives, on average over all."""
    awaited = [0.0] * rank_count
    for wait in explanation.waits:
        awaited[wait.awaited_rank] += wait.duration_ns * len(wait.waiting_ranks) / rank_count
    return tuple(awaited)


def find_loads(run: DlrmRun, plan: ShardingPlan, memory_bytes: tuple[int, ...]) -> PlanLoads:
    """Lookups, bytes sent and memory of every rank in an iteration."""
    spec = run.spec
    copied = sum(table.pooling_factor for table in plan.copied_tables) * spec.batch
    held = plan.by_rank([table.pooling_factor for table in plan.pieces.tables])
    lookups = spec.batch * held + copied / plan.rank_count
    exchanges = exchanges_of(run, plan)
    sent = sent_by_members(exchanges.pooled, plan.rank_count)
    if exchanges.by_rows is not None:
        sent += sent_by_members(exchanges.by_rows.sums, plan.rank_count)
    per_host = plan.ranks_per_host or plan.rank_count
    for host, steps in enumerate(exchanges.of_hosts):
        members = slice(host * per_host, (host + 1) * per_host)
        sent[members] += sent_by_members(steps.inside, per_host)
        sent[members] += int(np.array(steps.across.byte_matrix, dtype=np.int64)[host].sum())
    return PlanLoads(
        tuple(lookups.tolist()), tuple(sent.tolist()), memory_bytes, _sent_between(plan, exchanges)
    )


def _sent_between(plan: ShardingPlan, exchanges: Exchanges) -> tuple[tuple[int, ...], ...]:
    """Vector bytes between hosts, or between ranks of the only host."""
    per_host = plan.ranks_per_host or plan.rank_count
    hosts = plan.rank_count // per_host
    size, count = (per_host, hosts) if hosts > 1 else (1, plan.rank_count)
    between = np.zeros((count, count), dtype=np.int64)
    if exchanges.pooled.byte_matrix is not None:
        matrix = np.array(exchanges.pooled.byte_matrix, dtype=np.int64)
        between += matrix.reshape(count, size, count, size).sum(axis=(1, 3))
    if exchanges.by_rows is not None:
        # Every rank hands each other one its share of the sums.
        share = exchanges.by_rows.sums.size_bytes // plan.rank_count
        between += share * size * size - np.diag(np.full(count, share * size))
    for host, steps in enumerate(exchanges.of_hosts if hosts > 1 else ()):
        between[host] += per_host * np.array(steps.across.byte_matrix, dtype=np.int64)[host]
        between[host, host] += int(sent_by_members(steps.inside, per_host).sum())
    return tuple(tuple(row) for row in between.tolist())


def _rank_one(
    evaluator: PlanEvaluator, question: RankQuestion, plan: ShardingPlan, found: PlanAnswer
) -> RankedPlan:
    gains = found.gains_ns
    run = DlrmRun(evaluator.spec, plan.rank_count, evaluator.stack)
    loads = find_loads(run, plan, found.memory_bytes)
    room_bytes = (1 - question.reserve) * evaluator.cluster.device.memory_bytes
    return RankedPlan(
        plan=plan,
        answer=found.prediction,
        place=0,
        beats_next=None,
        decided_ns=found.decided_ns,
        bound=max(gains, key=lambda bound: gains[bound]),
        gains_ns=gains,
        straggler=find_straggler(evaluator, plan, found.awaited_ns),
        loads=loads,
        fits=max(found.memory_bytes) <= room_bytes,
        spread=_spread(evaluator, plan, question, found.prediction.iteration_ns),
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


def order_time(plan: RankedPlan, question: RankQuestion) -> float:
    """The time to order plans by."""
    if plan.spread is not None and question.rank_by is RankBy.MEAN:
        return plan.spread.mean_ns
    if plan.spread is not None and question.rank_by is RankBy.QUANTILE:
        return plan.spread.high_ns
    return plan.decided_ns


def _spread(
    evaluator: PlanEvaluator, plan: ShardingPlan, question: RankQuestion, iteration_ns: int
) -> BatchSpread | None:
    """The spread over sampled batches, scaled to the predicted time."""
    if question.batches < 2:
        return None
    spread = sample_batches(
        evaluator, plan, mode=question.mode, batches=question.batches, seed=question.seed
    )
    condensed_ns = int(evaluator.measure([plan]).time_ns(question.mode)[0])
    return spread.scaled(iteration_ns / condensed_ns)


def find_straggler(
    evaluator: PlanEvaluator, plan: ShardingPlan, awaited_ns: Sequence[float]
) -> Straggler:
    """The rank that others wait for most, and its most expensive tables."""
    rank = int(np.argmax(awaited_ns))
    return Straggler(rank, awaited_ns[rank], dearest_tables(evaluator, plan, rank))


def dearest_tables(
    evaluator: PlanEvaluator, plan: ShardingPlan, rank: int, count: int = SHOWN_TABLES
) -> tuple[str, ...]:
    """The tables that cost *rank* most under *plan*."""
    shards = plan.shards_of_rank[rank]
    costs = evaluator.pieces_alone(plan.tables, shards).total_ns if shards else np.zeros(0)
    dearest = np.argsort(-costs, kind="stable")[:count]
    return tuple(plan.tables[shards[int(place)].table].name for place in dearest)


def _assumptions(
    evaluator: PlanEvaluator, best: Prediction, made: MadePlans, question: RankQuestion
) -> tuple[str, ...]:
    spec, stack = evaluator.spec, evaluator.stack
    sentences = list(best.assumptions)
    sentences.append(
        "Listed plans are predicted in full, as by `predict --plan`. Order, bound and straggler "
        "include contention; savings are computed with contention unchanged."
    )
    if made.judged:
        sentences.append(
            f"The {made.judged:,} plans tried by enumeration and search were compared without "
            "contention."
        )
    if assumes_loader(spec, stack):
        sentences.append(
            "Times include the loader that the stack assumes. Order and bound leave it out, so an "
            "assumption does not hide differences between plans; `--set input.load_time=...` "
            "states the loader of your job."
        )
    if question.batches:
        sentences.append(
            "Sampled batches differ per table in lookups and in distinct rows; a table without a "
            "stated deviation has Poisson bags. The spread is found without contention and scaled "
            "to the predicted time."
        )
    return tuple(sentences)


FASTER = 0.9
"""Factor on the duration of a part, to see how much it bounds the iteration."""
_FAMILIES = {
    PlanBound.LOOKUP: (EMBEDDING_FAMILY,),
    PlanBound.ALL_TO_ALL: (COMMUNICATION_FAMILY,),
    PlanBound.MLP: ("gemm", "memory", "attention"),
    PlanBound.REDUCTION: (COMMUNICATION_FAMILY,),
    PlanBound.HOST: ("host",),
    PlanBound.LOADER: (),
}


def find_gains(
    priced: PricedJob, mode: Mode, *, is_loader_left_out: bool
) -> tuple[float, dict[PlanBound, float]]:
    """The time, and what is saved by reducing each part by 10 %, with one replay of all parts."""
    job, nominal_ns = priced.job, priced.durations.values_ns[:, 0]
    is_exchange, is_loader = np.zeros((2, len(nominal_ns)), dtype=bool)
    for rank in range(job.rank_count):
        program, rows = job.program_of(rank), priced.durations.rows_of(job, rank)
        operators = [job.origins[place].operator for place in program.origin]
        is_exchange[rows] = [operator.startswith("embedding/") for operator in operators]
        of_lane = [lane.kind is LaneKind.LOADER for lane in program.lanes]
        is_loader[rows] = np.repeat(of_lane, np.diff(program.lane_start))
    if is_loader_left_out:
        nominal_ns = np.where(is_loader, 0, nominal_ns)
    vectors = [nominal_ns]
    for bound, families in _FAMILIES.items():
        is_part = np.isin(priced.family, [FAMILIES.index(name) for name in families]) & ~is_loader
        if families == (COMMUNICATION_FAMILY,):
            is_part &= is_exchange == (bound is PlanBound.ALL_TO_ALL)
        if bound is PlanBound.LOADER:
            is_part = is_loader
        vectors.append(np.where(is_part, np.rint(FASTER * nominal_ns), nominal_ns))
    values = np.stack(vectors, axis=1).astype(np.int64)
    durations = replace(priced.durations, values_ns=np.ascontiguousarray(values))
    if mode is Mode.PERIOD:
        times = find_period(SerialExecutor().replay, job, durations).period_ns
    else:
        times = replay(job, durations, iterations=1).iteration_end_ns[0]
    gains = {bound: float(times[0] - one) for bound, one in zip(_FAMILIES, times[1:], strict=True)}
    return float(times[0]), gains
