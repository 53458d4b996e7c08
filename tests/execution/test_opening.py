"""Opening an executor by the word for its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfmodel.base.errors import ExecutionError, InputError
from perfmodel.engine.replay import replay
from perfmodel.execution import ExecutorKind, open_executor
from perfmodel.execution.opening import START_S, TASKS_PER_S, AutoExecutor
from perfmodel.execution.serial import SerialExecutor
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job


def test_serial_replays_in_this_process():
    job, durations = alternating_job(ranks=3, meetings=4)

    with open_executor("serial") as executor:
        assert_same(executor.replay(job, durations, 2), replay(job, durations, iterations=2))
        assert executor.map(pow, 2, [3, 1, 2]) == [8, 2, 4]
        assert executor.description == "serial"


def test_auto_stays_in_this_process_for_a_small_job():
    job, durations = alternating_job(ranks=3, meetings=4)

    with open_executor() as executor:
        assert_same(executor.replay(job, durations), replay(job, durations))
        assert executor.map(pow, 2, [3, 1, 2]) == [8, 2, 4]
        assert executor.description == "serial"


def test_auto_takes_the_other_place_once_the_saved_time_exceeds_the_start():
    opened = []
    auto = AutoExecutor(lambda: opened.append("ray") or SerialExecutor(), workers=2)
    job, durations = alternating_job(ranks=4, meetings=50)
    # 400 tasks an iteration; with two workers half of the time is saved.
    enough = int(2 * START_S * TASKS_PER_S / job.task_count) + 1
    assert enough == 450_001

    auto.replay(job, durations, 10)
    assert opened == []
    auto._place_for(serial_s=(enough - 1) * job.task_count / TASKS_PER_S)
    assert opened == []
    auto._place_for(serial_s=enough * job.task_count / TASKS_PER_S)
    auto._place_for(serial_s=enough * job.task_count / TASKS_PER_S)
    assert opened == ["ray"]


def test_auto_never_leaves_this_process_for_one_worker():
    auto = AutoExecutor(lambda: pytest.fail("must not be opened"), workers=1)

    assert isinstance(auto._place_for(serial_s=1e9), SerialExecutor)


def test_auto_answers_no_items_with_no_answers():
    with open_executor("auto") as executor:
        assert executor.map(pow, 2, []) == []


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="must be one of auto, serial, ray, got 'dask'"):
        open_executor("dask")


def test_no_workers_are_refused():
    with pytest.raises(InputError, match="must be 1 or more, got 0"):
        open_executor(ExecutorKind.RAY, workers=0)


@pytest.mark.parametrize("said", [{"workers": 2}, {"address": "somewhere:6379"}])
def test_serial_refuses_what_only_ray_can_do(said):
    with (
        pytest.raises(InputError, match="works in this process alone"),
        open_executor("serial", **said),
    ):
        pass


def test_an_address_where_nobody_answers_is_an_error_that_says_so():
    # Port 1 of this machine: nobody listens there.
    with (
        pytest.raises(ExecutionError, match=r"nobody answers at '127\.0\.0\.1:1'"),
        open_executor("ray", address="127.0.0.1:1"),
    ):
        pass


def test_an_address_without_a_port_number_is_refused():
    with (
        pytest.raises(ExecutionError, match="must look like host:6379, got 'host:port'"),
        open_executor("ray", address="host:port"),
    ):
        pass


def test_ray_is_not_imported_until_it_is_wanted():
    code = (
        "import sys; from perfmodel.execution import open_executor\n"
        "with open_executor('auto') as e: e.map(pow, 2, [1, 2])\n"
        "sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
