"""Report: an answer as a headline and sections of blocks.

A block says what is shown, never how: `terminal` and `html` draw the same blocks, and CSV files and
tables in notebooks hold the *rows* of the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from perfmodel.base.cautions import NO_CAUTIONS, Cautions
from perfmodel.base.units import format_duration

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Interval
    from perfmodel.prediction.explain import ExplainedReplay

ALL = 10**9
"""No limit on the rows that a terminal shows."""


class Look(Enum):
    """How a part of a bar is drawn: colour of a page, pattern and colour of a terminal.

    Parts differ in pattern as well as in colour, for log files and for readers who do not see
    the colours.
    """

    GREEN = ("#3f9a54", "█", "green")
    BLUE = ("#3b74c4", "▓", "blue")
    VIOLET = ("#8d63b5", "▚", "magenta")
    YELLOW = ("#e0b43a", "▒", "yellow")
    RED = ("#c8553d", "░", "red")
    TEAL = ("#4aa3a2", "▞", "cyan")
    PINK = ("#b0668f", "▟", "bright_magenta")
    GREY = ("#7b8894", "▖", "white")
    DARK = ("#22713a", "▉", "bright_green")

    @property
    def colour(self) -> str:
        """The colour on a page."""
        return self.value[0]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; columns in *numeric* are right-aligned, those in *code* hold identifiers.

    Columns in *finds* hold task names and link to the timeline of the page. A terminal shows at
    most *most* rows, wraps the columns in *wraps*, and drops those in *optional*, last first,
    where it is too narrow. A page folds long tables, and shades the cells after the first of each
    row by *shades*, shares of the largest.
    """

    kind: ClassVar[str] = "table"
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    code: Sequence[int] = ()
    finds: Sequence[int] = ()
    wraps: Sequence[int] = ()
    optional: Sequence[int] = ()
    most: int = ALL
    note: str = ""
    shades: Sequence[Sequence[float]] = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences, one under the other."""

    kind: ClassVar[str] = "sentences"
    sentences: Sequence[str]

    def __len__(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of a bar; *share* is relative to the whole bar."""

    words: str
    look: Look
    value: str
    share: float

    @property
    def percent(self) -> str:
        """The share in words."""
        return f"{self.share:.1%}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of pieces, with its name before it and a value after it; *ends* are an interval."""

    pieces: Sequence[BarPart]
    name: str = ""
    value: str = ""
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars, one under the other, and a *legend*: of the pieces of the only bar, or of colours."""

    kind: ClassVar[str] = "bars"
    bars: Sequence[Bar]
    legend: Literal["values", "colours", "none"] = "values"
    most: int = ALL
    note: str = ""

    def __len__(self) -> int:
        return len(self.bars)

    @property
    def label_width(self) -> int:
        """Characters of the longest name."""
        return max((len(bar.name) for bar in self.bars), default=0)

    @property
    def looks(self) -> dict[Look, str]:
        """Every look with its words, in the order of first use."""
        return {piece.look: piece.words for bar in self.bars for piece in bar.pieces}


def time_bars(
    times: Sequence[tuple[str, int, Interval]], best_ns: int, changes: Sequence[str] = ()
) -> Bars:
    """Times with their intervals; those equal to *best_ns* are marked, *changes* follow values."""
    most_ns = max([interval.high_ns for _, _, interval in times] + [ns for _, ns, _ in times] + [1])
    bars = []
    said = changes or [""] * len(times)
    for (name, ns, interval), change in zip(times, said, strict=True):
        piece = BarPart("", Look.GREEN if ns == best_ns else Look.BLUE, "", ns / most_ns)
        ends = (interval.low_ns / most_ns, interval.high_ns / most_ns)
        has_width = interval.high_ns > interval.low_ns
        value = f"{format_duration(ns)}{change}"
        bars.append(Bar([piece], name, value, ends if has_width else None))
    note = "The thin line is the 90 % interval." if any(bar.ends for bar in bars) else ""
    return Bars(bars, "none", note=note)


@dataclass(frozen=True, slots=True)
class TimelineBlock:
    """A timeline to zoom into, which only a page can draw; *name* tells it from others.

    All timelines of a page have one scale, and show the same part of the iteration.
    """

    kind: ClassVar[str] = "timeline"
    evidence: ExplainedReplay
    name: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a plot with *words* to read when pointed at; *ends* are an interval of y."""

    x: float
    y: float
    words: str
    ends: tuple[float, float] | None = None
    look: Look = Look.BLUE


@dataclass(frozen=True, slots=True)
class Tick:
    """A value of an axis: how far along it, and its words."""

    share: float
    words: str


