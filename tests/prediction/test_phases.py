"""How far the work is, and how long each step took."""

from __future__ import annotations

from types import SimpleNamespace

import numba
import pytest

from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction import phases
from perfmodel.prediction.phases import COMPILING, PhaseClock, map_in_steps


def test_a_phase_is_announced_and_its_seconds_add_up(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=lambda: now.s))
    told = []
    clock = PhaseClock(lambda phase, done: told.append((phase, done)))
    for took_s in (2.0, 3.0):
        with clock.phase("pricing", done=0.2):
            now.s += took_s
    assert told == [("pricing", 0.2), ("pricing", 0.2)]
    assert clock.phase_s == {"pricing": 5.0}


@pytest.mark.parametrize(
    ("count", "at_once"), [(1, 1), (50, 1), (51, 2), (100, 2), (101, 3), (0, 1)]
)
def test_a_long_list_is_answered_in_fifty_steps_or_fewer(count, at_once):
    told = []
    found = map_in_steps(
        SerialExecutor(),
        lambda shared, item: shared + item,
        1000,
        range(count),
        on_phase=lambda phase, done: told.append((phase, done)),
        phase="point",
    )
    assert found == [1000 + item for item in range(count)]
    firsts = range(0, count, at_once)
    assert told == [(f"point {first + 1} of {count}", first / count) for first in firsts]


def test_a_phase_that_compiles_says_so():
    said = []
    clock = PhaseClock(lambda phase, done: said.append((phase, done)))
    with clock.phase("replaying", done=0.5):
        numba.njit(lambda number: number + 1)(1)
    assert said == [("replaying", 0.5), (COMPILING, 0.5), ("replaying", 0.5)]
