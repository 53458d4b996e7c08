"""A short fault drill; `make faults` is the long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.conftest import CHECKOUT
from tests.faults.__main__ import Case, draw_case, expected, run_once
from tests.faults.field import Field

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def field():
    two = Field(2, f"cluster {os.getpid()}")
    yield two
    two.close()


@pytest.mark.parametrize(
    "case",
    [
        Case("raylet", "replay", round=17, delay_s=0.0, seed=0),
        Case("raylet", "questions", round=None, delay_s=4.0, seed=1),
        Case("gcs", "replay", round=17, delay_s=0.0, seed=2),
        Case("stopped head raylet", "replay", round=17, delay_s=0.0, seed=3),
    ],
    ids=lambda case: f"{case.fault} {case.work}",
)
def test_what_is_lost_costs_time_or_ends_in_a_sentence(case, field):
    outcome = run_once(field, case, expected())
    while outcome.end == "not hit" and case.delay_s > 0.5:
        # The work was done before the blow fell: strike sooner.
        case = replace(case, delay_s=case.delay_s / 2)
        outcome = run_once(field, case, expected())

    assert outcome.is_good, outcome


def test_a_seed_and_a_number_name_a_case():
    assert draw_case(1, 5) == draw_case(1, 5)
    assert draw_case(1, 5) != draw_case(2, 5)


@pytest.mark.parametrize(("workers", "seed"), [(1, "0"), (3, "12345")])
def test_hash_seeds_and_numbers_of_workers_change_no_byte(workers, seed):
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.driver", "here", str(workers), "replay"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"},
    )

    assert json.loads(done.stdout.splitlines()[-1])["digest"] == expected()["replay"], done.stderr
