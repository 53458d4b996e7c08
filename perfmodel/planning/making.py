"""Making plans: from files and sharders, by enumeration and by search.

The thousands that are tried on the way are judged by the condensed evaluation,
which leaves interference out; those that come out are answered in full later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddings.plan import ShardingPlan
from embeddings.plan_document import load_plan_document
from embeddings.sharders import ShardingTask, build_named_plan
from perfmodel.base.errors import PlanError
from perfmodel.execution.executor import Executor
from perfmodel.planning.evaluator import PlanEvaluator
from perfmodel.planning.placements import Int32s
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.search import PlanSearch, SearchLimit, SearchOutcome
from perfmodel.planning.setting import RankSetting, load_rank_setting
from perfmodel.prediction.phases import OnPhase

KEPT_ENUMERATED = 5
CHUNK = 256


@dataclass(frozen=True, slots=True, eq=False)
class MadePlans:
    """Plans to compare, those refused with reasons, and how many were judged to get there."""

    plans: tuple[ShardingPlan, ...]
    refused: tuple[tuple[str, str], ...]
    judged: int


def make_plans(
    question: RankQuestion, setting: RankSetting, executor: Executor, on_phase: OnPhase
) -> MadePlans:
    """The plans that *question* names, enumerates and searches."""
    # A file that cannot be read is the user's fault and stops; a sharder that finds no room is
    # an answer.
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
            plans.append(build_named_plan(name, setting.task))
        except PlanError as fault:
            refused.append((name, str(fault)))
    judged = 0
    if question.enumerate_limit:
        on_phase("enumerating", 0.0)
        found = _enumerate(question, setting, executor)
        plans += found.plans
        judged += found.judged
    if question.search_seconds > 0:
        on_phase(f"searching for {question.search_seconds:g} s", 0.0)
        try:
            outcome = _search(question, executor, tuple(plans))
        except PlanError as fault:
            refused.append(("search", str(fault)))
        else:
            plans.append(outcome.plan)
            judged += outcome.plans_judged
    return MadePlans(tuple(plans), tuple(refused), judged)


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
def _setting(question: RankQuestion) -> RankSetting:
    return load_rank_setting(question)


@lru_cache(maxsize=4)
def _evaluator(question: RankQuestion) -> PlanEvaluator:
    setting = _setting(question)
    return PlanEvaluator(setting.spec, setting.cluster, setting.stack)


def _enumerate(question: RankQuestion, setting: RankSetting, executor: Executor) -> MadePlans:
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
    return MadePlans(plans, (), len(all_ranks))


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
