"""Layouts in order: what is replayed, when it is proven, why the first one wins, and money."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.planning.layouts.search import (
    REPLAYED_AT_ONCE,
    LayoutQuestion,
    LayoutRanking,
    RankedLayout,
    Search,
    Tally,
    _compare,
    _order,
    _replay,
)
from perfmodel.prediction.answer import Part
from perfmodel.prediction.phases import ignore_phase

MS = 1_000_000


def candidate(number: int, *, peak_bytes: int = 0, cp: int = 1, ep: int = 1) -> Any:
    layout = SimpleNamespace(tp=number, pp=2, cp=cp, ep=ep, dp=3, micro_batch=4)
    return SimpleNamespace(
        number=number, peak_bytes=peak_bytes, chosen=SimpleNamespace(layout=layout)
    )


def answer(time_ns: int, *drawn_ns: float) -> Any:
    return SimpleNamespace(iteration_ns=time_ns, drawn_ns=drawn_ns, interval=None)


def replay(bounds_ns: list[int], times_ns: list[int], *, top: int = 1, seconds: float = 1e6):
    """Rounds of replays of layouts with such bounds and times, and whether that is proof."""
    rounds = []

    def judge_all(candidates: Any) -> list[Any]:
        rounds.append(len(candidates))
        return [answer(times_ns[one.number]) for one in candidates]

    queue = [(bound_ns, candidate(number)) for number, bound_ns in enumerate(bounds_ns)]
    done, is_proven = _replay(queue, judge_all, top, time.monotonic() + seconds, ignore_phase)
    assert [one.bound_ns for one in done] == bounds_ns[: len(done)]
    return rounds, is_proven


def test_replays_end_when_the_next_bound_is_not_below_the_best_time():
    count = REPLAYED_AT_ONCE
    # The first one is replayed alone: it tells how long the others take.
    bounds = [10] * (1 + count) + [50] * count + [90]
    assert replay(bounds, [50] * len(bounds)) == ([1, count], True)
    assert replay(bounds, [51] * len(bounds)) == ([1, count, count], True)
    assert replay(bounds, [99] * len(bounds)) == ([1, count, count, 1], True)
    # As many as are to be shown are replayed in any case.
    assert replay(bounds, [50] * len(bounds), top=count + 2) == ([1, count, count], True)


def test_replays_that_would_end_too_late_are_not_begun():
    bounds = [10, 50]
    assert replay(bounds, [51, 51], seconds=0.0) == ([1], False)
    assert replay(bounds, [50, 50], top=99, seconds=0.0) == ([1], True)


def test_the_fastest_stands_first_and_of_equals_the_smaller_one():
    given = [
        RankedLayout(candidate(1, peak_bytes=9), 0, answer(30, 30.0, 31.0)),
        RankedLayout(candidate(2, peak_bytes=5), 0, answer(30, 30.0, 30.0)),
        RankedLayout(candidate(3, peak_bytes=7), 0, answer(20, 29.0, 40.0)),
    ]
    order = _order(given)
    assert [one.candidate.number for one in order] == [3, 2, 1]
    assert [one.beats_next for one in order] == [0.5, 0.75, None]
    assert [one.is_tied_with_next for one in order] == [True, False, False]


def test_a_layout_is_called_by_how_it_splits_ranks():
    plain = RankedLayout(candidate(2), 0, answer(1))
    split = RankedLayout(candidate(2, cp=4, ep=8), 0, answer(1))
    assert plain.name == "tp=2 pp=2 dp=3 micro_batch=4"
    assert split.name == "tp=2 pp=2 cp=4 ep=8 dp=3 micro_batch=4"


def prediction(time_ms: float, **parts_ms: float) -> Any:
    of_part = {part: round(MS * parts_ms.get(part.value, 0.0)) for part in Part}
    return SimpleNamespace(
        iteration_ns=round(MS * time_ms),
        explanation=SimpleNamespace(time=SimpleNamespace(of_part_ns=of_part)),
    )


def test_the_winner_is_told_from_the_next_by_the_parts_that_differ():
    first = prediction(100, compute=80, exposed_communication=20, host_bound_idle=0.0)
    second = prediction(110, compute=60, exposed_communication=49.9, host_bound_idle=0.1)
    assert _compare(first, second, "tp=8") == (
        "Against tp=8 (+10.0 ms): compute -20.0 ms, exposed communication +29.9 ms.",
        "It would win if its compute (60.0 ms) were 17 % less.",
    )
    assert _compare(first, first, "itself") == ()


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
