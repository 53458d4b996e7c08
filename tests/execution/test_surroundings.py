"""What watches over Ray, without Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.ray_surroundings import Watch, environment, watchdog
from tests.conftest import CHECKOUT

PATIENCE_S = 60.0


def listener(family, place):
    line = socket.socket(family, socket.SOCK_STREAM)
    line.bind(place)
    line.listen(128)
    return line


def wait_for_fault(watch: Watch) -> str:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            watch.check()
        except ExecutionError as error:
            return str(error)
        time.sleep(0.05)
    pytest.fail("nothing was noticed")


@pytest.fixture
def lines(tmp_path):
    raylet = listener(socket.AF_UNIX, str(tmp_path / "raylet"))
    head = listener(socket.AF_INET, ("127.0.0.1", 0))
    yield raylet, head
    raylet.close()
    head.close()


@pytest.fixture
def watch(lines, tmp_path):
    port = lines[1].getsockname()[1]
    with watchdog(None) as guard:
        watching = Watch(
            guard,
            raylet_socket=str(tmp_path / "raylet"),
            head=f"127.0.0.1:{port}",
            host="10.0.0.7",
        )
        yield watching
        watching.end()


def test_a_cluster_that_is_there_gives_no_cause_for_complaint(watch):
    time.sleep(4 * Watch.PERIOD_S)

    watch.check()


def test_a_raylet_that_is_gone_is_noticed_with_its_machine(watch, lines):
    lines[0].close()

    assert "the raylet on 10.0.0.7, which this process works through, is gone" in (
        wait_for_fault(watch)
    )


def test_a_head_that_is_gone_is_noticed_and_says_how_to_go_on(watch, lines):
    lines[1].close()

    said = wait_for_fault(watch)

    assert "the head of the cluster at 127.0.0.1" in said
    assert "--executor serial" in said


LEAVES = """
import os, sys
from perfmodel.execution.ray_surroundings import watchdog
with watchdog(None) as guard:
    if sys.argv[1] == "noted":
        guard.note("ray: all is lost.")
    if sys.argv[1] != "in order":
        os._exit(1)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [("noted", "ray: all is lost."), ("cut", "ended without a word"), ("in order", "")],
)
def test_the_watchdog_says_the_last_word_for_a_driver_that_cannot(how, said):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, how],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert said in done.stderr
    assert bool(done.stderr) == bool(said)


def test_what_a_person_has_set_stays_unless_it_must_not(monkeypatch):
    monkeypatch.setenv("RAY_ONE", "theirs")

    with environment({"RAY_ONE": "ours", "RAY_TWO": "ours"}):
        assert (os.environ["RAY_ONE"], os.environ["RAY_TWO"]) == ("theirs", "ours")
    assert "RAY_TWO" not in os.environ
    with environment({"RAY_ONE": "ours"}, is_forced=True):
        assert os.environ["RAY_ONE"] == "ours"
    assert os.environ["RAY_ONE"] == "theirs"


STUCK = """
import time
from perfmodel.execution import ray_surroundings as here
with here.watchdog(None) as guard:
    with here.bounded(guard, 0.2, "ray: stuck"):
        time.sleep(60)
"""
STUCK_AFTER_A_FAULT = """
import time
from perfmodel.execution import ray_surroundings as here
here.Watch.LAST_S = here.Watch.PERIOD_S = 0.1
with here.watchdog(None) as guard:
    here.Watch(guard, raylet_socket="/nowhere", head="127.0.0.1:1", host="here")
    time.sleep(60)
"""
IN_TIME = """
import time
from perfmodel.execution import ray_surroundings as here
with here.watchdog(None) as guard:
    with here.bounded(guard, 0.2, "ray: stuck"):
        pass
    time.sleep(0.4)
"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (STUCK, 1, "ray: stuck"),
        (STUCK_AFTER_A_FAULT, 1, "ray: the raylet on here"),
        (IN_TIME, 0, ""),
    ],
)
def test_only_a_process_that_ray_never_gives_back_ends_with_a_sentence(script, code, said):
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == code
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
