"""Layouts in order: what is replayed, when it is proven, why the first one wins, and money."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.planning.layouts import search as searching
from perfmodel.prediction.layouts.bounds import LayerTimes
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
    bound_layouts,
    explain_layouts,
    fastest_by_bound,
    list_fitting,
    own_first,
    replay_layouts,
    search_layouts,
)
from perfmodel.planning.question import Goal, LayoutQuestion
from perfmodel.prediction.answer import Part
from perfmodel.prediction.phases import ignore_phase
from perfmodel.prediction.yardsticks import IterationWork
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.transformer.spec import TransformerSpec
from tests.reports.predictions import build_prediction

MS = 1_000_000


def candidate(number: int, *, peak_bytes: int = 0, cp: int = 1, ep: int = 1) -> Any:
    layout = SimpleNamespace(tp=number, pp=2, cp=cp, ep=ep, dp=3, micro_batch=4)
    return SimpleNamespace(
        number=number, peak_bytes=peak_bytes, chosen=SimpleNamespace(layout=layout)
    )


def some(**fields: Any) -> Any:
    return SimpleNamespace(**{"is_own": False, "micro_batch": 1, **fields})


def answer(time_ns: int, *drawn_ns: float) -> Any:
    return SimpleNamespace(iteration_ns=time_ns, drawn_ns=drawn_ns, interval=None)


def replay(bounds_ns: list[int], times_ns: list[int], *, top: int = 1, seconds: float = 1e6):
    """Rounds of replays of layouts with such bounds and times, and whether that is proof."""
    rounds = []

    def judge_all(candidates: Any) -> list[Any]:
        rounds.append(len(candidates))
        return [answer(times_ns[one.number]) for one in candidates]

    queue = [(bound_ns, candidate(number)) for number, bound_ns in enumerate(bounds_ns)]
    done, is_proven = replay_layouts(
        queue, judge_all, top, time.monotonic() + seconds, ignore_phase
    )
    assert [one.bound_ns for one in done] == bounds_ns[: len(done)]
    return rounds, is_proven


def test_replays_end_when_the_next_bound_is_not_below_the_best_time():
    count = 8
    # The first one is replayed alone: it tells how long the others take.
    bounds = [10] * (1 + count) + [50] * count + [90]
    assert replay(bounds, [50] * len(bounds)) == ([1, count], True)
    assert replay(bounds, [51] * len(bounds)) == ([1, count, count], True)
    assert replay(bounds, [99] * len(bounds)) == ([1, count, count, 1], True)
    # As many as are to be shown are replayed in any case.
    assert replay(bounds, [50] * len(bounds), top=count + 1) == ([1, count], True)
    assert replay(bounds, [50] * len(bounds), top=count + 2) == ([1, count, count], True)


def test_replays_that_would_end_too_late_are_not_begun():
    bounds = [10, 50]
    assert replay(bounds, [51, 51], seconds=0.0) == ([1], False)
    assert replay(bounds, [50, 50], top=99, seconds=0.0) == ([1], True)


@pytest.fixture
def clock(monkeypatch) -> Any:
    """A clock that stands still unless it is set."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [(11.9, [1]), (12.0, [1, 1]), (16.0, [1, 3]), (26.0, [1, 8]), (99.0, [1, 8, 8, 3])],
)  # fmt: skip
def test_what_is_replayed_at_once_ends_in_time_with_the_explanation(clock, seconds, rounds):
    done, told = [], []

    def judge_all(candidates: Any) -> list[Any]:
        done.append(len(candidates))
        clock.s += 2.0 * len(candidates)
        return [answer(50 * MS) for _ in candidates]

    queue = [(1, candidate(number)) for number in range(20)]
    _, is_proven = replay_layouts(
        queue, judge_all, 1, 100.0 + seconds, lambda *told_: told.append(told_)
    )
    assert done == rounds
    assert is_proven is (sum(rounds) == 20)
    assert told[0] == ("20 layouts fit: replayed 0, best so far none", 0.2)
    if len(rounds) > 1:
        # A twentieth of what is from 0.2 to 0.95 of the work.
        assert told[1] == ("20 layouts fit: replayed 1, best so far 50 ms", pytest.approx(0.2375))


