"""What watches over Ray, without Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.on_ray.surroundings import Watch, Watchdog, environment, quiet
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
    with closing(Watchdog(None)) as guard:
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


SCRIPT = """
import os, sys, time
from contextlib import closing
from perfmodel.execution.on_ray import surroundings as here
with closing(here.Watchdog(None)) as guard:
    {}
"""
LEFT = "os._exit(1)"
NOTED = "guard.note('ray: all is lost.'); os._exit(1)"
STUCK = """with guard.bounding(0.2, "ray: stuck"):
        time.sleep(60)"""
STUCK_AFTER_A_FAULT = """here.Watch.LAST_S = here.Watch.PERIOD_S = 0.1
    here.Watch(guard, raylet_socket="/nowhere", head="127.0.0.1:1", host="here")
    time.sleep(60)"""
IN_TIME = """with guard.bounding(0.2, "ray: stuck"):
        pass
    time.sleep(0.4)"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("pass", 0, ""),
        (NOTED, 1, "ray: all is lost."),
        (LEFT, 1, "ended without a word"),
        (STUCK, 1, "ray: stuck"),
        (STUCK_AFTER_A_FAULT, 1, "ray: the raylet on here"),
        (IN_TIME, 0, ""),
    ],
)
def test_the_watchdog_reports_for_a_process_that_cannot_and_for_no_other(script, code, said):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(script)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert done.returncode == code
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)


def test_variables_are_set_for_a_while_and_those_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("RAY_ONE", "theirs")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "theirs")

    with environment({"RAY_ONE": "ours", "RAY_TWO": "ours"}):
        assert (os.environ["RAY_ONE"], os.environ["RAY_TWO"]) == ("ours", "ours")
    assert os.environ["RAY_ONE"] == "theirs"
    assert "RAY_TWO" not in os.environ
    assert quiet()["RAY_DEDUP_LOGS"] == "theirs"
    assert quiet()["RAY_USAGE_STATS_ENABLED"] == "0"
