"""Which sharder wins, by how much, what a search adds and could add: model against model.

python experiments/sharding_plans/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from embeddings.plan import ShardingPlan
from embeddings.sharders import (
    PAPER_SHARDERS,
    SHARDERS,
    TableCost,
    build_named_plan,
    lookup_cost,
    norm_lookup_cost,
    size_cost,
    size_lookup_cost,
)
from experiments.figures import read_wishes
from experiments.sharding_plans.batches import sample_batches
from experiments.sharding_plans.bound import Bounder
from experiments.sharding_plans.figures import draw_all
from experiments.sharding_plans.tasks import PLATFORMS, build_model, draw_tasks
from perfmodel.planning.search import PlanSearch
from perfmodel.prediction.plans.default_plan import build_task
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.scenario import Mode
from perfmodel.stacks.profiles import load_stack

COSTS: dict[str, TableCost] = {
    "size": size_cost,
    "lookup": lookup_cost,
    "norm_lookup": norm_lookup_cost,
    "size_lookup": size_lookup_cost,
}
MODE = Mode.ISOLATED


def main() -> None:
    """Run all tasks and write results.json and figures."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    plans = scenario["search_plans"]
    results = []
    for task in draw_tasks():
        if task.number % scenario["every"]:
            continue
        is_bounded = task.is_heavy and scenario["bounded"]
        found = run_task(task.cluster, task.tables, plans, is_bounded=is_bounded)
        results.append({**task.labels, **found})
        most = found["most_gain_pct"]
        print(
            f"{task.platform} {task.year} {task.number}: "
            f"found {found['searched_gain_pct']:.2f} % faster"
            + (f", no plan more than {most:.2f} %" if most is not None else ""),
            flush=True,
        )
    document = {"summary": summarise(results), "search_plans": plans, "tasks": results}
    wishes.write_results(document)
    for platform in PLATFORMS:
        print_median_task([row for row in results if row["platform"] == platform and row["heavy"]])
    draw_all(results, wishes)


def print_median_task(rows: list[dict[str, Any]]) -> None:
    """What bounds the task that gains as much as half of the others or more."""
    row = sorted(rows, key=lambda row: row["searched_gain_pct"])[len(rows) // 2]
    bound = "" if row["bound_ms"] is None else f"lower bound {row['bound_ms']:.2f} ms; "
    print(
        f"{row['platform']}, median heavy task ({row['tables']} tables): best named "
        f"{min(row['named_ms'].values()):.2f} ms, searched {row['searched_ms']:.2f} ms; "
        f"{bound}searched plan: {row['searched_kinds']}"
    )


def run_task(cluster: Any, tables: Any, most_plans: int, *, is_bounded: bool) -> dict[str, Any]:
    """All sharders and the search on one set of tables, and a bound of all plans if asked."""
    spec = build_model(tables)
    evaluator = PlanEvaluator(spec, cluster, load_stack(spec.stack))
    task = build_task(spec, tables, cluster)
    plans = [build_named_plan(name, task) for name in SHARDERS]
    times = evaluator.measure(plans).time_ns(MODE)
    named = {plan.name: int(time) for plan, time in zip(plans, times, strict=True)}
    search = PlanSearch(evaluator, task, mode=MODE, seed=0)
    outcome = search.run(plans, most_plans)
    best = min(named.values())
    bound_ns = Bounder(evaluator, task).bound().time_ns if is_bounded else None
    spread = sample_batches(evaluator, outcome.plan, mode=MODE, batches=50, seed=0)
    paper = {name: named[name] for name in PAPER_SHARDERS}
    return {
        "tables": len(tables),
        "named_ms": {name: time / 1e6 for name, time in named.items()},
        "searched_ms": outcome.time_ns / 1e6,
        "searched_gain_pct": 100 * (best / outcome.time_ns - 1),
        "bound_ms": None if bound_ns is None else bound_ns / 1e6,
        "most_gain_pct": None if bound_ns is None else 100 * (best / bound_ns - 1),
        "searched_kinds": dict(Counter(kind.value for kind in outcome.plan.kinds)),
        "gain_over_paper_pct": 100 * (min(paper.values()) / outcome.time_ns - 1),
        "worst_over_best_pct": 100 * (max(paper.values()) / min(paper.values()) - 1),
        "regret_pct": {
            name: 100 * (_chosen(plans, named, cost, task) / best - 1)
            for name, cost in COSTS.items()
        },
        "batch_spread_pct": 100 * (spread.high_ns - spread.low_ns) / spread.middle_ns,
        "plans_judged": outcome.plans_judged,
    }


def _chosen(
    plans: list[ShardingPlan], named: dict[str, int], cost: Callable[..., float], task: Any
) -> int:
    """Time of the plan whose busiest rank is least busy by *cost*; whole-table plans only."""
    loads = []
    for plan in plans[: len(PAPER_SHARDERS)]:
        load = np.zeros(plan.rank_count)
        for shard in plan.shards:
            load[shard.rank] += cost(plan.tables[shard.table], task)
        loads.append(load.max())
    return named[plans[int(np.argmin(loads))].name]


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by platform and kind of task, and who won."""
    found: dict[str, Any] = {}
    for platform in PLATFORMS:
        for heavy in (True, False):
            rows = [row for row in results if row["platform"] == platform and row["heavy"] == heavy]
            bounded = [one for row in rows if (one := row["most_gain_pct"]) is not None]
            winners = Counter(min(row["named_ms"], key=row["named_ms"].get) for row in rows)
            found[f"{platform} {'heavy' if heavy else 'any'}"] = {
                "tasks": len(rows),
                "median_worst_over_best_pct": median(row["worst_over_best_pct"] for row in rows),
                "median_searched_gain_pct": median(row["searched_gain_pct"] for row in rows),
                "median_most_gain_pct": median(bounded) if bounded else None,
                "median_gain_over_paper_pct": median(row["gain_over_paper_pct"] for row in rows),
                "median_regret_pct": {
                    name: median(row["regret_pct"][name] for row in rows) for name in COSTS
                },
                "max_regret_pct": {
                    name: max(row["regret_pct"][name] for row in rows) for name in COSTS
                },
                "median_batch_spread_pct": median(row["batch_spread_pct"] for row in rows),
                "best_named": dict(winners.most_common()),
            }
    return found


if __name__ == "__main__":
    main()
