"""Progress: a bar on the terminal for what takes longer than two seconds.

It goes to standard error. Where that is no terminal, a line every ten seconds names the phase.
A phase that begins with `note:` is printed at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.reports.text import printable

DELAY_S = 2.0
LINE_EVERY_S = 10.0
NOTE = "note:"


@contextmanager
def show_progress(
    *, delay_s: float = DELAY_S, line_every_s: float = LINE_EVERY_S, is_quiet: bool = False
) -> Iterator[OnPhase]:
    """Yield a function to report phases to; the bar appears after *delay_s*."""
    if is_quiet:
        yield ignore_phase
    elif not sys.stderr.isatty():
        with _lines(line_every_s) as report_phase:
            yield report_phase
    else:
        with _bar(delay_s) as report_phase:
            yield report_phase


@contextmanager
def _bar(delay_s: float) -> Iterator[OnPhase]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeLeftColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("starting", total=1.0)
    timer = threading.Timer(delay_s, bar.start)
    timer.daemon = True
    timer.start()

    def report_phase(phase: str, done: float) -> None:
        if phase.startswith(NOTE):
            print(f"perfmodel: {phase}", file=sys.stderr)
        else:
            bar.update(task, description=phase, completed=done)

    try:
        yield report_phase
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _lines(every_s: float) -> Iterator[OnPhase]:
    """A line every *every_s* seconds, with the latest phase."""
    began_s, done_with_it = time.monotonic(), threading.Event()
    now: tuple[str, float, float] = ("starting", 0.0, began_s)

    def report_phase(phase: str, done: float) -> None:
        nonlocal now
        if phase.startswith(NOTE):
            print(f"perfmodel: {phase}", file=sys.stderr)
        else:
            now = (phase, done, time.monotonic())

    def say() -> None:
        while not done_with_it.wait(every_s):
            seconds = time.monotonic() - began_s
            phase, done, seen_s = now
            left = describe_left(seen_s - began_s, done, since_s=time.monotonic() - seen_s)
            words = f"{phase}, {done:.0%}, {seconds:.0f} s so far{left}"
            print(f"perfmodel: {words}", file=sys.stderr, flush=True)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield report_phase
    finally:
        done_with_it.set()
        speaker.join()


def describe_left(seconds: float, done: float, *, since_s: float = 0.0) -> str:
    """How long it may still take: *done* was reached after *seconds*, and that was *since_s* ago.

    Nothing while less than a tenth is done, or when it takes longer than it seemed to.
    """
    left_s = seconds * (1 - done) / done - since_s if 0.1 <= done < 1 else 0.0
    if left_s <= 0:
        return ""
    return f", about {left_s:.0f} s left" if left_s < 90 else f", about {left_s / 60:.0f} min left"


@contextmanager
def show_files(*, is_quiet: bool = False) -> Iterator[Callable[[Path, int, int], None]]:
    """Yield a function to report files to: the next file, its place, and how many there are.

    At that place all are read. Shows the file and how fast files are read.
    """
    since_s, read_bytes, last_bytes = time.monotonic(), 0, 0
    with show_progress(is_quiet=is_quiet) as progress:

        def report_file(path: Path, place: int, count: int) -> None:
            nonlocal read_bytes, last_bytes
            read_bytes += last_bytes
            last_bytes = path.stat().st_size
            rate = read_bytes / 1e6 / max(time.monotonic() - since_s, 1e-3)
            phase = f"reading {printable(path.name)} ({place + 1} of {count}, {rate:.1f} MB/s)"
            if place == count:
                phase = f"matching and replaying {count} ranks (read at {rate:.1f} MB/s)"
            progress(phase, place / count)

        yield report_file
