"""How a search of plans walks: starts, rounds, steps that are kept, and when it warms up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embeddings.sharding_task import find_broken
from perfmodel.planning import search
from perfmodel.planning.search import Judged, PlanSearch, SearchLimit
from perfmodel.prediction.scenario import Mode
from tests.planning.settings import plan_setting
from tests.planning.test_plan_rules import task_of


def searcher(evaluator: Any = None) -> Any:
    nothing: Any = SimpleNamespace(catalog=None)
    return PlanSearch(evaluator or nothing, task_of(2), mode=Mode.PERIOD, seed=0)


def start(layout: str | None, pieces: int, *, steps: bool = False) -> Any:
    in_host = (0,) if steps else ()
    return SimpleNamespace(
        layout=layout, shards=range(pieces), summed_in_host=in_host, frequent_rows=()
    )


@pytest.mark.parametrize(
    ("made", "starts", "judged", "best"),
    [
        # Plans of few pieces first; of many only where nothing else fits.
        (["m50"], [start("a60", 2), start("b40", 1)], ["m50", "b40", "a60"], "b40"),
        (["m50"], [start("a40", 100_000), start("b1", 100_001)], ["m50", "a40"], "a40"),
        (["minf"], [start("b1", 100_001)], ["minf", "b1"], "b1"),
        ([], [start("b1", 100_001)], ["b1"], "b1"),
        # Of equals the first stays.
        (["m50"], [start("a50", 1)], ["m50", "a50"], "m50"),
        (["m50"], [start(None, 1), start("a60", 2)], ["m50", "a60"], "m50"),
        ([], [start(None, 1)], [], None),
        # Steps inside hosts are judged as they are, and a walk may begin without them.
        (["m50"], [start("a40", 1, steps=True)], ["m50", "a40"], "a40"),
    ],
)
def test_a_search_starts_from_the_best_of_what_is_made_and_given(
    monkeypatch, made, starts, judged, best
):
    of, seen, seconds = searcher(), [], []

    def build(given_s: float) -> list[str]:
        seconds.append(given_s)
        return made

    def find_best(layouts: list[str]) -> Judged:
        seen.append(layouts[0])
        layout: Any = layouts[0]
        return Judged(layout, float(layouts[0][1:]))

    stepped = [start(None, 1, steps=True)] * 3
    parts = SimpleNamespace(build=build, iter_stepped=lambda: iter(stepped))
    monkeypatch.setattr(search, "SearchStarts", lambda *given: parts)
    # Time for two of them.
    done = iter([0.0, 0.39, 0.4])
    of._share_done = lambda begin, limit: next(done)
    of._judge = lambda plan: plan
    of._book = SimpleNamespace(from_plan=lambda plan: plan.layout)
    of._best = find_best
    of._anneal = lambda best, begin, limit: best
    of._outcome = lambda best, apart: (best and best.layout, len(apart))
    apart = sum(plan.layout is None or bool(plan.summed_in_host) for plan in starts)
    assert of.run(starts, SearchLimit(100.0)) == (best, apart + 2)
    assert seen == judged
    assert seconds == [pytest.approx(6.0)]


def walk(shares: list[float], scores: list[float | None], draws: list[float]) -> Any:
    """The best of a walk from a score of 1000, and where each of its rounds began."""
    of, began = searcher(), []
    done, found, chance = iter([*shares, 1.0]), iter(scores), iter(draws)
    of._share_done = lambda begin, limit: next(done)

    def find_next(current: Any) -> Any:
        began.append(current.score)
        score = next(found)
        return None if score is None else Judged(current.layout, score)

    of._next = find_next
    of._random = SimpleNamespace(random=lambda: next(chance))
    nothing: Any = None
    best = of._anneal(Judged(nothing, 1000.0), 0.0, SearchLimit(1.0))
    return best.score, began


def test_steps_that_are_better_are_kept_and_worse_ones_while_it_is_warm():
    # At first a step that is a thousandth worse is kept with a probability of exp(-1).
    assert walk([0.0, 0.0], [1001.0, 990.0], [0.36]) == (990.0, [1000.0, 1001.0])
    assert walk([0.0, 0.0], [1001.0, 990.0], [0.37]) == (990.0, [1000.0, 1000.0])
    # Better ones need no luck, equal ones always have it.
    assert walk([0.0, 0.0], [999.0, 998.0], []) == (998.0, [1000.0, 999.0])
    assert walk([0.5, 0.5], [1000.0, 998.0], [0.99]) == (998.0, [1000.0, 1000.0])
    # Half through a third, a quarter of the warmth is left, less the sixth that is done: steps of
    # 0.2 thousandths are kept with exp(-0.2 / (0.25 x 5 / 6)) = 0.383.
    assert walk([1 / 6, 0.9], [1000.2, 1.0], [0.382])[1] == [1000.0, 1000.2]
    assert walk([1 / 6, 0.9], [1000.2, 1.0], [0.384])[1] == [1000.0, 1000.0]
    # A third further it is as warm again, but for what is done: exp(-0.2 / (2 / 3)) = 0.741.
    third = 1 / 3 + 1e-12
    assert walk([third, 0.9], [1000.2, 1.0], [0.740])[1] == [1000.0, 1000.2]
    assert walk([third, 0.9], [1000.2, 1.0], [0.742])[1] == [1000.0, 1000.0]
    # Nothing worse is kept when it is cold.
    cold = 1.0 - 1e-16
    assert walk([0.999999, 0.9], [1001.0, 1.0], [0.0001])[1] == [1000.0, 1000.0]
    assert walk([cold], [2000.0], [0.5]) == (1000.0, [1000.0])


def test_a_walk_ends_without_neighbours_and_turns_back_where_it_strayed():
    assert walk([0.0, 0.0], [None], []) == (1000.0, [1000.0])
    # Three thousandths above the best it goes on, further it begins again from the best.
    assert walk([0.0, 0.0], [1002.9, 1.0], [0.0])[1] == [1000.0, 1002.9]
    assert walk([0.0, 0.0], [1003.1, 1.0], [0.0])[1] == [1000.0, 1000.0]


def test_a_round_judges_neighbours_and_few_new_sets_of_copied_tables(monkeypatch):
    rounds = []

    class Near:
        def __init__(self, *given: Any) -> None:
            pass

        def propose(self, layout: Any, count: int) -> list[Any]:
            rounds.append(count)
            return ["step"] if layout == "some" else []

        def copy_steps(self, layout: Any) -> list[Any]:
            return ["known", "new"] if layout == "some" else []

    monkeypatch.setattr(search, "Neighbourhood", Near)
    of = searcher(
        SimpleNamespace(
            catalog=None,
            knows=lambda layout: layout == "known",
            price=lambda layouts: SimpleNamespace(own_ns=np.zeros((1, 1, 1))),
        )
    )
    of._best = lambda options: options

    def judged(frames: int, plans: int) -> tuple[int, int]:
        of._frames, of._judged = frames, plans
        return len(of._next(Judged("some", 1.0))), of._frames  # type: ignore[arg-type]

    # The one that is known is always judged, a new frame for every 400 plans.
    assert judged(0, 0) == (3, 1)
    assert judged(1, 399) == (2, 1)
    assert judged(1, 400) == (3, 2)
    assert judged(2, 799) == (2, 2)
    assert rounds == [32] * 4
    assert of._next(Judged("none", 1.0)) is None  # type: ignore[arg-type]


def test_a_search_leaves_tables_where_their_constraints_put_them():
    evaluator, task = plan_setting(5, batch=4096)
    tables = (
        replace(task.tables[0], sharding_types=("row_wise",)),
        replace(task.tables[1], ranks=(2,)),
        *task.tables[2:],
    )
    found = PlanSearch(evaluator, replace(task, tables=tables), mode=Mode.PERIOD, seed=0)
    plan = found.run((), SearchLimit(30.0, plans=400)).plan
    assert not find_broken(plan)
    assert [shard.rank for shard in plan.shards_of_table[1]] == [2]
