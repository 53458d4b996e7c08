"""Page: a headline and sections of blocks, rendered by one template.

Every name goes through the template's escaping; data for the timeline is JSON
whose angle brackets are written as escapes, so nothing from outside is markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import perfmodel


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; columns in *numeric* stand to the right, those in *code* are names of things.

    Those in *finds* are names of tasks, and lead to them in the timeline of the page.
    """

    kind: ClassVar[str] = "grid"
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    code: Sequence[int] = ()
    note: str = ""
    finds: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, one under the other."""

    kind: ClassVar[str] = "lines"
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True)
class Legend:
    """What colours stand for."""

    kind: ClassVar[str] = "legend"
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a bar, as shares of the whole."""

    words: str
    colour: str
    value: str
    percent: str
    start: float
    share: float


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of parts, one under the other; the first one has its parts spelt out."""

    kind: ClassVar[str] = "bars"
    bars: Sequence[tuple[str, Sequence[Piece], str]]
    is_spelt_out: bool = True

    @property
    def label_width(self) -> int:
        """Letters of the longest name."""
        return max((len(name) for name, _, _ in self.bars), default=0)


@dataclass(frozen=True, slots=True)
class Range:
    """A value with its interval, as shares of the largest."""

    name: str
    words: str
    share: float
    low: float
    high: float
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Ranges:
    """Values with intervals side by side."""

    kind: ClassVar[str] = "ranges"
    ranges: Sequence[Range]
    note: str = ""

    @property
    def label_width(self) -> int:
        """Letters of the longest name."""
        return max((len(one.name) for one in self.ranges), default=0)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Numbers by row and column, shaded by *shares*."""

    kind: ClassVar[str] = "matrix"
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Canvas:
    """A timeline to zoom into; *data* is what the script draws."""

    kind: ClassVar[str] = "canvas"
    data: dict[str, Any]
    note: str = ""

    @property
    def json(self) -> Markup:
        """The data, safe inside a script element."""
        text = json.dumps(self.data, separators=(",", ":"), ensure_ascii=True)
        for sign in "<>&":
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return Markup(text)  # noqa: S704 - every sign that could end the element is escaped


@dataclass(frozen=True, slots=True)
class Command:
    """What to type to ask again."""

    kind: ClassVar[str] = "command"
    text: str


Block = Grid | Lines | Legend | Bars | Ranges | Matrix | Canvas | Command


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer first: a verdict (*is_good* or not), the number, and a few facts."""

    verdict: str
    is_good: bool
    answer: str
    beside: str
    facts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on one page."""

    title: str
    headline: Headline
    sections: Sequence[Section]
    footer: str = ""
    version: str = field(default=perfmodel.__version__)

    def render(self) -> str:
        """The page as text."""
        templates = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = [section for section in self.sections if section.blocks]
        has_canvas = any(block.kind == "canvas" for one in shown for block in one.blocks)
        return templates.get_template("page.html.j2").render(
            page=self, sections=shown, has_canvas=has_canvas
        )
