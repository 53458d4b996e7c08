"""Showing: the parts of the page that an answer changes, as HTML made from `parts.html.j2`.

Every setting that was tried is a link to its state, so all of it works by keyboard and undo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from perfmodel.prediction.answer import MemoryFit
from perfmodel.prediction.yardsticks import Yardsticks
from perfmodel.reports.blocks import Plot, Point
from perfmodel.reports.html import load_template

State = Mapping[str, str]
SAME = 0.0005
"""Gains below this are none."""


def address(state: State) -> str:
    """What stands after `#` for *state*."""
    return urlencode(sorted((key, value) for key, value in state.items() if value))


class Figures(NamedTuple):
    """What is kept of every point answer; *price* is per GPU and hour."""

    time_ns: int
    yardsticks: Yardsticks | None
    memory_percent: float | None
    price: float | None

    @property
    def fits(self) -> bool:
        """Whether it fits in memory, as far as is known."""
        return self.memory_percent is None or self.memory_percent <= 100

    @property
    def rate(self) -> float:
        """What is done in a second: tokens or samples, or iterations."""
        return 1e9 / self.time_ns if self.yardsticks is None else self.yardsticks.per_s

    @property
    def unit(self) -> str:
        """What the rate counts."""
        return "iterations" if self.yardsticks is None else self.yardsticks.unit

    @property
    def cost(self) -> float | None:
        """Money for a million of them."""
        if self.price is None or self.yardsticks is None:
            return None
        return self.yardsticks.cost_per_million(self.price)

    def at(self, price: float | None) -> Figures:
        """The same at another *price*."""
        return self if price is None else self._replace(price=price)

    def gain_over(self, other: Figures) -> float:
        """How many times as fast it is, by what both train: batches may differ."""
        return self.rate / other.rate


def percent_of(memory: MemoryFit | None) -> float | None:
    """The part of a GPU's memory that the fullest one needs, in per cent."""
    return None if memory is None else 100 * memory.peak_bytes / memory.capacity_bytes


class Near(NamedTuple):
    """A change of a state: the *group* it is shown in, its name there, and the settings."""

    group: str
    label: str
    changes: Mapping[str, str]


UNKNOWN = Figures(0, None, None, None)


@dataclass(frozen=True, slots=True)
class Tried:
    """A change of a state with its figures, or with the *fault* why they are unknown.

    *gain* is how many times as fast it is as what it is compared with.
    """

    near: Near
    state: State
    figures: Figures = UNKNOWN
    gain: float = 1.0
    fault: str = ""

    @property
    def address(self) -> str:
        """The state as a link."""
        return address(self.state)


@cache
def _macros() -> Any:
    return load_template(Path(__file__).parent).environment.get_template("parts.html.j2").module


def render(macro: str, *values: Any) -> str:
    """The part called *macro* with its *values*."""
    return str(getattr(_macros(), macro)(*values))


def draw(
    tried: Sequence[Tried], x_words: str, x_of: Callable[[Tried], float | None], here: str
) -> str:
    """Rates over what *x_of* says; the line of what is no curve joins the best."""
    known = [(one, x) for one in tried if not one.fault and (x := x_of(one)) is not None]
    if len(known) < 2:
        return ""
    points = [Point(x, one.figures.rate, "") for one, x in known]
    is_curve = x_words in ("hosts", "batch")
    unit = known[0][0].figures.unit
    plot = Plot(points, x_words, f"{unit}/s", are_log=x_words == "hosts", are_joined=is_curve)
    fitting = [
        point for point, (one, _) in zip(points, known, strict=True) if one.figures.fits
    ]  # fmt: skip
    line = sorted(fitting, key=lambda one: (one.x, -one.y))
    return render("chart", plot, [one for one, _ in known], line if is_curve else front(line), here)


def front(points: Sequence[Point]) -> list[Point]:
    """Those of *points*, from the left, that no other one beats in both ways."""
    best: list[Point] = []
    for one in points:
        if not best or one.y > best[-1].y:
            best.append(one)
    return best


def differences(state: State, before: State) -> str:
    """What changed from one state to the next."""
    keys = sorted(key for key in {*state, *before} if state.get(key) != before.get(key))
    return ", ".join(
        f"{key.rpartition('.')[2].replace('_', ' ')} {before.get(key) or 'open'} to "
        f"{state.get(key) or 'open'}"
        for key in keys
    )
