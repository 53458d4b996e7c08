"""Which plan a chooser takes, and what it costs in worlds that differ from what it knows.

python experiments/plan_choice/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

import numpy as np
from scipy.special import ndtr

from embeddings.distribution import UNIFORM
from embeddings.plan import ShardingPlan
from embeddings.sharders import DEFAULT_SHARDER, build_named_plan
from embeddings.sharding_task import ShardingTask, cut_table
from experiments.figures import (
    BLACK,
    COLOURS,
    MARKERS,
    PAGE,
    Wishes,
    legend_below,
    new_figure,
    read_wishes,
)
from experiments.plan_choice.tasks import Task, World, draw_tasks, draw_world
from perfmodel.base.errors import PlanError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.making import MadePlans
from perfmodel.planning.plan_work import difference
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.rank_plans import PAIR_SIGMA, REPEAT_SIGMA, order_plans
from perfmodel.planning.ranking import RankedPlan
from perfmodel.prediction.plans.default_plan import build_task, place_tables
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.stacks.profiles import load_stack

UNIFORM_PLAN = "balanced as if uniform"
SHARDERS = ("naive", "size_greedy", "lookup_greedy", "size_lookup_greedy", "row_wise", "size_even")
OURS, BLIND, GREEDY, THEIRS = "perfmodel", "without the distribution", "lookup_greedy", "TorchRec"
NEAR = 0.01
"""A choice within this of the best is a success."""
LOW, HIGH = 0.65, 0.95
"""Odds that are said as `about 80 %`."""


def main() -> None:
    """Choose, replay in every world, and compare."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    placed = json.loads((wishes.folder / "torchrec_plans.json").read_text(encoding="utf-8"))
    rows, pairs = [], []
    for task in draw_tasks(scenario["tasks"]):
        found, of_task = run_task(task, placed[str(task.number)], scenario["worlds"])
        rows += found
        pairs += of_task
        print(task.number, task.machine, {name: round(found[0]["regret"][name], 3)
                                          for name in found[0]["regret"]}, flush=True)  # fmt: skip
    document = {"choosers": _choosers(rows), "odds": _odds(pairs), "tasks": rows, "pairs": pairs}
    wishes.write_results(document)
    draw(wishes, document)
    print(json.dumps({key: document[key] for key in ("choosers", "odds")}, indent=1))


