"""Terminal: a report as text, most important first, and progress for what takes over two seconds.

Long tables and lists of bars are cut, with where to see the rest. Names come from files, so they
are printed as plain text, never as markup. Piped lines have no trailing blanks.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import table as rich
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from perfmodel.base.writing import printable
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.reports.blocks import (
    Bar,
    Bars,
    Block,
    Command,
    Headline,
    Look,
    Report,
    Sentences,
    Table,
    TimelineBlock,
)

INDENT = 2
WIDEST_BAR = 100
LABEL_WIDTH = 40
"""Characters of a task name before it is cut."""
MOST_PIECES = 8
EMPTY = "·"
DELAY_S = 2.0
LINE_EVERY_S = 10.0
NOTE = "note:"


def print_report(*reports: Report) -> None:
    """Print *reports* on standard output: as wide as the terminal, or as each of them asks."""
    for report in reports:
        if not sys.stdout.isatty():
            print(to_text(report), end="")
            continue
        _draw(report, Console(highlight=False))


def to_text(report: Report, width: int | None = None) -> str:
    """*report* as plain text of *width* columns."""
    target = io.StringIO()
    _draw(report, Console(width=width or report.columns, highlight=False, file=target))
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().splitlines())


def _draw(report: Report, console: Console) -> None:
    if report.title:
        console.print(_line(report.title, "bold"))
    if report.headline is not None:
        console.print()
        console.print(*map(_indent, _headline(report.headline)), sep="\n")
    shown = [(section, section.shown(on_page=False)) for section in report.sections]
    for number, (section, blocks) in enumerate(one for one in shown if one[1]):
        if number or report.headline or (report.title and section.title):
            console.print()
        if section.title:
            console.print(_line(section.title, "bold"))
        for block in blocks:
            for row in _rows(block, console.width - INDENT):
                # Commands are not wrapped: a terminal copies them whole.
                is_command = isinstance(block, Command)
                console.print(row if is_command else _indent(row), soft_wrap=is_command)
    if report.footer:
        console.print("", _line(report.footer, "dim"), sep="\n")


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _indent(row: RenderableType) -> Padding:
    return Padding(row, (0, 0, 0, INDENT))


def _headline(headline: Headline) -> Iterator[RenderableType]:
    if headline.verdict:
        yield _line(headline.verdict, "green" if headline.is_good else "bold red")
    caption = f" {printable(headline.caption)}"
    yield _line(headline.answer, "bold green").append(caption, "default")
    yield from map(_line, headline.facts)


def _rows(block: Block, width: int) -> Iterator[RenderableType]:
    match block:
        case Table():
            yield from _table(block, width)
        case Sentences([sentence]):
            yield _line(sentence)
        case Sentences():
            listed = rich.Table.grid(padding=(0, 1))
            for sentence in block.sentences:
                listed.add_row("-", _line(sentence))
            yield listed
        case Bars():
            yield from _bars(block, width)
        case Command():
            label = f"{block.label}: " if block.label else ""
            yield Text(f"{' ' * INDENT}{label}").append(printable(block.text), "cyan")
        case TimelineBlock():
            return


def _table(block: Table, width: int) -> Iterator[RenderableType]:
    columns = range(len(block.headings or (block.rows[0] if block.rows else ())))
    shown = _fitting(block, columns, width)
    table = rich.Table(
        box=None, pad_edge=False, show_header=any(block.headings), header_style="dim"
    )
    for column, most in shown.items():
        wraps = column in block.wraps
        table.add_column(
            Text(printable(block.headings[column])) if block.headings else "",
            justify="right" if column in block.numeric else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            max_width=None if wraps else most,
        )
    for row in block.rows[: block.most]:
        table.add_row(*(_line(row[column]) for column in shown))
    yield table
    dropped = ", ".join(block.headings[column] for column in columns if column not in shown)
    if dropped:
        yield _line(f"too narrow for: {dropped}; all in --json", "dim")
    yield from _left_out(len(block.rows) - block.most)
    if block.note:
        yield _line(block.note, "dim")


def _fitting(block: Table, columns: Sequence[int], width: int) -> dict[int, int]:
    """The widths of the columns that fit into *width*: optional ones are dropped, last first.

    Then the longest text is cut, so that numbers stay whole.
    """
    lines = [row for row in (block.headings, *block.rows[: block.most]) if row]
    of_column = {column: max((len(row[column]) for row in lines), default=0) for column in columns}
    for column in block.finds:
        of_column[column] = min(of_column[column], LABEL_WIDTH)
    excess = sum(of_column.values()) + 2 * (len(of_column) - 1) - width
    for dropped in reversed(block.optional):
        if excess > 0:
            excess -= of_column.pop(dropped) + 2
    texts = of_column.keys() - {*block.numeric, *block.wraps}
    if excess > 0 and texts and not of_column.keys() & {*block.wraps}:
        longest = max(texts, key=lambda column: of_column[column])
        of_column[longest] = max(of_column[longest] - excess, 1)
    return of_column


def _left_out(count: int) -> Iterator[RenderableType]:
    if count > 0:
        yield _line(f"and {count} more; all in --json", "dim")


def _bars(block: Bars, width: int) -> Iterator[RenderableType]:
    # Names, values and two gaps take the rest of the line; a bar of its own leaves a margin.
    values = max((len(bar.value) for bar in block.bars), default=0)
    label = min(block.label_width, LABEL_WIDTH)
    room = min(width - INDENT - label - values - 4, WIDEST_BAR)
    table = rich.Table.grid(padding=(0, 2))
    if label:
        table.add_column(max_width=label, no_wrap=True, overflow="ellipsis")
    for bar in block.bars[: block.most]:
        name = [_line(bar.name)] if label else []
        table.add_row(*name, draw_bar(bar, max(room, 10)), _line(bar.value))
    yield table
    yield from _left_out(len(block.bars) - block.most)
    if block.legend == "values":
        yield from _legend(block.bars[0])
    elif block.legend == "colours":
        yield Text("   ").join(_key(look, words) for look, words in block.looks.items())


def _key(look: Look, words: str) -> Text:
    _, glyph, style = look.value
    return Text(f"{glyph} ", style=style).append(printable(words), "default")


def draw_bar(bar: Bar, width: int) -> Text:
    """The pieces of *bar* side by side on *width* characters; what is left is dotted."""
    drawn, done = Text(), 0.0
    for piece in bar.pieces:
        _, glyph, style = piece.look.value
        done += piece.share
        drawn.append(glyph * (round(done * width) - len(drawn)), style=style)
    return drawn.append(EMPTY * (width - len(drawn)), style="dim")


def _legend(bar: Bar) -> Iterator[RenderableType]:
    """The pieces with their values, one per line; on one line where they have shares only."""
    entries = [_key(piece.look, piece.words) for piece in bar.pieces[:MOST_PIECES]]
    if not any(piece.value for piece in bar.pieces):
        pairs = zip(entries, bar.pieces, strict=False)
        yield Text("   ").join(entry.append(f" {piece.percent}") for entry, piece in pairs)
        return
    table = rich.Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify)
    for entry, piece in zip(entries, bar.pieces, strict=False):
        table.add_row(entry, piece.value, piece.percent)
    yield table
    yield from _left_out(len(bar.pieces) - MOST_PIECES)


@contextmanager
def show_progress(
    *, delay_s: float = DELAY_S, line_every_s: float = LINE_EVERY_S, is_quiet: bool = False
) -> Iterator[OnPhase]:
    """Yield a function to report phases to; the bar appears after *delay_s*.

    It goes to standard error. If that is not a terminal, a line every *line_every_s* names the
    phase. A phase that begins with `note:` is printed at once.
    """
    if is_quiet:
        yield ignore_phase
        return
    with _bar(delay_s) if sys.stderr.isatty() else _lines(line_every_s) as update:

        def report_phase(phase: str, done: float) -> None:
            if phase.startswith(NOTE):
                print(f"perfmodel: {phase}", file=sys.stderr)
            else:
                update(phase, done)

        yield report_phase


@contextmanager
def _bar(delay_s: float) -> Iterator[OnPhase]:
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

    try:
        yield lambda phase, done: bar.update(task, description=phase, completed=done)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _lines(every_s: float) -> Iterator[OnPhase]:
    """A line every *every_s* seconds, with the latest phase."""
    began_s, done_with_it = time.monotonic(), threading.Event()
    now: tuple[str, float, float] = ("starting", 0.0, began_s)

    def update(phase: str, done: float) -> None:
        nonlocal now
        now = (phase, done, time.monotonic())

    def say() -> None:
        while not done_with_it.wait(every_s):
            phase, done, seen_s = now
            left = describe_left(seen_s - began_s, done, since_s=time.monotonic() - seen_s)
            so_far = f"{done:.0%}, {time.monotonic() - began_s:.0f} s so far{left}"
            print(f"perfmodel: {phase}, {so_far}", file=sys.stderr, flush=True)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    try:
        yield update
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
