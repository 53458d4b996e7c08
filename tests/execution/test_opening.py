"""Opening an executor by the word for its kind."""

from __future__ import annotations

import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

from perfmodel.base.errors import ExecutionError, InputError
from perfmodel.engine.replay import replay
from perfmodel.execution import ExecutorKind, open_executor
from perfmodel.execution.executor import START_S, TASKS_PER_S, AutoExecutor
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, paired_job


@pytest.mark.parametrize("kind", ["serial", "auto"])
def test_a_small_job_is_replayed_in_this_process(kind):
    job, durations = alternating_job(ranks=3, members=4)

    with open_executor(kind, workers=1) as executor:
        assert_same(executor.replay(job, durations, 2), replay(job, durations, iterations=2))
        assert executor.map(pow, 2, [3, 1, 2]) == [8, 2, 4]
        assert executor.map(pow, 2, []) == []
        assert executor.description == "serial"


class Opened:
    """An executor that takes everything and notes that it was opened."""

    def __init__(self):
        self.times = 0
        self.replays = []

    def __call__(self):
        self.times += 1
        return self

    def replay(self, job, durations, iterations=1):
        self.replays.append(iterations)

    def map(self, function, shared, items):
        self.replays.append(items)
        return [function(shared, item) for item in items]


def test_auto_takes_the_other_place_once_the_saved_time_exceeds_the_start():
    job, durations = paired_job(pairs=2, tasks=100)
    # 400 tasks an iteration; two workers save half of the time and never talk.
    enough = int(2 * START_S * TASKS_PER_S / job.task_count) + 1
    assert enough == 900_001
    opened = Opened()
    auto = AutoExecutor(opened, workers=2)

    auto.replay(job, durations, 10)
    assert opened.times == 0
    auto.replay(job, durations, enough)
    auto.replay(job, durations, 2 * enough)
    assert (opened.times, opened.replays) == (1, [enough, 2 * enough])


def test_auto_takes_the_other_place_once_steps_of_a_list_add_up(monkeypatch):
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("perfmodel.execution.executor.time", clock)
    opened = Opened()
    auto = AutoExecutor(opened, workers=2)

    # A look at the clock takes a second: one for the first item, two a step. Two other items
    # and six steps behind them say 14 s, of which two workers save 7.
    for _ in range(6):
        assert auto.map(pow, 2, [1, 2, 3]) == [2, 4, 8]
    assert opened.replays == []
    assert auto.map(pow, 2, [1, 2, 3]) == [2, 4, 8]
    assert auto.map(pow, 2, [1, 2, 3]) == [2, 4, 8]
    assert (opened.times, opened.replays) == (1, [[2, 3], [1, 2, 3]])


def test_auto_counts_the_time_that_blocks_would_talk(monkeypatch):
    job, durations = alternating_job(ranks=2, members=100)
    opened = Opened()
    auto = AutoExecutor(opened, workers=2)
    monkeypatch.setattr("perfmodel.execution.executor.START_S", 0.0)

    # 400 tasks take 13 us here and half of that there, and then 100 rounds of a millisecond.
    auto.replay(job, durations, 10)
    assert opened.times == 0
    monkeypatch.setattr("perfmodel.execution.executor.ROUND_S", 0.0)
    auto.replay(job, durations, 10)
    assert opened.times == 1


def test_auto_learns_how_fast_this_machine_is():
    job, durations = paired_job(pairs=2, tasks=100_000)
    auto = AutoExecutor(Opened(), workers=2)

    # 400,000 tasks three times over are enough to tell.
    auto.replay(job, durations, 3)

    assert auto.tasks_per_s != TASKS_PER_S


@pytest.mark.parametrize(("workers", "ranks"), [(1, 4), (2, 1)])
def test_auto_never_leaves_this_process_for_one_block(workers, ranks, monkeypatch):
    auto = AutoExecutor(lambda: pytest.fail("must not be opened"), workers=workers)
    monkeypatch.setattr("perfmodel.execution.executor.START_S", 0.0)

    job, durations = alternating_job(ranks=ranks, members=3)
    assert_same(auto.replay(job, durations), replay(job, durations))


# Port 1 of this machine: no process listens there.
@pytest.mark.parametrize(
    ("kind", "said", "error", "words"),
    [
        ("dask", {}, InputError, "must be one of auto, serial, ray, got 'dask'"),
        (ExecutorKind.RAY, {"workers": 0}, InputError, "must be 1 or more, got 0"),
        ("serial", {"workers": 2}, InputError, "works in this process alone"),
        ("serial", {"address": "somewhere:6379"}, InputError, "works in this process alone"),
        ("ray", {"address": "127.0.0.1:1"}, ExecutionError, r"no answer from '127\.0\.0\.1:1'"),
        ("ray", {"address": "host:port"}, ExecutionError, "must look like host:6379, got 'host:p"),
    ],
)
def test_an_executor_that_cannot_be_is_refused(kind, said, error, words):
    with pytest.raises(error, match=words), open_executor(kind, **said):
        pass


def test_ray_is_not_imported_until_it_is_wanted():
    code = (
        "import sys; from perfmodel.execution import open_executor\n"
        "with open_executor('auto') as e: e.map(pow, 2, [1, 2])\n"
        "print('ray' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