def run_task(
    task: Task, theirs: dict[str, Any], worlds: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Regret of every chooser by world, and pairs of plans that are next to each other."""
    stack = load_stack("torchrec")
    evaluator = PlanEvaluator(task.spec, task.cluster, stack)
    question = build_task(task.spec, task.tables, task.cluster)
    plans = list(_plans(task, evaluator, question, theirs))
    asked = RankQuestion(task.machine, samples=32, sharders=("naive",))
    made = MadePlans(tuple(plans), (), 0)
    ranking = order_plans(evaluator, asked, made, executor=SerialExecutor())
    ordered = [one for one in ranking.plans if one.fits]
    # It does not know the plan that was balanced by the distribution.
    known = [one for one in ordered if one.plan.name != DEFAULT_SHARDER]
    blind = min(known, key=lambda one: _time_ns(task, one.plan, _blind_world(task)))
    ours = next(one for one in ordered if one.plan.name != UNIFORM_PLAN)
    chosen = {OURS: ours, BLIND: blind}
    chosen |= {name: one for name in (GREEDY, THEIRS)
               for one in ordered if one.plan.name == name}  # fmt: skip
    rows, pairs = [], []
    for number in range(worlds):
        world = draw_world(task, number)
        times = {one.plan.name: _time_ns(task, one.plan, world) for one in ordered}
        best = min(times.values())
        rows.append(
            {
                "task": task.number,
                "machine": task.machine,
                "left_out": task.is_left_out,
                "times_ms": {name: time / 1e6 for name, time in times.items()},
                "regret": {name: times[one.plan.name] / best - 1 for name, one in chosen.items()},
            }
        )
        pairs += [
            _pair(first, second, times, task)
            for first, second in pairwise(ordered)
            if first.place != second.place
        ]
    return rows, pairs


def _plans(
    task: Task, evaluator: PlanEvaluator, question: ShardingTask, theirs: dict[str, Any]
) -> Iterator[ShardingPlan]:
    for name in SHARDERS:
        with suppress(PlanError):
            yield build_named_plan(name, question)
    yield place_tables(DEFAULT_SHARDER, evaluator, question).plan
    uniform = replace(question, tables=_blind_world(task).tables)
    found = place_tables(DEFAULT_SHARDER, evaluator, uniform).plan
    yield replace(found, tables=task.tables, name=UNIFORM_PLAN)
    shards = []
    copied = []
    for place, (kind, ranks) in enumerate(theirs["tables"]):
        if kind == "data_parallel":
            copied.append(place)
            continue
        by_rows = kind in ("row_wise", "table_row_wise")
        pieces = cut_table(
            place,
            task.tables[place],
            columns=1 if by_rows else len(ranks),
            rows=min(len(ranks), task.tables[place].rows) if by_rows else 1,
        )
        shards += [piece.on_rank(rank) for piece, rank in zip(pieces, ranks, strict=False)]
    yield question.plan(shards, THEIRS, data_parallel=copied)


def _blind_world(task: Task) -> World:
    tables = tuple(replace(table, distribution=UNIFORM) for table in task.tables)
    return World(task.cluster, load_stack("torchrec"), tables)


def _time_ns(task: Task, plan: ShardingPlan, world: World) -> int:
    options = PredictOptions(samples=0, is_explained=False)
    setting = Setting(task.spec, world.cluster, world.stack, options)
    moved = replace(plan, tables=world.tables)
    question = build_question(replace(setting, plan=moved))
    return predict(question, executor=SerialExecutor()).period_ns


def _pair(
    first: RankedPlan, second: RankedPlan, times: dict[str, int], task: Task
) -> dict[str, Any]:
    return {
        "left_out": task.is_left_out,
        "gap": math.log(second.answer.iteration_ns / first.answer.iteration_ns),
        "difference": difference(first.work, second.work),
        "said": first.beats_next,
        "happened": math.log(times[second.plan.name] / times[first.plan.name]),
    }


def _choosers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in rows[0]["regret"]:
        regrets = [row["regret"].get(name, math.nan) for row in rows]
        known = [one for one in regrets if not math.isnan(one)]
        found[name] = {
            "mean_regret_pct": 100 * mean(known),
            "median_regret_pct": 100 * median(known),
            "worst_regret_pct": 100 * max(known),
            "success_pct": 100 * mean(one <= NEAR for one in known),
        }
    return found


def _odds(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The spread that fits the fitted tasks, and what comes true in those left out."""
    sigmas = np.linspace(0.02, 1.0, 99)
    fitted = [pair for pair in pairs if not pair["left_out"]]
    likelihood = [sum(_log_odds(pair, sigma) for pair in fitted) for sigma in sigmas]
    document: dict[str, Any] = {
        "fitted_sigma": float(sigmas[int(np.argmax(likelihood))]),
        "shipped_sigma": PAIR_SIGMA,
    }
    for word, left_out in (("fitted", False), ("left_out", True)):
        some = [pair for pair in pairs if pair["left_out"] == left_out and pair["said"] is not None]
        bins = defaultdict(list)
        for pair in some:
            bins[min(int(10 * pair["said"]), 9)].append(pair["happened"] > 0)
        near = [pair["happened"] > 0 for pair in some if LOW <= pair["said"] <= HIGH]
        document[word] = {
            "pairs": len(some),
            "by_tenth": {
                str(tenth / 10): [len(came), mean(came)] for tenth, came in sorted(bins.items())
            },
            "said_65_to_95": [len(near), mean(near) if near else None],
        }
    return document


def _log_odds(pair: dict[str, Any], sigma: float) -> float:
    spread = math.hypot(REPEAT_SIGMA, sigma * pair["difference"])
    odds = float(ndtr(pair["gap"] / spread))
    return math.log(max(odds if pair["happened"] > 0 else 1 - odds, 1e-6))


def draw(wishes: Wishes, document: dict[str, Any]) -> None:
    """Regret by chooser, and what came true of the odds."""
    figure, (left, right) = new_figure(1, 2, width=PAGE, height=2.2)
    names = list(document["choosers"])
    for number, name in enumerate(names):
        regrets = sorted(100 * row["regret"][name] for row in document["tasks"]
                         if name in row["regret"])  # fmt: skip
        shares = 100 * (np.arange(len(regrets)) + 1) / len(regrets)
        left.step(regrets, shares, color=COLOURS[number], label=name, where="post")
    left.set(xscale="symlog", xlabel="regret (%)", ylabel="share of choices (%)", xlim=(0, None))
    legend_below(figure, left, len(names))
    right.plot([50, 100], [50, 100], color=BLACK, lw=0.6)
    for number, word in enumerate(("fitted", "left_out")):
        points = [
            (100 * float(tenth) + 5, 100 * share, count)
            for tenth, (count, share) in document["odds"][word]["by_tenth"].items()
        ]
        right.scatter(
            [x for x, _, _ in points], [y for _, y, _ in points],
            s=[4 + count / 2 for *_, count in points], color=COLOURS[number],
            marker=MARKERS[number], label=word.replace("_", " "),
        )  # fmt: skip
    right.set(xlabel="said (%)", ylabel="came true (%)")
    right.legend()
    wishes.save(figure, "choice.png")


if __name__ == "__main__":
    main()
