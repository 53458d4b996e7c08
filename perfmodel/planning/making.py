"""Making plans: by files, sharders and search, all for one task on one machine.

A search compares thousands of plans by the condensed evaluation, without interference. The plan
that it returns is predicted in full later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from embeddings.offloading import OFFLOADED, exceeds_devices
from embeddings.plan import ShardingPlan
from embeddings.plan_document import list_unrunnable, load_plan_document
from embeddings.sharders import HYBRID_SHARDERS, SHARDERS
from embeddings.sharding_task import ShardingTask, find_broken
from perfmodel.base.errors import PlanError
from perfmodel.base.extensions import load_extension
from perfmodel.execution.executor import Executor
from perfmodel.planning.question import RankQuestion, to_scenario
from perfmodel.planning.search import PlanSearch, SearchOutcome
from perfmodel.prediction.phases import OnPhase
from perfmodel.prediction.plans.default_plan import build_task, place_tables, spec_of_tables
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.question import load_setting
from perfmodel.workloads.dlrm.run import DlrmRun

_SHOWN = 3


class RankTask(NamedTuple):
    """The tables that a question is about, what judges where they are placed, and on what basis."""

    evaluator: PlanEvaluator
    task: ShardingTask
    facts: tuple[str, ...] = ()


def load_task(question: RankQuestion) -> RankTask:
    """Load what *question* names."""
    loaded = load_setting(
        to_scenario(
            question, hosts=question.hosts, tables=question.tables, indices=question.indices
        )
    )
    spec, cluster = spec_of_tables(loaded.workload), loaded.cluster
    tables = loaded.tables or spec.embedding.tables()
    task = build_task(spec, tables, cluster, seed=question.seed, reserve=question.reserve)
    if task.room_bytes <= 0:
        raise PlanError(
            f"rank: {spec.name} leaves no memory for tables on {cluster.device.name}: "
            "the dense part and its buffers need it all. Use a smaller batch or more ranks."
        )
    stack, facts = loaded.stack, tuple[str, ...]()
    if question.job is not None:
        ran = _load_plan(question.plan_files[0], task)
        run = DlrmRun(spec, cluster.rank_count, stack)
        rates = load_extension("whatif", "recorded_plans")
        stack, facts = rates.scale_to_recording(question.job, run, cluster, ran)
    evaluator = PlanEvaluator(spec, cluster, stack)
    if cluster.host_count > 1 and evaluator.stack.habits != stack.habits:
        facts += (f"exchanges of a collective library, not {stack.name}'s own kernels",)
    return RankTask(evaluator, replace(task, framework=question.runnable_by), facts)


kept_task = lru_cache(maxsize=4)(load_task)
"""The same in a worker, which is asked again and again."""


@dataclass(frozen=True, slots=True, eq=False)
class MadePlans:
    """Plans to compare, refusals with reasons, and how many plans were evaluated on the way."""

    plans: tuple[ShardingPlan, ...]
    refused: tuple[tuple[str, str], ...]
    judged: int


def make_plans(
    question: RankQuestion, loaded: RankTask, executor: Executor, on_phase: OnPhase
) -> MadePlans:
    """The plans that *question* names and searches."""
    evaluator, task, _ = loaded
    # An unreadable file is an error of the user. A sharder without room is part of the answer.
    given = [_load_plan(file, task) for file in question.plan_files]
    refused = [(plan.name, _broken(plan)) for plan in given if find_broken(plan)]
    plans = [plan for plan in given if not find_broken(plan)]
    sharders = (*question.sharders, *((OFFLOADED,) if exceeds_devices(task) else ()))
    own = evaluator.stack.tables.sharder
    if own in HYBRID_SHARDERS and len(question.sharders) == len(SHARDERS):
        sharders += (own,)
    for number, name in enumerate(sharders):
        on_phase(f"placing tables as {name}", number / len(sharders))
        try:
            plans.append(place_tables(name, evaluator, task).plan)
        except PlanError as fault:
            refused.append((name, str(fault)))
    judged = 0
    if question.search:
        on_phase(f"judging {question.search:g} thousand plans", 0.0)
        try:
            outcome = search_plans(question, executor, tuple(plans))
        except PlanError as fault:
            refused.append(("search", str(fault)))
        else:
            plans.append(outcome.plan)
            judged += outcome.plans_judged
    runnable, unrunnable = split_runnable(plans, question.runnable_by)
    return MadePlans(tuple(runnable), (*refused, *unrunnable), judged)


def _load_plan(file: str, task: ShardingTask) -> ShardingPlan:
    return load_plan_document(
        file,
        tables=task.tables,
        rank_count=task.rank_count,
        ranks_per_host=task.ranks_per_host,
    )


def split_runnable(
    plans: Sequence[ShardingPlan], framework: str
) -> tuple[list[ShardingPlan], list[tuple[str, str]]]:
    """*plans* that *framework* can run, all without one, and why it cannot run the others."""
    runnable, refused = [], []
    for plan in plans:
        if not framework or not (left := list_unrunnable(plan, framework)):
            runnable.append(plan)
            continue
        reason = f"{framework} cannot run it: it cannot split {_some(left)} in this way."
        refused.append((plan.name, reason))
    return runnable, refused


def _broken(plan: ShardingPlan) -> str:
    names = [plan.tables[place].name for place in find_broken(plan)]
    return f"{_some(names)} are placed where their constraints in the table file forbid it."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)


def search_plans(
    question: RankQuestion, executor: Executor, starts: tuple[ShardingPlan, ...]
) -> SearchOutcome:
    """The best outcome of several searches, each with its own seed."""
    seeds = [question.seed + number for number in range(question.searches)]
    outcomes = executor.map(search_from, (question, starts), seeds)
    best = min(outcomes, key=lambda outcome: (outcome.time_ns, outcome.peak_bytes))
    return replace(best, plans_judged=sum(outcome.plans_judged for outcome in outcomes))


def search_from(shared: tuple[RankQuestion, tuple[ShardingPlan, ...]], seed: int) -> SearchOutcome:
    """One search; a module-level function, so that any worker can run it."""
    question, starts = shared
    loaded = kept_task(question)
    search = PlanSearch(loaded.evaluator, loaded.task, mode=question.mode, seed=seed)
    return search.run(starts, round(1000 * question.search))
