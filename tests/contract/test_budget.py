"""The size of the project: the caps that its owner holds in `../shared/budget.json`.

Tokens over a cap are shown as an expected failure: something must be taken out, but not in haste.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]


@pytest.mark.parametrize("tool", ["measure", "spread"])
def test_the_project_keeps_its_caps(tool):
    shared = HOUSE.parent / "shared"
    budget = shared / "budget.json"
    if not budget.exists() or not (HOUSE / ".git").exists():
        pytest.skip("the caps are counted in a repository next to ../shared/budget.json")

    command = [sys.executable, str(shared / "tools" / f"{tool}.py"), "--budget", str(budget)]
    done = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, check=False)

    if tool == "measure" and "OVER" in done.stdout:
        pytest.xfail(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
