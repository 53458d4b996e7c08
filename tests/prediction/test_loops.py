"""The interval: samples of the costs, replayed side by side."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.engine.replay import Replay, replay
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph
from perfmodel.prediction import loops
from perfmodel.prediction.answer import Interval
from perfmodel.prediction.loops import build_interval, replay_samples
from tests.reports.predictions import build_job


def build_samples(job: JobGraph) -> DurationTable:
    # Tasks: launch, kernel, all-reduce; four vectors whose kernels take 10 to 40 us.
    values_ns = np.array([[1_000] * 4, [10_000, 20_000, 30_000, 40_000], [5_000] * 4])
    return DurationTable(values_ns, np.zeros(job.rank_count, dtype=np.int64))


def test_every_vector_has_its_own_time():
    job = build_job()

    times_ns = replay_samples(replay, job, build_samples(job), iterations=1)
    # Launch, kernel, all-reduce one after the other: 1 + 10 + 5 us and so on.
    assert times_ns.tolist() == [16_000, 26_000, 36_000, 46_000]


def test_samples_replayed_a_few_at_a_time_have_the_same_times(monkeypatch):
    job = build_job()
    counts = []

    def replay_counted(job: JobGraph, durations: DurationTable, iterations: int) -> Replay:
        counts.append(durations.vector_count)
        return replay(job, durations, iterations)

    at_once = replay_samples(replay_counted, job, build_samples(job), iterations=4)
    for room in (2 * job.task_count, job.task_count - 1):
        monkeypatch.setattr(loops, "FEW_MOMENTS", room)
        monkeypatch.setattr(loops, "MAX_MOMENTS", room)
        a_few = replay_samples(replay_counted, job, build_samples(job), iterations=4)
        assert a_few.tolist() == at_once.tolist()
    assert counts == [4, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize(("nominal_ns", "ends"), [(50, (5, 95)), (2, (2, 95)), (99, (5, 99))])
def test_the_interval_is_the_middle_90_percent_and_always_holds_the_answer(nominal_ns, ends):
    # 0 to 100 in steps of one: the 5th and the 95th of a hundred steps.
    assert build_interval(np.arange(101.0), nominal_ns=nominal_ns) == Interval(*ends)


def test_samples_of_a_loop_are_judged_by_the_second_half_of_their_iterations():
    # Iterations end at 10, 30, 60 and 100 us: the last two take 35 us each in the mean.
    lanes_ns = np.array([10, 30, 60, 100], dtype=np.int64).reshape(4, 1, 1) * 1000
    job = build_job()
    [one] = replay_samples(
        lambda *_: Replay((), lanes_ns),
        job,
        DurationTable(np.zeros((3, 1), dtype=np.int64), np.zeros(2, dtype=np.int64)),
        iterations=4,
    )
    assert one == 35_000
