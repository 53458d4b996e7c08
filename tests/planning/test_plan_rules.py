"""Rules of making and ranking plans at their borders, by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.plan_document import list_unrunnable
from embeddings.sharders import ShardingTask
from embeddings.sharding_task import cut_table, find_broken
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import ScenarioError
from perfmodel.planning.making import search_plans
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import Ranking, join_reasons
from perfmodel.planning.search import Neighbourhood, PlanSearch, SearchOutcome
from perfmodel.prediction.plans.layout import COPIED, LayoutBook
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import plan_setting


def task_of(count: int, ranks: int = 2, **changes: Any) -> ShardingTask:
    given: Any = {"rows": 100, "width": 16, "pooling_factor": 1, **changes}
    tables = tuple(EmbeddingTable(f"t{number}", **given) for number in range(count))
    return ShardingTask(tables, ranks, 10**12, 64)


def test_of_several_searches_the_best_counts_and_all_plans_are_counted():
    plan: Any = None
    outcomes = {5: SearchOutcome(plan, 30, 9, 7), 6: SearchOutcome(plan, 20, 9, 11)}
    executor: Any = SimpleNamespace(
        map=lambda function, shared, seeds: list(map(outcomes.get, seeds))
    )
    question: Any = SimpleNamespace(seed=5, searches=2)
    assert search_plans(question, executor, ()) == SearchOutcome(plan, 20, 9, 18)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [({"samples": 1}, "samples"),
     ({"searches": 0}, "searches must be at least 1"), ({"search": -0.1}, "search"),
     ({"sharders": ()}, "nothing to compare"), ({"sharders": ("nobody",)}, "must be among")],
)  # fmt: skip
def test_a_question_that_cannot_be_answered_is_refused(changes, fault):
    with pytest.raises(ScenarioError, match=f"rank: .*{fault}"):
        RankQuestion("dgx_a100", **changes)


def test_the_least_that_a_question_may_ask():
    assert RankQuestion("dgx_a100", samples=2, searches=1)
    for changes in ({"search": 0.1}, {"plan_files": ("a",)}):
        assert RankQuestion("dgx_a100", sharders=(), **changes).sharders == ()


def ranked(
    name: str,
    time_ns: int,
    place: int,
    *,
    fits: bool = True,
    peak_bytes: int = 2**30,
    shards: str = "",
) -> Any:
    return SimpleNamespace(
        plan=SimpleNamespace(name=name, shards=shards or name, data_parallel=()),
        answer=SimpleNamespace(iteration_ns=time_ns),
        place=place,
        fits=fits,
        bound="lookup",
        loads=SimpleNamespace(peak_bytes=peak_bytes),
    )


def verdict(*plans: Any) -> str:
    nothing: Any = None
    ranking = Ranking(plans, (), (), Mode.PERIOD, 2**30, 1, nothing)
    assert ranking.fits is plans[0].fits
    return ranking.verdict


def test_the_verdict_says_what_to_take():
    assert verdict(ranked("a", 100, 1), ranked("b", 200, 2, fits=False)) == (
        "a is the only plan that fits."
    )
    assert verdict(ranked("a", 100, 1), ranked("b", 125, 2), ranked("c", 150, 3)) == (
        "a is fastest, 25 % ahead of b; limited by lookup."
    )
    # Of a tie the smaller one stands first, but the fastest of it is ahead.
    assert verdict(ranked("a", 101, 1), ranked("b", 100, 1), ranked("c", 150, 3)) == (
        "a, b are tied and fastest, 50 % ahead of c; limited by lookup."
    )
    assert verdict(ranked("a", 100, 1), ranked("b", 101, 1)).startswith(
        "The plan does not matter here: the 2 that fit take the same time, to 1 %."
    )
    same = verdict(ranked("a", 100, 1, shards="s"), ranked("b", 100, 1, shards="s"))
    assert same == "All 2 make the same plan: tables leave them no choice. Bound by lookup."
    none = verdict(
        ranked("a", 100, 1, fits=False, peak_bytes=3 * 2**30),
        ranked("b", 100, 1, fits=False, peak_bytes=2 * 2**30),
    )
    assert none.startswith("No plan fits: a and all others need more than the 1.0 GiB of a rank")
    assert "the smallest 2.0 GiB" in none


def test_reasons_are_told_once_with_all_they_are_about():
    refused = (("a", "too large"), ("b", "odd"), ("c", "too large"))
    nothing: Any = None
    found = Ranking((), refused, (), Mode.PERIOD, 1, 1, nothing)
    assert join_reasons(found.refused) == ("a, c: too large", "b: odd")


def test_tables_of_sixteen_mebibytes_may_stand_on_every_rank():
    exact, larger = task_of(1, rows=2**18), task_of(1, rows=2**18 + 1)
    assert exact.tables[0].size_bytes == 2**24
    for task, others in ((exact, 1), (larger, 0)):
        small = EmbeddingTable("whole", rows=2**20, width=64, pooling_factor=1)
        both = ShardingTask((*task.tables, small), 2, 10**12, 64)
        numbers: Any = SimpleNamespace(
            pieces=lambda tables, shards, reduced: [s.table for s in shards],
            reduces=lambda table, row_pieces: False,
        )
        book = LayoutBook(both, numbers)
        layout = book.from_plan(both.whole([0, 1], "whole"))
        assert layout is not None
        near = Neighbourhood(book, random.Random(0), np.ones((2, 2)))
        steps = near.copy_steps(layout)
        assert [step.cuts[0] == COPIED for step in steps] == [True] * others


def test_constraints_and_frameworks_are_the_space_that_is_searched():
    evaluator, task = plan_setting(5, batch=4096)
    tables = (
        replace(task.tables[0], sharding_types=("row_wise",)),
        replace(task.tables[1], ranks=(2,)),
        *(replace(table, sharding_types=("table_wise",)) for table in task.tables[2:]),
    )
    bound = replace(task, tables=tables)
    book = LayoutBook(bound, evaluator.catalog)
    layout = book.from_plan(bound.whole([0] * 5, "whole"))
    assert layout is not None
    seen = {layout.rank.tobytes()}
    for seed in range(40):
        near = Neighbourhood(book, random.Random(seed), np.ones((4, 4)))
        for step in near.propose(layout, 4):
            assert not find_broken(book.to_plan(step, "step"))
            seen.add(step.rank.tobytes())
        assert near.copy_steps(layout) == []
    # Tables with constraints move too: the search does not leave them where a start put them.
    assert len(seen) > 5
    plan = PlanSearch(evaluator, bound, mode=Mode.PERIOD, seed=0).run((), 400).plan
    assert not find_broken(plan)
    assert [shard.rank for shard in plan.shards_of_table[1]] == [2]


def test_a_search_for_a_framework_finds_plans_that_it_can_run():
    evaluator, task = plan_setting(6, batch=4096)
    for framework in ("torchrec", "hugectr"):
        bound = replace(task, framework=framework)
        found = PlanSearch(evaluator, bound, mode=Mode.PERIOD, seed=1).run((), 400)
        assert list_unrunnable(found.plan, framework) == ()
        # A table over half of the ranks is divided over all of them instead.
        pieces = cut_table(0, bound.tables[0], columns=1, rows=2)
        others = [shard for shard in bound.whole([0] * 6, "whole").shards if shard.table]
        halves = [piece.on_rank(number) for number, piece in enumerate(pieces)]
        half = bound.plan([*halves, *others], "half")
        assert len(half.shards_of_table[0]) == (4 if framework == "torchrec" else 2)
