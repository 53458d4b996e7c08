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

from tests.conftest import CHECKOUT

pytestmark = pytest.mark.ray

MARK = "PERFMODEL_TEST_MARK"

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
        executor.replay(*alternating_job(ranks=4, meetings=10), iterations=100_000)
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


def interrupt(number: int, *, after: str, pause_s: float, tmp_path, words=()) -> tuple[str, str]:
    """Send a signal when the script says *after*; what else it printed, once all are gone."""
    script, mark = tmp_path / "script.py", uuid.uuid4().hex
    script.write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, str(script), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, MARK: mark, "PYTHONPATH": str(CHECKOUT)},
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.strip() == after:
            break
    time.sleep(pause_s)
    assert len(processes_with(mark)) > 1, "nothing was started that could be left behind"
    running.send_signal(number)
    printed, complaints = running.communicate(timeout=60)
    assert running.returncode != 0
    _, alive = psutil.wait_procs(processes_with(mark), timeout=15)
    assert alive == []
    return printed, complaints


def test_ctrl_c_half_way_leaves_no_process_behind_and_ray_says_nothing(tmp_path):
    printed, complaints = interrupt(
        signal.SIGINT, after="half-way", pause_s=0, tmp_path=tmp_path, words=["lose-one"]
    )

    assert printed == ""
    # Only Python's own account of where it was.
    assert complaints.startswith("Traceback")
    assert complaints.strip().endswith("KeyboardInterrupt")
    assert "(raylet)" not in complaints


def test_a_request_to_terminate_half_way_leaves_no_process_behind(tmp_path):
    printed, complaints = interrupt(signal.SIGTERM, after="half-way", pause_s=0, tmp_path=tmp_path)

    assert (printed, complaints) == ("", "")


def test_ctrl_c_while_ray_is_starting_leaves_no_process_behind(tmp_path):
    interrupt(signal.SIGINT, after="starting", pause_s=2.5, tmp_path=tmp_path)
