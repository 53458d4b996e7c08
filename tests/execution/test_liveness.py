"""What is noticed of a cluster that is lost, without Ray."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.on_ray import liveness
from perfmodel.execution.on_ray.liveness import Reply, Watch, ask, head_fault, raylet_fault
from tests.conftest import CHECKOUT

PATIENCE_S = 60.0


def listener(family, place):
    line = socket.socket(family, socket.SOCK_STREAM)
    line.bind(place)
    line.listen(128)
    return line


def wait_until(is_true) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until_s, "nothing was noticed"
        time.sleep(0.02)


def fault_of(watch: Watch) -> str:
    try:
        watch.check()
    except ExecutionError as error:
        return str(error)
    return ""


@pytest.fixture
def lines(tmp_path):
    """A raylet by its socket, a head and another machine by their ports."""
    raylet = listener(socket.AF_UNIX, str(tmp_path / "raylet"))
    others = [listener(socket.AF_INET, ("127.0.0.1", 0)) for _ in range(2)]
    yield raylet, *others
    for line in (raylet, *others):
        line.close()


def place_of(line) -> str:
    return f"127.0.0.1:{line.getsockname()[1]}"


@pytest.fixture
def watch(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(Watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(liveness, "ANSWER_TIMEOUT_S", 0.02)
    # Nothing replies behind these lines, which is another test's.
    monkeypatch.setattr(Watch, "MOST_MUTES", sys.maxsize)
    with closing(Watch()) as watching:
        watching.need(str(tmp_path / "raylet"), raylet_fault("10.0.0.7"))
        watching.need(place_of(lines[1]), head_fault(place_of(lines[1])))
        watching.follow([place_of(lines[2])])
        yield watching


def test_a_cluster_that_is_there_gives_no_cause_for_complaint(watch, lines):
    time.sleep(6 * Watch.PERIOD_S)

    watch.check()
    assert not watch.is_lost(place_of(lines[2]))


def test_a_raylet_that_is_gone_is_noticed_with_its_machine(watch, lines):
    lines[0].close()

    wait_until(lambda: fault_of(watch))
    assert "the raylet on 10.0.0.7, which this process works through, is gone" in fault_of(watch)


def test_a_head_that_is_gone_is_noticed_and_says_how_to_go_on(watch, lines):
    lines[1].close()

    wait_until(lambda: fault_of(watch))
    assert "the head of the cluster at 127.0.0.1" in fault_of(watch)
    assert "--executor serial" in fault_of(watch)


def test_another_machine_that_is_gone_is_lost_and_the_work_goes_on(watch, lines):
    place = place_of(lines[2])
    lines[2].close()

    wait_until(lambda: watch.is_lost(place))
    watch.check()


def test_a_head_that_takes_connections_without_a_reply_is_lost(watch, monkeypatch):
    # As a stopped process does: the system takes connections for it.
    monkeypatch.setattr(Watch, "MOST_MUTES", 12)

    wait_until(lambda: fault_of(watch))
    assert "is gone" in fault_of(watch)


@pytest.mark.parametrize(
    ("error", "is_there"),
    [
        (ConnectionRefusedError(), False),
        (TimeoutError(), False),
        (OSError(errno.EHOSTUNREACH, "no route"), False),
        # This process has no file left to open, which says nothing of others.
        (OSError(errno.EMFILE, "too many open files"), True),
    ],
)
def test_a_machine_that_cannot_be_reached_is_gone_and_a_fault_of_ours_is_none_of_its(
    error, is_there, monkeypatch
):
    def refuse(place, timeout_s):
        raise error

    monkeypatch.setattr(liveness.socket, "create_connection", refuse)

    assert ask("10.0.0.7:6379") is (Reply.ANSWERS if is_there else Reply.ABSENT)


STUCK = """
import time
from contextlib import closing
from perfmodel.execution.on_ray import liveness, surroundings
from perfmodel.execution.on_ray.surroundings import Watchdog
surroundings.LAST_S = liveness.Watch.PERIOD_S = 0.1
with closing(Watchdog(None)) as guard:
    watch = liveness.Watch(guard.end_soon)
    watch.need("/nowhere", liveness.raylet_fault("here"))
    # As a call into Ray that never returns.
    time.sleep(60)
"""


@pytest.mark.ray
def test_a_process_that_is_stuck_in_ray_ends_with_the_sentence():
    done = subprocess.run(
        [sys.executable, "-c", STUCK],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert done.returncode == 1
    assert done.stderr == raylet_fault("here") + "\n"
