"""Layouts in order: what is replayed, when it is proven, why the first one wins, and money."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.layouts import search as searching
from perfmodel.planning.layouts.ranking import (
    LayoutRanking,
    RankedLayout,
    Search,
    Tally,
    compare_layouts,
    count_layouts,
    find_reasons,
    order_layouts,
)
from perfmodel.planning.layouts.search import (
    Budget,
    explain_layouts,
    replay_layouts,
    search_layouts,
)
from perfmodel.planning.question import LayoutQuestion
from perfmodel.prediction.answer import Part
from perfmodel.prediction.layouts import choosing
from perfmodel.prediction.layouts.choosing import by_layer, list_fitting
from perfmodel.prediction.phases import ignore_phase
from perfmodel.prediction.yardsticks import IterationWork
from tests.reports.predictions import build_prediction

MS = 1_000_000


def candidate(number: int, *, peak_bytes: int = 0, cp: int = 1, ep: int = 1) -> Any:
    layout = SimpleNamespace(tp=number, pp=2, cp=cp, ep=ep, etp=1, dp=3, micro_batch=4)
    return SimpleNamespace(
        number=number, peak_bytes=peak_bytes, chosen=SimpleNamespace(layout=layout)
    )


def some(**fields: Any) -> Any:
    return SimpleNamespace(**{"is_own": False, "micro_batch": 1, **fields})


def answer(time_ns: int, *drawn_ns: float) -> Any:
    return SimpleNamespace(iteration_ns=time_ns, drawn_ns=drawn_ns, interval=None)


class Pool:
    """Layouts with such bounds, lowest first."""

    def __init__(self, bounds_ns: list[int]) -> None:
        self.left = [(bound_ns, candidate(number)) for number, bound_ns in enumerate(bounds_ns)]
        self.size = len(bounds_ns)

    def lowest_ns(self) -> int | None:
        return self.left[0][0] if self.left else None

    def take(self, count: int) -> list[Any]:
        taken, self.left = self.left[:count], self.left[count:]
        return taken


def replay(bounds_ns: list[int], times_ns: list[int], *, top: int = 1, work: int = 1000):
    """Rounds of replays of layouts with such bounds and times, and whether that is proof."""
    rounds = []

    def judge_all(candidates: Any) -> list[Any]:
        rounds.append(len(candidates))
        return [answer(times_ns[one.number]) for one in candidates]

    pool: Any = Pool(bounds_ns)
    done, is_proven = replay_layouts(pool, judge_all, top, Budget(work, None), ignore_phase)
    assert [one.bound_ns for one in done] == bounds_ns[: len(done)]
    return rounds, is_proven


def test_replays_end_when_the_next_bound_is_not_below_the_best_time():
    count = 8
    # The first one is replayed alone: its time prunes others.
    bounds = [10] * (1 + count) + [50] * count + [90]
    assert replay(bounds, [50] * len(bounds)) == ([1, count], True)
    assert replay(bounds, [51] * len(bounds)) == ([1, count, count], True)
    assert replay(bounds, [99] * len(bounds)) == ([1, count, count, 1], True)
    # As many as are to be shown are replayed in any case.
    assert replay(bounds, [50] * len(bounds), top=count + 1) == ([1, count], True)
    assert replay(bounds, [50] * len(bounds), top=count + 2) == ([1, count, count], True)


def test_replays_end_with_the_work_and_one_is_always_done():
    bounds = [10] * 20
    assert replay(bounds, [51] * 20, work=1) == ([1], False)
    assert replay(bounds, [51] * 20, work=16) == ([1, 3], False)
    assert replay(bounds, [51] * 20, work=48) == ([1, 8, 3], False)
    # Nothing left could be faster: proven although nothing more may be replayed.
    assert replay([10, 50], [50, 50], top=99, work=1) == ([1], True)


def test_bounds_may_use_three_quarters_of_the_work_and_replays_what_is_left():
    budget = Budget(100, None)
    assert budget.take(64, is_bounding=True) == 64
    # 75 of 100 in all.
    assert budget.take(64, is_bounding=True) == 11
    assert budget.take(1, is_bounding=True) == 0
    # 25 are left, and a replay takes four.
    assert budget.take(64) == 6
    assert budget.take(1) == 0
    assert not budget.is_braked


def test_seconds_brake_a_search_and_are_shared_by_the_numbers_of_hosts(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: now.s))
    budget = Budget(1000, 20.0, shares=2)
    now.s = 110.0
    assert budget.take(5) == 5
    assert not budget.is_braked
    now.s = 110.1
    assert budget.take(5) == 0
    assert budget.is_braked


def test_a_layout_that_fills_what_is_usable_fits():
    cluster: Any = SimpleNamespace(device=SimpleNamespace(memory_bytes=1000))
    spec: Any = SimpleNamespace(name="any")
    stated: frozenset[str] = frozenset()
    sizes: Any = [some(peak_bytes=size, overrides={}) for size in (901, 900, 899)]
    assert list_fitting(spec, cluster, stated, sizes) == sizes[1:]
    nearest = r"none of 1 layouts of any fits in 900 B \(90%.*The nearest needs .*: a=1"
    with pytest.raises(PlanError, match=nearest):
        list_fitting(spec, cluster, stated, [some(peak_bytes=901, overrides={"a": 1})])
    # What a prediction would take may fill the memory.
    own: Any = [some(peak_bytes=size, is_own=True, overrides={}) for size in (1001, 1000)]
    assert list_fitting(spec, cluster, stated, own) == own[1:]


def test_the_own_layout_and_of_equals_the_larger_micro_batch_come_first(monkeypatch):
    monkeypatch.setattr(choosing, "layer_of", lambda one, _: one.layer)
    given: Any = [
        some(layer="small", promise=1.0), some(layer="large", promise=1.0, micro_batch=4),
        some(layer="own", promise=9.0, is_own=True), some(layer="best", promise=0.5),
    ]  # fmt: skip
    assert list(by_layer(given)) == ["own", "best", "large", "small"]


@pytest.mark.parametrize(("is_proven", "bounded"), [(True, 6), (True, 5), (False, 6)])
def test_a_tally_counts_every_layout_once(is_proven, bounded):
    # Of eight layouts six fit; two were replayed. Bounds of 50 and more are no faster than 50.
    left_ns = [49, 50, 51, 52][: bounded - 2]
    replayed: Any = [SimpleNamespace(time_ns=time_ns) for time_ns in (50, 70)]
    found = count_layouts(8, 6, left_ns, replayed, is_proven=is_proven)
    assert (found.considered, found.too_large, found.replayed) == (8, 2, 2)
    assert (found.pruned, found.untried) == (bounded - 3, 7 - bounded)
    assert found.is_proven is (is_proven and bounded == 6)


def test_the_winner_is_held_against_the_next_layout_with_another_split(monkeypatch):
    same, twin, other, third = (RankedLayout(candidate(n), 0, answer(1)) for n in (2, 2, 3, 4))
    times = {2: prediction(100, compute=90), 3: prediction(110, compute=100)}
    monkeypatch.setattr(searching, "judge", lambda shared, one: times[one.number])
    machine: Any = (None, None)
    for ranked in ([same, other, third], [same, twin, other, third]):
        explained = explain_layouts(machine, ranked)
        reasons = find_reasons(explained)
        assert reasons[0] == "Against tp=3 pp=2 dp=3 micro_batch=4 (+10 ms): compute +10 ms."
        assert explained[-1].explained is None
    assert find_reasons(explain_layouts(machine, [same, twin])) == ()


def test_what_is_set_is_not_searched_and_layouts_are_answered_without_explanation():
    fixed = ("batch=16", "model.layers=2", "parallel.tp=1", " parallel.pp =1")
    question = LayoutQuestion("quad_a100", "gpt2_xl", fixed, top=1, samples=2)
    stated = {"batch", "model.layers", "parallel.tp", "parallel.pp"}
    assert question.stated == stated
    [found] = search_layouts(question, executor=SerialExecutor())
    assert found.best.found.reasons is None
    assert len(found.best.found.drawn_ns) == 2


def test_the_fastest_stands_first_and_of_equals_the_smaller_one():
    given = [
        RankedLayout(candidate(1, peak_bytes=9), 0, answer(30, 33.0, 33.0)),
        RankedLayout(candidate(2, peak_bytes=5), 0, answer(30, 30.0, 30.0)),
        RankedLayout(candidate(3, peak_bytes=7), 0, answer(20, 29.9, 29.9)),
    ]
    order = order_layouts(given)
    assert [one.candidate.number for one in order] == [3, 2, 1]
    # The ratio of two times is off by 9 %: 0.3 % apart is a tie, 10 % (1.06 sigma) is not.
    assert [one.beats_next for one in order] == pytest.approx([0.515, 0.855, None], abs=1e-3)
    assert [one.is_tied_with_next for one in order] == [True, False, False]
    assert not RankedLayout(candidate(1), 0, answer(1), beats_next=0.6).is_tied_with_next


def test_a_layout_is_called_by_how_it_splits_ranks():
    plain = RankedLayout(candidate(2), 0, answer(1))
    split = RankedLayout(candidate(2, cp=2, ep=8), 0, answer(1))
    assert plain.name == "tp=2 pp=2 dp=3 micro_batch=4"
    assert split.name == "tp=2 pp=2 cp=2 ep=8 dp=3 micro_batch=4"


def prediction(time_ms: float, **parts_ms: float) -> Any:
    of_part = {part: round(MS * parts_ms.get(part.value, 0.0)) for part in Part}
    return SimpleNamespace(
        iteration_ns=round(MS * time_ms),
        explanation=SimpleNamespace(time=SimpleNamespace(of_part_ns=of_part)),
    )


def test_the_winner_is_told_from_the_next_by_the_parts_that_differ():
    first = prediction(100, compute=80, exposed_communication=20, host_bound_idle=0.0)
    second = prediction(110, compute=60, exposed_communication=49.9, host_bound_idle=0.1)
    assert compare_layouts(first, second, "tp=8") == (
        "Against tp=8 (+10 ms): compute -20 ms, exposed communication +29.9 ms.",
        "It would win if its compute (60 ms) were 17 % less.",
    )
    assert compare_layouts(first, first, "itself") == ()
    # A fiftieth of the gap is not told, a little more is; all of a part is the most it can lose.
    near = prediction(110, compute=80.2, exposed_communication=20.3, host_bound_idle=9.5)
    assert compare_layouts(first, near, "near")[0] == (
        "Against near (+10 ms): exposed communication +300 us, host bound idle +9.5 ms."
    )
    far = prediction(500, compute=200, waiting_for_other_ranks=300)
    assert compare_layouts(first, far, "far")[1].endswith("(300 ms) were 100 % less.")


def ranking(hosts: int, time_ns: int, price: float | None = None) -> LayoutRanking:
    return LayoutRanking(
        question=LayoutQuestion("dgx_a100", "gpt2_xl", price_per_gpu_hour=price),
        hosts=hosts,
        rank_count=8 * hosts,
        tokens=2_000_000,
        memory_bytes=1,
        layouts=(RankedLayout(candidate(1), 0, answer(time_ns)),),
        tally=Tally(1, 0, 1, 0, 0, is_proven=True),
    )


def test_money_is_for_a_million_tokens_of_all_ranks():
    # A tenth of an hour of 16 GPUs at 5 for two million tokens.
    priced = ranking(2, 360 * 10**9, price=5.0)
    assert priced.cost_per_million_tokens(priced.best) == pytest.approx(4.0)
    free = ranking(2, 1)
    assert free.cost_per_million_tokens(free.best) is None


def test_of_several_numbers_of_hosts_the_shortest_iteration_is_best():
    assert Search([ranking(1, 30), ranking(2, 20), ranking(4, 25)]).best.hosts == 2


def runs_on(hosts: int, time_ns: int, **asked: Any) -> LayoutRanking:
    """A ranking of one layout on so many hosts of 8 GPUs, whose iterations do 1,000 tokens."""
    found = build_prediction()
    work = IterationWork(samples=1, tokens=1000)
    facts = replace(found.facts, device="h100_sxm", rank_count=8 * hosts, work=work)
    one = RankedLayout(candidate(1), 0, replace(found, facts=facts, period_ns=time_ns))
    question = LayoutQuestion(
        topology="dgx_h100", workload="llama3_8b", tokens=1e9, hosts=(1, 2, 4), **asked
    )
    return LayoutRanking(question, hosts, 8 * hosts, 1000, 0, (one,), Tally(1, 0, 1, 0, 0, True))


def search_of(**asked: Any) -> Search:
    # A million iterations of 1, 0.6 and 0.5 s: 11.6, 6.9 and 5.8 days on 8, 16 and 32 GPUs.
    times = {1: 1000 * MS, 2: 600 * MS, 4: 500 * MS}
    return Search(runs_on(hosts, time_ns, **asked) for hosts, time_ns in times.items())


@pytest.mark.parametrize(
    ("asked", "hosts"),
    [
        ({}, 4),
        ({"finish_in": "7d"}, 2),
        ({"finish_in": "30d"}, 1),
        ({"finish_in": "1 d"}, 4),  # nothing is in time
    ],
)
def test_the_best_number_of_hosts_is_the_one_that_was_asked_for(asked, hosts):
    assert search_of(**asked).best.hosts == hosts


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"finish_in": "30d"}, "Give --tokens COUNT too"),
        ({"finish_in": "soon", "tokens": 1e9}, "--finish-in: quantity"),
    ],
)
def test_wishes_about_a_whole_run_need_one(asked, said):
    with pytest.raises(ScenarioError) as fault:
        LayoutQuestion(topology="dgx_h100", workload="llama3_8b", **asked)
    assert said in str(fault.value)
