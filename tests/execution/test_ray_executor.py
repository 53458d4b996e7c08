"""Replays and fan-out on a real Ray cluster, started here."""

from __future__ import annotations

import json
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray
from hypothesis import given, settings

from perfmodel.base.errors import ExecutionError, ReplayStalledError, WorkloadError
from perfmodel.base.writing import is_private
from perfmodel.engine.replay import replay
from perfmodel.execution import open_executor
from perfmodel.execution.executor import SerialExecutor
from perfmodel.execution.on_ray import cluster, watchdog, workers
from perfmodel.execution.on_ray.surroundings import FOLDER_PREFIX
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.reports.document import to_document
from tests.benchmarks.graphs import build_benchmark_job
from tests.benchmarks.measure_ray_memory import MIB, read_status
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job, crossed_job
from tests.execution.questions import die_once, multiply, refuse_odd
from tests.strategies import random_jobs

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def three_workers():
    with open_executor("ray", workers=3) as executor:
        yield executor


@pytest.fixture(scope="module")
def executors(three_workers):
    """By the number of workers; all on the cluster that the one with three has started."""
    with open_executor("ray", workers=1) as one, open_executor("ray", workers=2) as two:
        yield {1: one, 2: two, 3: three_workers}


@settings(max_examples=25)
@given(made=random_jobs())
def test_any_number_of_workers_gives_the_same_bits_as_one_process(executors, made):
    wanted = replay(made.job, made.durations, iterations=made.iterations)

    for executor in executors.values():
        assert_same(executor.replay(made.job, made.durations, made.iterations), wanted)


def test_a_model_with_experts_has_the_same_answer_as_in_one_process(three_workers):
    words = (
        "model.layers=4", "model.experts=8", "batch=8", "parallel.tp=1", "parallel.pp=2",
        "parallel.ep=4", "parallel.micro_batch=1", "parallel.schedule=dualpipe_v",
        "parallel.expert_overlap=true", "parallel.dispatcher=deepep",
    )  # fmt: skip
    scenario = Scenario("dgx_h100", "qwen3_30b_a3b", words, ranks_per_host=8, samples=2)
    question = build_question(load_setting(scenario))
    answers = [
        to_document(predict(question, executor=executor))
        for executor in (SerialExecutor(), three_workers)
    ]
    here, there = (json.dumps({**one, "run": None}, sort_keys=True) for one in answers)
    assert here == there
    assert "blocks" in answers[1]["run"]["executor"]


def test_a_local_ray_lives_in_a_folder_that_only_its_user_can_open(three_workers):
    place = Path(ray.nodes()[0]["RayletSocketName"])
    folder = next(one for one in place.parents if one.name.startswith(FOLDER_PREFIX))
    assert is_private(folder)
    assert folder in Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents


def test_the_answer_says_where_it_ran(three_workers):
    job, durations = alternating_job(ranks=4, members=10)

    with open_executor("ray", workers=2) as executor:
        assert executor.description == "ray, 2 workers of a running cluster"
        executor.replay(job, durations)
        # A round for each of ten members, and one to begin.
        assert executor.description == "ray, 2 workers of a running cluster, 2 blocks, 11 rounds"
    assert three_workers.description.startswith("ray, 3 workers")
    assert "running cluster" not in three_workers.description


def test_a_local_ray_listens_to_this_machine_and_to_who_knows_its_token(three_workers):
    assert three_workers.description.startswith("ray, 3 workers")
    places = set()
    for pid in watchdog.marked_processes(os.environ[watchdog.MARK]):
        # Workers come and go.
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    places.add(connection.laddr.ip)

    # The second is the first, as sockets for both kinds of address write it.
    assert places <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert places
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_worker_whose_memory_does_not_hold_its_ranks_says_so(three_workers):
    small, large = (build_benchmark_job(ranks, is_distinct=True) for ranks in (2, 400))
    pids = []

    def note(status):
        pids.extend(place.pid for place in status.places)

    with open_executor("ray", workers=1, on_round=note) as executor:
        executor.replay(small.job, small.durations)
        most = read_status(pids[0], "VmData") + 8 * MIB
        resource.prlimit(pids[0], resource.RLIMIT_DATA, (most, most))

        # 1.6 million tasks take more than 8 MiB, be it to hear of them or to lay them out.
        with pytest.raises(ExecutionError, match=r"memory of a worker .*more workers or machines"):
            executor.replay(large.job, large.durations)