MOST_OWN_TICKS = 8
"""Up to so many values of x are written themselves."""
LEAST_TICK_GAP = 0.11
"""The words of two values closer than this share of an axis would overlap."""


def _short(value: float) -> str:
    """*value* in six digits at most: 32,768 or 1.5 M."""
    for letter, unit in (("G", 1e9), ("M", 1e6)):
        if value >= unit:
            return f"{value / unit:,.4g} {letter}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Plot:
    """Points over two axes, which only a page draws; one point alone is not shown.

    Axes that *are_log* are both. Points may be *are_joined* by a line in their order. With
    *shows_equal*, both axes have one range, and a line is where both values are equal.
    """

    kind: ClassVar[str] = "plot"
    points: Sequence[Point]
    x_words: str
    y_words: str
    note: str = ""
    are_log: bool = False
    are_joined: bool = False
    shows_equal: bool = False

    def __len__(self) -> int:
        return len(self.points) if len(self.points) > 1 else 0

    def share_of(self, value: float, axis: Literal["x", "y"]) -> float:
        """How far along its axis a *value* is."""
        low, high = self._range(axis)
        if self.are_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return (value - low) / (high - low)

    def ticks(self, axis: Literal["x", "y"]) -> list[Tick]:
        """About four to eight round values of an axis."""
        low, high = self._range(axis)
        own = sorted({one.x for one in self.points})
        if axis == "x" and self.are_joined and len(own) <= MOST_OWN_TICKS:
            return self._own_ticks(own)
        decade = 10.0 ** math.floor(math.log10(high if self.are_log else (high - low) / 4))
        if self.are_log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            steps = (1,) if last - first > 3 else (1, 2, 5)
            values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            width = next(one * decade for one in (1, 2, 5, 10) if (high - low) / one / decade <= 5)
            values = [number * width for number in range(math.ceil(high / width) + 1)]
        return [
            Tick(self.share_of(value, axis), _short(value))
            for value in values
            if low <= value <= high
        ]

    def _own_ticks(self, values: Sequence[float]) -> list[Tick]:
        """The *values* of x, from the right, without those whose words would overlap."""
        ticks: list[Tick] = []
        for value in reversed(values):
            share = self.share_of(value, "x")
            if not ticks or ticks[-1].share - share >= LEAST_TICK_GAP:
                ticks.append(Tick(share, _short(value)))
        return ticks[::-1]

    def _range(self, axis: Literal["x", "y"]) -> tuple[float, float]:
        of_axis = {
            "x": [one.x for one in self.points],
            "y": [value for one in self.points for value in (one.y, *(one.ends or ()))],
        }
        values = [*of_axis["x"], *of_axis["y"]] if self.shows_equal else of_axis[axis]
        if self.are_log:
            return min(values) / 1.15, max(values) * 1.15
        return 0.0, max(values) * 1.06 or 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command to type, with a *label* before it where there are several."""

    kind: ClassVar[str] = "command"
    text: str
    label: str = ""


Block = Table | Sentences | Bars | TimelineBlock | Plot | Command


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; a section whose blocks are all empty is not shown.

    *more* makes the blocks that only a page shows; it is called when a page is drawn.
    """

    title: str
    blocks: Sequence[Block] = ()
    more: Callable[[], Sequence[Block]] = tuple

    def shown(self, *, on_page: bool) -> list[Block]:
        """The blocks that are not empty."""
        return [one for one in (*self.blocks, *(self.more() if on_page else ())) if one]

    def for_page(self, title: str) -> Section:
        """The same under another *title*, on a page only."""
        return Section(title, more=lambda: [*self.blocks, *self.more()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The answer first: a verdict (*is_good* or not), the number, and a few facts."""

    verdict: str = ""
    is_good: bool = True
    answer: str
    caption: str
    facts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """An answer as blocks, and its numbers as *rows*; piped text is *columns* wide.

    *cautions* are in the headline, and a section of their own.
    """

    title: str = ""
    headline: Headline | None = None
    sections: Sequence[Section] = ()
    footer: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    columns: int = 80
    cautions: Cautions = NO_CAUTIONS

    def warned(self, cautions: Cautions) -> Report:
        """The same with *cautions*."""
        if not cautions:
            return self
        head = self.headline or Headline(answer="", caption="")
        counted = replace(head, facts=(*cautions.count(), *head.facts))
        lines = cautions.lines()
        section = (Section("Warnings", [Sentences(lines)]),) if lines else ()
        return replace(
            self, headline=counted, sections=(*section, *self.sections), cautions=cautions
        )


def plain_report(title: str, *blocks: Block, columns: int = 80) -> Report:
    """A report of one section without a heading."""
    return Report(title, sections=[Section("", blocks)], columns=columns)
