"""The README is one screen, and its first command is what it says; `tests/manual` follows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_readme_is_one_screen():
    lines = (CHECKOUT / "README.md").read_text().splitlines()

    assert len(lines) <= 90
    assert [line for line in lines if len(line) > 100] == []


def test_make_predict_asks_for_the_default_workload_on_a_dgx_h100():
    shown = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "predict"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.splitlines()[-1].endswith("perfmodel predict --topology dgx_h100.yaml")
