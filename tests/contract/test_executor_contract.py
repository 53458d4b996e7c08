"""What every executor must do: the place never changes the answer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from perfmodel.base.errors import ReplayStalledError, WorkloadError
from perfmodel.engine.replay import find_period
from perfmodel.execution import open_executor
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, crossed_job
from tests.execution.questions import multiply, refuse_odd
from tests.strategies import random_jobs

PLACES = [
    pytest.param(("serial", None), id="serial"),
    pytest.param(("auto", None), id="auto"),
    pytest.param(("ray", 2), id="ray", marks=pytest.mark.ray),
]


@pytest.fixture(scope="module", params=PLACES)
def executor(request):
    kind, workers = request.param
    with open_executor(kind, workers=workers) as place:
        yield place


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=random_jobs())
def test_a_replay_is_that_of_one_process_bit_by_bit(executor, made):
    with open_executor("serial") as serial:
        wanted = serial.replay(made.job, made.durations, made.iterations)
    assert_same(executor.replay(made.job, made.durations, made.iterations), wanted)


def test_one_iteration_is_replayed_unless_more_are_asked_for(executor):
    job, durations = alternating_job(ranks=4, members=3)
    assert executor.replay(job, durations).iteration_count == 1
    assert executor.replay(job, durations, 3).iteration_count == 3


def test_it_serves_whoever_looks_for_a_rhythm(executor):
    job, durations = alternating_job(ranks=4, members=3)
    with open_executor("serial") as serial:
        wanted = find_period(serial.replay, job, durations)
    found = find_period(executor.replay, job, durations)
    assert found.period_ns.tolist() == wanted.period_ns.tolist()


def test_many_questions_are_answered_in_their_order(executor):
    assert executor.map(multiply, 3, list(range(20))) == [3 * item for item in range(20)]
    assert executor.map(multiply, 3, []) == []


def test_the_error_of_the_first_question_that_fails_comes_through_as_it_is(executor):
    with pytest.raises(WorkloadError, match="got 1"):
        executor.map(refuse_odd, "numbers", [0, 1, 2, 3])


def test_a_job_that_cannot_run_is_refused_and_never_hangs(executor):
    with pytest.raises(ReplayStalledError):
        executor.replay(*crossed_job())


def test_it_says_where_the_work_was_done(executor):
    assert executor.description.split(",")[0] in ("serial", "ray")
