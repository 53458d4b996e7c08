"""Progress: a bar on the terminal for what takes longer than two seconds.

It goes to standard error, and nowhere at all when that is not a terminal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY_S = 2.0

OnPhase = Callable[[str, float], None]
"""Told the name of the phase that begins and the share (0..1) that is done."""


@contextmanager
def show_progress(*, delay_s: float = DELAY_S) -> Iterator[OnPhase]:
    """Yield what is to be told of phases; the bar appears after *delay_s*."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("starting", total=1.0)
    timer = threading.Timer(delay_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda phase, done: bar.update(task, description=phase, completed=done)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _ignore(phase: str, done: float) -> None:
    """Nobody is watching."""
