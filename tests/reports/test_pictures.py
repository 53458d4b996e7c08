"""Pictures are drawn wherever the program runs."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import CHECKOUT

DRAW = "from perfmodel.reports.machine_picture import build_figure; build_figure(2, 2)"


def test_without_a_home_nothing_is_said_of_a_cache(tmp_path):
    surroundings = {"PYTHONPATH": str(CHECKOUT), "HOME": "/dev/null/none", "TMPDIR": str(tmp_path)}
    drawn = subprocess.run(
        [sys.executable, "-c", DRAW], env=surroundings, capture_output=True, text=True, check=True
    )

    assert drawn.stderr == ""
