"""What watches over Ray, without Ray."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.on_ray import surroundings
from perfmodel.execution.on_ray.surroundings import environment, private_folder, quiet
from tests.conftest import CHECKOUT

PATIENCE_S = 60.0


SCRIPT = """
import os, sys, time
from contextlib import closing
from perfmodel.execution.on_ray.surroundings import Watchdog
with closing(Watchdog(None)) as guard:
    {}
"""
LEFT = "os._exit(1)"
NOTED = "guard.note('ray: all is lost.'); os._exit(1)"
STUCK = "guard.limit(0.2, 'ray: stuck'); time.sleep(60)"
IN_TIME = "guard.limit(20.0, 'ray: stuck')"


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("pass", 0, ""),
        (NOTED, 1, "ray: all is lost."),
        (LEFT, 1, "ended unexpectedly"),
        (STUCK, 1, "ray: stuck"),
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


def test_where_the_temporary_directory_has_a_long_name_a_shorter_private_one_is_taken(
    tmp_path, monkeypatch
):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with private_folder() as folder:
        assert len(str(folder.parent)) <= surroundings.MOST_PLACE_LENGTH
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()

    monkeypatch.setattr(surroundings, "SHORT_PLACES", ())
    with pytest.raises(ExecutionError, match=r"at most 9 characters.*Set TMPDIR"), private_folder():
        pass
