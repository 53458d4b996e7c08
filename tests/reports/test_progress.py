"""Progress shows on terminals only, and only after a while."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from perfmodel.reports.terminal import describe_left, show_progress

PROGRAM = """
import time
from perfmodel.reports.terminal import show_progress
with show_progress(delay_s={delay_s}) as progress:
    progress("replaying", 0.5)
    time.sleep(0.6)
"""


def show_on_terminal(delay_s: float) -> str:
    """What a terminal on standard error is sent."""
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(delay_s=delay_s)], stderr=theirs, check=True
        )
        os.set_blocking(ours, False)
        try:
            return os.read(ours, 65_536).decode()
        except BlockingIOError:
            return ""
    finally:
        os.close(theirs)
        os.close(ours)


def test_nothing_is_shown_when_nobody_watches(capsys):
    with show_progress(delay_s=0.0) as progress:
        progress("replaying", 0.5)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("delay_s", "is_shown"), [(0.0, True), (30.0, False)])
def test_a_terminal_sees_the_bar_after_the_delay(delay_s, is_shown):
    assert ("replaying" in show_on_terminal(delay_s)) is is_shown


def test_without_a_terminal_a_line_says_how_far_it_is_and_how_long_it_takes(capsys):
    with show_progress(line_every_s=0.2) as progress:
        time.sleep(0.15)
        progress("fitting", 0.25)
        time.sleep(0.1)

    assert "perfmodel: fitting, 25%, 0 s so far, about 0 s left" in capsys.readouterr().err


def test_quiet_says_nothing(capsys):
    with show_progress(line_every_s=0.01, is_quiet=True) as progress:
        progress("fitting", 0.5)
        time.sleep(0.05)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "done", "words"),
    # 30 s for a quarter leave 90 s for the rest; too little is done to say after a hundredth.
    [(30, 0.25, ", about 2 min left"), (30, 0.5, ", about 30 s left"), (30, 0.01, "")],
)
def test_time_left_is_in_proportion_to_what_is_done(seconds, done, words):
    assert describe_left(seconds, done) == words


def test_time_left_runs_down_while_nothing_is_told():
    assert describe_left(30, 0.5, since_s=20) == ", about 10 s left"
    assert describe_left(30, 0.5, since_s=40) == ""
