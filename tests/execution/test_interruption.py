"""Ctrl-C and a request to terminate leave no process behind, and nothing of Ray on the screen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from perfmodel.execution.on_ray import watchdog
from perfmodel.execution.on_ray.surroundings import FOLDER_PREFIX, clear_leftovers, private_folder
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.ray

MARK = "PERFMODEL_TEST_MARK"
PATIENCE_S = 120.0

SCRIPT = """
import os, signal, sys
from perfmodel.execution import open_executor
from tests.execution.jobs import alternating_job

def observe(status):
    if status.number == 1 and "lose-one" in sys.argv:
        # A worker is lost as well: that too stays off the screen.
        os.kill(status.places[0].pid, signal.SIGKILL)
    if status.number == 30:
        print("half-way", flush=True)

if __name__ == "__main__":
    print("starting", flush=True)
    with open_executor("ray", workers=2, on_round=observe) as executor:
        # Goes on for many minutes.
        executor.replay(*alternating_job(ranks=4, members=10), iterations=100_000)
"""


def processes_with(mark: str) -> list[psutil.Process]:
    """All processes that have inherited *mark*, wherever they hang in the tree."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for_process(name: str, mark: str) -> None:
    """Until a process of that *name* has been started, however slow the machine is."""
    until_s = time.monotonic() + PATIENCE_S
    while not any(process.name() == name for process in processes_with(mark)):
        assert time.monotonic() < until_s, f"{name} was not started"
        time.sleep(0.02)


def hear_ctrl_c() -> None:
    """Do with SIGINT as a process of a terminal does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(number: int, *, after: str, tmp_path, words=(), when="") -> tuple[str, str]:
    """Send a signal when the script says *after*; what else it printed, once all are gone.

    Or, after that, as soon as a process is there whose name is *when*.
    """
    script, mark = tmp_path / "script.py", uuid.uuid4().hex
    script.write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, str(script), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, MARK: mark, "PYTHONPATH": str(CHECKOUT)},
        # Where the tests themselves run in the background of a shell, Ctrl-C is ignored by default.
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509  one system call, no lock
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.strip() == after:
            break
    if when:
        wait_for_process(when, mark)
    running.send_signal(number)
    try:
        printed, complaints = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    assert running.returncode != 0
    _, alive = psutil.wait_procs(processes_with(mark), timeout=15)
    assert alive == []
    return printed, complaints


def test_ctrl_c_half_way_leaves_no_process_behind_and_ray_says_nothing(tmp_path):
    printed, complaints = interrupt(
        signal.SIGINT, after="half-way", tmp_path=tmp_path, words=["lose-one"]
    )

    assert printed == ""
    # Only Python's own account of where it was.
    assert complaints.startswith("Traceback")
    assert complaints.strip().endswith("KeyboardInterrupt")
    assert "(raylet)" not in complaints


def test_a_request_to_terminate_half_way_leaves_no_process_behind(tmp_path):
    printed, complaints = interrupt(signal.SIGTERM, after="half-way", tmp_path=tmp_path)

    assert (printed, complaints) == ("", "")


# Between these moments Ray has started processes that it would not yet know how to stop.
@pytest.mark.parametrize("process", ["gcs_server", "raylet"])
def test_ctrl_c_while_ray_is_starting_leaves_no_process_behind(tmp_path, process):
    printed, _ = interrupt(signal.SIGINT, after="starting", tmp_path=tmp_path, when=process)

    assert "half-way" not in printed


def test_what_a_killed_driver_has_left_is_cleared_by_the_watchdog(tmp_path):
    _, complaints = interrupt(signal.SIGKILL, after="half-way", tmp_path=tmp_path)

    assert "the driver of the replay ended unexpectedly" in complaints
    assert "--executor serial" in complaints


def test_what_a_killed_driver_and_its_watchdog_have_left_is_cleared_by_the_next_start(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("perfmodel.execution.on_ray.surroundings.MOST_PLACE_LENGTH", 200)
    monkeypatch.setattr("perfmodel.execution.on_ray.surroundings.SHORT_PLACES", ())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"{FOLDER_PREFIX}left"
    folder.mkdir(mode=0o700)
    (folder / "r" / "session").mkdir(parents=True)
    # Others may make such folders, too.
    foreign = tmp_path / f"{FOLDER_PREFIX}foreign"
    foreign.mkdir()
    foreign.chmod(0o777)
    # And the user may have one that only looks like it.
    notes = tmp_path / f"{FOLDER_PREFIX}notes"
    notes.mkdir(mode=0o700)
    (notes / "notes.txt").write_text("keep")
    mark = {watchdog.MARK: str(folder)}
    agent = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", str(folder)], env=mark
    )
    worker = subprocess.Popen(["sleep", "600"], env={**mark, "RAY_RAYLET_PID": "1"})
    # Started by another thread of the driver, for a purpose of its own.
    unrelated = subprocess.Popen(["sleep", "600"], env=mark)
    # A program that has only just been started has no environment to read yet.
    end_s = time.monotonic() + PATIENCE_S
    while {agent.pid, worker.pid} - set(watchdog.marked_processes(str(folder))):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    with private_folder() as mine:
        assert agent.wait(timeout=PATIENCE_S) == worker.wait(PATIENCE_S) == -signal.SIGKILL
        assert unrelated.poll() is None
        unrelated.kill()
        unrelated.wait()
        assert sorted(tmp_path.iterdir()) == sorted([foreign, notes, mine])
        # One that is in use stays.
        clear_leftovers()
        assert mine.is_dir()
    assert sorted(tmp_path.iterdir()) == [foreign, notes]
    assert (notes / "notes.txt").read_text() == "keep"
