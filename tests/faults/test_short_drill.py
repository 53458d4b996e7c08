"""A short fault drill; `make faults` is the long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from perfmodel.engine.replay import replay
from tests.conftest import CHECKOUT
from tests.execution.jobs import alternating_job
from tests.faults.__main__ import run_once
from tests.faults.driver import ITERATIONS, MEETINGS, digest

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def wanted():
    return digest(replay(*alternating_job(ranks=6, members=MEETINGS), iterations=ITERATIONS))


@pytest.mark.parametrize("fault", ["raylet", "gcs"])
def test_what_is_lost_costs_time_or_ends_in_a_sentence(fault, wanted):
    outcome = run_once(fault, nodes=2, number=17, pause_s=0.0, wanted=wanted)

    assert outcome.is_good, outcome


@pytest.mark.parametrize(("workers", "seed"), [(1, "0"), (3, "12345")])
def test_hash_seeds_and_numbers_of_workers_change_no_byte(workers, seed, wanted):
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.driver", "here", str(workers), "none", "0", "0"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"},
    )

    assert json.loads(done.stdout.splitlines()[-1])["digest"] == wanted, done.stderr
