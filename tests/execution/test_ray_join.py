"""A Ray cluster that was running before, with two raylets, one of which gets lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.base.identity import full_identity
from perfmodel.engine.replay import replay
from perfmodel.execution import open_executor
from perfmodel.execution.on_ray import cluster as on_ray_cluster
from perfmodel.execution.on_ray import joining
from perfmodel.execution.on_ray.liveness import Reply, ask
from tests.execution.comparison import assert_same
from tests.execution.jobs import alternating_job
from tests.execution.questions import multiply

pytestmark = pytest.mark.ray


def test_private_names_of_ray_are_still_there():
    """Those that `on_ray.joining` uses; seen in Ray 2.60.0."""
    import ray
    from ray._private import ray_constants

    assert ray_constants.ENABLE_RAY_CLUSTER is True
    inside = ray._raylet
    assert callable(inside.GcsClient)
    assert callable(inside.Config.initialize)
    assert callable(inside.AuthenticationTokenLoader.instance().has_token)
    assert callable(inside.AuthenticationTokenLoader.instance().reset_cache)
    assert issubclass(ray.exceptions.AuthenticationError, Exception)


# Ray asks a raylet every 3 s whether it lives and gives up after 5 silent answers. Less
# patience than this, and a raylet on a busy machine is taken for a lost one.
IMPATIENT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


def assert_refused(address, words):
    with pytest.raises(ExecutionError, match=words), open_executor("ray", address=address):
        pass


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    running = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": IMPATIENT}
    )
    yield running
    running.shutdown()


def test_a_running_cluster_is_joined_by_its_address_and_left_running(cluster):
    job, durations = alternating_job(ranks=4, members=5)

    with open_executor("ray", address=cluster.address) as executor:
        assert_same(executor.replay(job, durations), replay(job, durations))
        assert executor.map(multiply, 3, [1, 2, 3]) == [3, 6, 9]
        assert executor.description == (
            "ray, 2 workers of a running cluster, 2 blocks, 6 rounds, 3 questions fanned out"
        )

    assert cluster.head_node.any_processes_alive()
    assert cluster.head_node.remaining_processes_alive()


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A cluster that asks for the token which the home of its owner holds."""
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("5" * 64)
    monkeypatch.setenv("HOME", str(home))
    with socket.socket() as free, tempfile.TemporaryDirectory(dir="/tmp") as short:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ray = Path(sys.executable).with_name("ray")
        words = f"start --head --block --port {port} --num-cpus 1 --temp-dir {short}".split()
        running = subprocess.Popen(
            [ray, *words, "--include-dashboard", "false", "--disable-usage-stats"],
            env={**os.environ, "RAY_AUTH_MODE": "token"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while ask(f"127.0.0.1:{port}") is Reply.ABSENT:
            assert running.poll() is None
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
        started = psutil.Process(running.pid).children(recursive=True)
        for process in (psutil.Process(running.pid), *started):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started)
        running.wait()


def test_a_cluster_on_this_machine_is_shown_the_token_that_it_asks_for(guarded, monkeypatch):
    with open_executor("ray", address=guarded) as executor:
        assert executor.map(multiply, 3, [1, 2]) == [3, 6]

    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert_refused(guarded, r"asks for a token\. Set RAY_AUTH_MODE=token")


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [
        ({}, "asks for a token"),
        ({"RAY_AUTH_MODE": "token"}, "asks for a token"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32},
            "refuses the given token",
        ),
    ],
)
def test_who_has_no_token_for_a_cluster_is_told_so(guarded, mode, complaint, tmp_path):
    script = "from perfmodel.execution import open_executor as open_\n"
    asked = subprocess.run(
        [sys.executable, "-c", f"{script}with open_('ray', address={guarded!r}): pass"],
        env={**os.environ, "HOME": str(tmp_path), **mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{complaint}. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN" in asked.stderr


def test_a_cluster_with_another_program_is_refused(cluster, monkeypatch):
    """One changed line is enough, whatever the version."""
    monkeypatch.setattr(joining, "full_identity", lambda: "0123456789ab")
    said = rf"program 0123456789ab .* its program is {re.escape(full_identity())}\. Install"
    assert_refused(cluster.address, said)


def test_a_machine_with_another_program_that_joins_later_takes_no_work(cluster, monkeypatch):
    """Every worker process compares its program when it is given work."""
    with open_executor("ray", address=cluster.address) as executor:
        monkeypatch.setattr(on_ray_cluster, "full_identity", lambda: "0123456789ab")
        said = rf"has program {re.escape(full_identity())}, and this one 0123456789ab"
        with pytest.raises(ExecutionError, match=said):
            executor.map(multiply, 3, [1, 2])


def test_a_process_that_is_connected_does_not_join_another_cluster(cluster):
    with open_executor("ray", address=cluster.address):
        assert_refused("10.0.0.1:6379", r"connected to the cluster at .* cannot join")


def test_a_head_that_is_stopped_before_it_is_joined_ends_in_a_sentence():
    """Ray alone asks for two minutes whether such a head wants a token."""
    script = """
import sys
from perfmodel.execution import open_executor
from perfmodel.execution.on_ray import liveness, surroundings
surroundings.LAST_S, liveness.Watch.MOST_MUTES = 0.5, 2
with open_executor("ray", address=sys.argv[1]):
    pass
"""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        asked = subprocess.run(
            [sys.executable, "-c", script, address],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert asked.returncode == 1
    assert f"ray: the head of the cluster at {address} (its GCS) is gone" in asked.stderr


def test_a_machine_that_does_not_answer_while_it_is_joined_is_named(cluster, monkeypatch):
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    (raylet,) = second.all_processes["raylet"]
    monkeypatch.setattr(joining, "PROBE_TIMEOUT_S", 3.0)
    # It still listens, as a machine does that is about to be lost.
    os.kill(raylet.process.pid, signal.SIGSTOP)
    try:
        assert_refused(cluster.address, r"did not answer during the.join.*ray stop")
    finally:
        os.kill(raylet.process.pid, signal.SIGCONT)
        cluster.remove_node(second, allow_graceful=False)


def test_a_raylet_that_is_lost_half_way_costs_time_but_not_the_answer(cluster):
    second = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    job, durations = alternating_job(ranks=4, members=10)
    lost = []

    def lose_in_round_5(status):
        there = [place for place in status.places if place.raylet_id == second.node_id]
        if status.number == 5 and there:
            lost.extend(psutil.Process(place.pid) for place in there)
            cluster.remove_node(second, allow_graceful=False)
            # Here workers live on until they miss their raylet; with a machine they go too.
            for process in lost:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    with open_executor("ray", workers=3, address=cluster.address, on_round=lose_in_round_5) as on:
        found = on.replay(job, durations)
        description = on.description

    # More than were lost, where one was rebuilt on the raylet that Ray still took for alive.
    told = re.search(r"3 blocks, 11 rounds, (\d+) lost blocks? rebuilt$", description)
    assert told is not None, description
    assert int(told[1]) >= len(lost) >= 1
    assert_same(found, replay(job, durations))