@pytest.mark.parametrize(
    ("layer_s", "until_s", "rounds"),
    [(0.001, 1e9, [2, 4, 8, 16, 32, 64, 64, 10]), (0.25, 2.5, [2, 4, 4]), (0.25, 2.4, [2, 4]),
     (9.0, 0.0, [2])],
)  # fmt: skip
def test_bounds_are_found_for_the_most_promising_layers_until_time_is_up(
    clock, monkeypatch, layer_s, until_s, rounds
):
    asked, told = [], []

    class Executor:
        def map(self, function: Any, shared: Any, layers: Any) -> list[LayerTimes]:
            asked.append(list(layers))
            clock.s += layer_s * len(layers)
            return [LayerTimes(layer % 7, 0) for layer in layers]

    class Bounds:
        def __init__(self, *given: Any) -> None:
            self.known: dict[int, LayerTimes] = {}

        def take(self, layers: Any, times: Any) -> None:
            self.known.update(zip(layers, times, strict=True))

        def bound_ns(self, one: Any) -> int:
            return self.known[one.layer].layer_ns

    monkeypatch.setattr(searching, "layer_of", lambda one: one.layer)
    monkeypatch.setattr(searching, "Bounds", Bounds)
    # Two layouts of each kind of layer, the least promising first.
    fitting = [some(layer=n // 2, promise=n // 2, number=n) for n in range(400)][::-1]
    machine: Any = (None, None)
    executor: Any = Executor()
    queue = bound_layouts(
        machine, fitting, executor, 100.0 + until_s, lambda *one: told.append(one)
    )

    assert [len(layers) for layers in asked] == rounds
    assert [layer for layers in asked for layer in layers] == list(range(sum(rounds)))
    found = [(bound_ns, one.layer) for bound_ns, one in queue]
    assert found == sorted((layer % 7, layer) for layer in range(sum(rounds)) for _ in range(2))
    assert told[0] == ("400 layouts fit: bounded 0 of 200 kinds of layer", 0.05)
    if len(rounds) > 1:
        words = "400 layouts fit: bounded 2 of 200 kinds of layer"
        assert told[1] == (words, pytest.approx(0.0515))


def test_a_layout_without_a_replay_is_the_lowest_bound_of_so_many_kinds_of_layer(monkeypatch):
    sixty = [some(layer=n, promise=n, peak_bytes=1) for n in range(60)]
    monkeypatch.setattr(searching, "layer_of", lambda one: one.layer)
    monkeypatch.setattr(searching, "iter_candidates", lambda *given, stated: sixty[::-1])
    bounds = SimpleNamespace(bound_ns=lambda one: 100 - one.layer)
    monkeypatch.setattr(searching, "Bounds", lambda *given: bounds)
    cluster: Any = SimpleNamespace(device=SimpleNamespace(memory_bytes=10))
    found: Any = fastest_by_bound(None, cluster, None, stated=frozenset())  # type: ignore[arg-type]
    assert found.layer == 47


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


def test_the_own_layout_and_of_equals_the_larger_micro_batch_are_bounded_first(monkeypatch):
    monkeypatch.setattr(searching, "layer_of", lambda one: one.layer)
    bounds = SimpleNamespace(take=lambda *given: None, bound_ns=lambda one: 7)
    monkeypatch.setattr(searching, "Bounds", lambda *given: bounds)
    asked: list[str] = []
    executor: Any = SimpleNamespace(map=lambda function, shared, layers: asked.extend(layers))
    given = [
        some(layer="small", promise=1.0), some(layer="large", promise=1.0, micro_batch=4),
        some(layer="own", promise=9.0, is_own=True), some(layer="best", promise=0.5),
    ]  # fmt: skip
    machine: Any = (None, None)
    bound_layouts(machine, given, executor, time.monotonic() + 1e6, ignore_phase)
    assert asked == ["own", "best", "large", "small"]


def test_what_predict_answers_with_is_replayed_first():
    queue = [
        (10, some(keeps=lambda spec: False)), (20, some(keeps=lambda spec: True)),
        (30, some(keeps=lambda spec: True, is_own=True)),
    ]  # fmt: skip
    stated = load_workload("gpt2_124m")
    assert isinstance(stated, TransformerSpec)
    left_open = stated.model_copy(update={"parallel": type(stated.parallel)()})
    assert own_first(stated, queue) == [queue[2], queue[0], queue[1]]
    # Of an open layout `predict` takes the lowest bound that keeps sharding and recomputation.
    assert own_first(left_open, queue) == [queue[1], queue[0], queue[2]]


@pytest.mark.parametrize(("is_proven", "bounded"), [(True, 6), (True, 5), (False, 6)])
def test_a_tally_counts_every_layout_once(is_proven, bounded):
    # Of eight layouts six fit; two were replayed. Bounds of 50 and more are no faster than 50.
    queue: Any = [(bound_ns, None) for bound_ns in (10, 60, 49, 50, 51, 52)][:bounded]
    replayed: Any = [SimpleNamespace(time_ns=time_ns) for time_ns in (50, 70)]
    found = count_layouts(8, 6, queue, replayed, is_proven=is_proven)
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


def test_the_time_there_is_is_shared_by_the_numbers_of_hosts(clock, monkeypatch):
    ends_s = []

    def bound(machine: Any, fitting: Any, executor: Any, until_s: float, on_phase: Any) -> Any:
        ends_s.append(until_s)
        return [(6, one) for one in fitting]

    def replay_one(queue: Any, judge_all: Any, top: int, deadline_s: float, on_phase: Any) -> Any:
        ends_s.append(deadline_s)
        times = zip((9, 5, 7), queue[:3], strict=True)
        return [RankedLayout(one, 6, answer(ns, float(ns))) for ns, (_, one) in times], False

    monkeypatch.setattr(searching, "bound_layouts", bound)
    monkeypatch.setattr(searching, "replay_layouts", replay_one)
    fixed = ("batch=16", "parallel.pp=1", "parallel.sequence_parallel=false")
    question = LayoutQuestion("dgx_a100", "gpt2_xl", fixed, hosts=(1, 2), seconds=10.0, top=2)
    one, two = search_layouts(question, executor=SerialExecutor())
    # Five seconds each, half of them for bounds.
    assert ends_s == [102.5, 105.0, 102.5, 105.0]
    assert (one.hosts, one.rank_count, two.hosts, two.rank_count) == (1, 8, 2, 16)
    assert one.tokens == two.tokens == 16 * 1024
    assert [layout.time_ns for layout in one.layouts] == [5, 7]
    assert (one.tally.replayed, one.tally.untried) == (3, 0)
    assert one.tally.pruned == one.tally.considered - one.tally.too_large - 3


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
        ({"minimise": Goal.COST}, 1),
        ({"minimise": Goal.ENERGY}, 1),
        ({"finish_in": "7d"}, 2),
        ({"finish_in": "30d"}, 1),
        ({"finish_in": "1 d"}, 4),  # nothing is in time
    ],
)
def test_the_best_number_of_hosts_is_the_one_that_was_asked_for(asked, hosts):
    assert search_of(**asked).best.hosts == hosts


def test_money_cannot_be_least_without_a_price(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("per_gpu_hour: {}\n")
    with pytest.raises(ScenarioError, match="no price is listed for dgx_h100"):
        _ = search_of(minimise=Goal.COST, prices=str(path)).best


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"finish_in": "30d"}, "Give --tokens COUNT too"),
        ({"minimise": Goal.COST}, "Give --tokens COUNT too"),
        ({"finish_in": "soon", "tokens": 1e9}, "--finish-in: quantity"),
    ],
)
def test_wishes_about_a_whole_run_need_one(asked, said):
    with pytest.raises(ScenarioError) as fault:
        LayoutQuestion(topology="dgx_h100", workload="llama3_8b", **asked)
    assert said in str(fault.value)
