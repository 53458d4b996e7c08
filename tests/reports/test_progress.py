"""Progress shows on terminals only."""

from __future__ import annotations

from perfmodel.reports.progress import show_progress


def test_nothing_is_shown_when_nobody_watches(capsys):
    with show_progress(delay_s=0.0) as progress:
        progress("replaying", 0.5)

    assert capsys.readouterr().err == ""
