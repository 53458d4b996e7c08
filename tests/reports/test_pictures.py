"""Pictures are drawn wherever the program runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfmodel.reports.pictures import build_figure, draw_stacks
from tests.conftest import CHECKOUT

DRAW = "from perfmodel.reports.pictures import build_figure; build_figure(2, 2)"


def test_without_a_home_nothing_is_said_of_a_cache(tmp_path):
    surroundings = {"PYTHONPATH": str(CHECKOUT), "HOME": "/dev/null/none", "TMPDIR": str(tmp_path)}
    drawn = subprocess.run(
        [sys.executable, "-c", DRAW], env=surroundings, capture_output=True, text=True, check=True
    )

    assert drawn.stderr == ""


@pytest.mark.parametrize("count", [1, 2])
def test_bars_of_several_parts_have_a_legend(count):
    axes = build_figure(4, 2).subplots()
    stacks = {f"part {number}": (None, [1.0, 2.0]) for number in range(count)}
    draw_stacks(axes, ["a", "b"], stacks, label="ms")
    assert (axes.get_legend() is not None) == (count == 2)
