"""Making plans: load what a question names, then make plans by sharders, enumeration and search.

Enumeration and search compare thousands of plans by the condensed evaluation, without
interference. The plans that they return are predicted in full later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddings.offloading import OFFLOADED, exceeds_devices
from embeddings.plan import ShardingPlan
from embeddings.plan_document import list_refused, load_plan_document
from embeddings.sharders import DEFAULT_SHARDER, build_named_plan
from embeddings.sharding_task import ShardingTask
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import PlanError
from perfmodel.execution.executor import Executor
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.search import PlanSearch, SearchLimit, SearchOutcome
from perfmodel.prediction.phases import OnPhase
from perfmodel.prediction.plans.default_plan import (
    choose_default_plan,
    choose_offloaded_plan,
    task_on,
)
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.plans.placements import Int32s
from perfmodel.prediction.question import load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.catalog import check_has_tables
from perfmodel.workloads.dlrm.spec import DlrmSpec
from topologies import Cluster

KEPT_ENUMERATED = 5
_SHOWN = 3
CHUNK = 256


@dataclass(frozen=True, slots=True, eq=False)
class RankSetting:
    """What a question names, loaded, and the task for sharders."""

    spec: DlrmSpec
    cluster: Cluster
    stack: SoftwareStack
    task: ShardingTask


def load_rank_setting(question: RankQuestion) -> RankSetting:
    """Load what *question* names."""
    loaded = load_setting(
        Scenario(
            topology=question.topology,
            workload=question.workload,
            overrides=question.overrides,
            hosts=question.hosts,
            ranks_per_host=question.ranks_per_host,
            stack=question.stack,
            tables=question.tables,
            indices=question.indices,
            calibration=question.calibration,
        )
    )
    spec, tables = check_has_tables(loaded.workload), loaded.tables
    task = build_task(
        spec,
        tables or spec.embedding.tables(),
        loaded.cluster,
        seed=question.seed,
        reserve=question.reserve,
    )
    return RankSetting(spec, loaded.cluster, loaded.stack, task)


def build_task(
    spec: DlrmSpec,
    tables: tuple[EmbeddingTable, ...],
    cluster: Cluster,
    *,
    seed: int = 0,
    reserve: float = 0.0,
) -> ShardingTask:
    """The task of a sharder for *spec*; its room is the memory that everything else leaves.

    The share *reserve* of a GPU's memory stays free.
    """
    task = task_on(spec, tables, cluster, seed=seed, reserve=reserve)
    if task.room_bytes <= 0:
        raise PlanError(
            f"rank: {spec.name} leaves no memory for tables on {cluster.device.name}: "
            "the dense part and its buffers need it all. Take a smaller batch or more ranks."
        )
    return task


@dataclass(frozen=True, slots=True, eq=False)
class MadePlans:
    """Plans to compare, refusals with reasons, and how many plans were evaluated on the way."""

    plans: tuple[ShardingPlan, ...]
    refused: tuple[tuple[str, str], ...]
    judged: int


def make_plans(
    question: RankQuestion, setting: RankSetting, executor: Executor, on_phase: OnPhase
) -> MadePlans:
    """The plans that *question* names, enumerates and searches."""
    # An unreadable file is an error of the user. A sharder without room is part of the answer.
    plans = [
        load_plan_document(
            file,
            tables=setting.task.tables,
            rank_count=setting.task.rank_count,
            ranks_per_host=setting.task.ranks_per_host,
        )
        for file in question.plan_files
    ]
    refused: list[tuple[str, str]] = []
    for number, name in enumerate(question.sharders):
        on_phase(f"placing tables as {name}", number / len(question.sharders))
        try:
            plans.append(_build_plan(name, setting))
        except PlanError as fault:
            refused.append((name, str(fault)))
    if exceeds_devices(setting.task):
        on_phase(f"placing tables as {OFFLOADED}", 1.0)
        evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
        plans.append(choose_offloaded_plan(evaluator, setting.task).plan)
    judged = 0
    if question.enumerate_limit:
        on_phase("enumerating", 0.0)
        found = enumerate_plans(question, setting, executor)
        plans += found.plans
        judged += found.judged
    if question.search_seconds > 0:
        on_phase(f"searching for {question.search_seconds:g} s", 0.0)
        try:
            outcome = search_plans(question, executor, tuple(plans))
        except PlanError as fault:
            refused.append(("search", str(fault)))
        else:
            plans.append(outcome.plan)
            judged += outcome.plans_judged
    runnable = []
    for plan in plans:
        by = question.runnable_by
        if not by or not (left := list_refused(plan, by)):
            runnable.append(plan)
            continue
        tables = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" * (len(left) > 3))
        refused.append((plan.name, f"{by} cannot run it: {tables} are cut otherwise than it does."))
    return MadePlans(tuple(runnable), tuple(refused), judged)


def _build_plan(name: str, setting: RankSetting) -> ShardingPlan:
    """The plan of a sharder; the default one is that of `predict`."""
    if name != DEFAULT_SHARDER:
        return build_named_plan(name, setting.task)
    evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
    return choose_default_plan(evaluator, setting.task).plan


def search_plans(
    question: RankQuestion, executor: Executor, starts: tuple[ShardingPlan, ...]
) -> SearchOutcome:
    """The best outcome of several searches, each with its own seed."""
    seeds = [question.seed + number for number in range(question.searches)]
    outcomes = executor.map(search_from, (question, starts), seeds)
    best = min(outcomes, key=lambda outcome: outcome.time_ns)
    return replace(best, plans_judged=sum(outcome.plans_judged for outcome in outcomes))


def search_from(shared: tuple[RankQuestion, tuple[ShardingPlan, ...]], seed: int) -> SearchOutcome:
    """One search; a module-level function, so that any worker can run it."""
    question, starts = shared
    setting = _setting(question)
    evaluator = PlanEvaluator(setting.spec, setting.cluster, setting.stack)
    search = PlanSearch(evaluator, setting.task, mode=question.mode, seed=seed)
    return search.run(starts, SearchLimit(question.search_seconds))


@lru_cache(maxsize=4)
def _setting(question: RankQuestion) -> RankSetting:
    return load_rank_setting(question)


@lru_cache(maxsize=4)
def _evaluator(question: RankQuestion) -> PlanEvaluator:
    setting = _setting(question)
    return PlanEvaluator(setting.spec, setting.cluster, setting.stack)


def enumerate_plans(question: RankQuestion, setting: RankSetting, executor: Executor) -> MadePlans:
    """All plans of whole tables, ranks being interchangeable; refused above the limit."""
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
    return MadePlans(plans, (), len(all_ranks))


def judge_assignments(question: RankQuestion, ranks: Int32s) -> NDArray[np.int64]:
    """Times of plans of whole tables, plans x tables; the largest integer if one does not fit."""
    evaluator = _evaluator(question)
    task = _setting(question).task
    found = evaluator.measure_assignments(task, ranks)
    room = (1 - question.reserve) * evaluator.cluster.device.memory_bytes
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