def test_a_worker_that_is_killed_half_way_costs_time_but_not_the_answer(three_workers):
    job, durations = alternating_job(ranks=6, members=10)
    killed = []

    def kill_in_round_15(status):
        if status.number == 15:
            os.kill(status.places[1].pid, signal.SIGKILL)
            killed.append(status.places[1].pid)

    # One round to begin and ten an iteration: round 15 is in the middle of the second.
    with open_executor("ray", workers=2, on_round=kill_in_round_15) as executor:
        found = executor.replay(job, durations, 2)

        assert executor.description.endswith("2 blocks, 21 rounds, 1 lost block rebuilt")
    assert len(killed) == 1
    assert_same(found, replay(job, durations, iterations=2))


def test_a_worker_that_is_stopped_is_named_and_waited_for(three_workers, monkeypatch):
    job, durations = alternating_job(ranks=6, members=3)
    monkeypatch.setattr(cluster, "SILENCE_S", 0.5)
    stopped, heard = [], []

    def stop_first(status):
        if not stopped:
            stopped.append(status.places[0])
            os.kill(stopped[0].pid, signal.SIGSTOP)

    def go_on(sentence):
        # Workers that are still starting are waited for as well.
        if stopped:
            heard.append(sentence)
            os.kill(stopped[0].pid, signal.SIGCONT)

    with open_executor("ray", workers=2, on_round=stop_first, on_wait=go_on) as executor:
        assert_same(executor.replay(job, durations), replay(job, durations))

    assert stopped[0].host in heard[0]
    assert heard[0].startswith("ray: waiting for ")


def test_a_worker_that_is_killed_between_two_replays_costs_time_but_not_the_answer(three_workers):
    job, durations = alternating_job(ranks=6, members=3)
    seen = []

    with open_executor("ray", workers=2, on_round=seen.append) as executor:
        executor.replay(job, durations)
        os.kill(seen[-1].places[0].pid, signal.SIGKILL)

        assert_same(executor.replay(job, durations), replay(job, durations))


def test_a_cluster_that_loses_workers_again_and_again_is_an_error_that_says_so(
    three_workers, monkeypatch
):
    job, durations = alternating_job(ranks=2, members=4)
    monkeypatch.setattr(workers, "MOST_REBUILDS", 2)

    def kill_always(status):
        os.kill(status.places[0].pid, signal.SIGKILL)

    with (
        open_executor("ray", workers=2, on_round=kill_always) as executor,
        pytest.raises(ExecutionError, match=r"lost 3 times in one replay, .* ranks 0-0"),
    ):
        executor.replay(job, durations, 4)


def test_a_stalled_job_is_reported_as_it_is_in_one_process_and_the_executor_goes_on(executors):
    with pytest.raises(ReplayStalledError) as wanted:
        replay(*crossed_job())
    with pytest.raises(ReplayStalledError) as found:
        executors[2].replay(*crossed_job())
    assert str(found.value) == str(wanted.value)

    job, durations = alternating_job(ranks=3, members=2)
    assert_same(executors[2].replay(job, durations), replay(job, durations))


def test_answers_keep_the_order_of_the_items_and_the_first_error_comes_through(executors):
    items = list(range(100))

    for executor in executors.values():
        assert executor.map(multiply, 7, items) == [7 * item for item in items]
        assert executor.map(multiply, 7, []) == []
        with pytest.raises(WorkloadError) as found:
            executor.map(refuse_odd, "batch", [2, 4, 5, 6, 7, 9])
        assert str(found.value) == "batch: must be even, got 5."


def test_a_worker_that_is_killed_while_it_answers_costs_time_but_not_the_answers(
    executors, tmp_path
):
    answers = executors[2].map(die_once, str(tmp_path), list(range(8)))

    assert (tmp_path / "killed").exists()
    assert answers == [0, 1, 4, 9, 16, 25, 36, 49]
