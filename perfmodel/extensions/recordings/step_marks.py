"""Marks of steps: moments of the host between which a recording launches its training steps.

The profiler marks steps (`ProfilerStep#7`). Without its marks, or where a window is cut around a
single one, the calls of the optimizer divide the recording.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from perfmodel.extensions.recordings.rank_view import RankView
from perfmodel.extensions.recordings.recorded_job import cycle_period_ns
from perfmodel.graph.program import Int64s
from traces.trace import Category

_MARK = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER = "Optimizer.step#"
_MOST_LOST = 0.05
"""The share of a step's launches without device work that others have not; more, and it is cut."""
MOST_MARKS_APART = 1 / 3
"""How far marks may be from the steps of the device: the host runs ahead, so they say less."""


class StepRule(Enum):
    """What the steps of a recording were found by."""

    MARKS = "profiler marks"
    OPTIMIZER = "optimizer calls"
    REPEATED = "repeated sequence"
    WHOLE = "the whole window is one step"


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Moments of the host, on its own clock, between which steps launch; *number* names each."""

    rule: StepRule
    number: tuple[int, ...]
    bounds_ns: Int64s

    def spacing_ns(self, cycle: int) -> int:
        """From one mark to the next, if *cycle* steps repeat together."""
        # The first optimizer call ends a step whose beginning is unknown.
        bounds_ns = self.bounds_ns if self.rule is StepRule.MARKS else self.bounds_ns[1:]
        return cycle_period_ns(np.diff(bounds_ns), cycle)


def find_marks(views: Sequence[RankView]) -> tuple[list[Marks] | None, tuple[str, ...]]:
    """The marks of the profiler on all ranks, or else the ends of their optimizers' calls.

    In a window that is cut in the steps around a single mark, the optimizer shows more steps.
    """
    marks, faults = _common([_profiler_marks(view) for view in views])
    if marks is None or len(marks[0].number) == 1:
        ends, odd = _common([_optimizer_marks(view) for view in views])
        if marks is None or (ends and may_be_steps(marks[0], np.diff(ends[0].bounds_ns[1:]))):
            return ends, (*faults, *odd)
    return marks, faults


def may_be_steps(mark: Marks, periods_ns: Int64s) -> bool:
    """Whether *periods_ns* are not much shorter than the one step of *mark*."""
    least_ns = (1 - MOST_MARKS_APART) * np.diff(mark.bounds_ns)[0]
    return len(periods_ns) > 0 and float(np.median(periods_ns)) >= least_ns


def _rows_named(view: RankView, is_wanted: Callable[[str], object]) -> list[int]:
    """The rows of annotations with a wanted name; old profilers write marks as operators."""
    columns = view.trace.columns
    host = columns.rows_in(Category.HOST_ANNOTATION, Category.HOST_OPERATOR)
    chosen = np.array([bool(is_wanted(name)) for name in view.trace.names], dtype=bool)
    rows: list[int] = host[chosen[columns.name[host]]].tolist()
    return rows


def _profiler_marks(view: RankView) -> Marks | None:
    columns, marked = view.trace.columns, dict[int, int]()
    for row in _rows_named(view, _MARK.match):
        match = _MARK.match(view.trace.name_of(row))
        assert match is not None
        marked.setdefault(int(match[1]), row)
    if not marked:
        return None
    numbers = sorted(marked, key=lambda number: int(columns.start_ns[marked[number]]))
    starts = [int(columns.start_ns[marked[number]]) for number in numbers]
    last = marked[numbers[-1]]
    end = int(columns.start_ns[last] + columns.duration_ns[last])
    bounds = np.array([*starts, end], dtype=np.int64)
    return _executed(view, Marks(StepRule.MARKS, tuple(numbers), bounds))


def _optimizer_marks(view: RankView) -> Marks | None:
    columns = view.trace.columns
    rows = _rows_named(view, lambda name: name.startswith(_OPTIMIZER))
    calls = Counter(view.trace.name_of(row) for row in rows)
    if not calls:
        return None
    [(optimizer, count)] = calls.most_common(1)
    ends = [
        int(columns.start_ns[row] + columns.duration_ns[row])
        for row in rows
        if view.trace.name_of(row) == optimizer
    ]
    first = int(columns.start_ns[0]) - 1
    bounds = np.array([first, *ends], dtype=np.int64)
    return _executed(view, Marks(StepRule.OPTIMIZER, tuple(range(-count, 0)), bounds))


def _executed(view: RankView, marks: Marks) -> Marks:
    """*marks* without the last ones, if the window ends before the device has done their work."""
    has_task = view.tasks_by_call().has_any()
    names = view.trace.columns.name[view.calls.row]
    launches = np.flatnonzero(np.isin(names, names[has_task]))
    moments_ns = view.trace.columns.start_ns[view.calls.row[launches]]
    place = np.searchsorted(marks.bounds_ns, moments_ns, side="right") - 1
    of_mark = [has_task[launches[place == mark]] for mark in range(len(marks.number))]
    shares = [float(own.mean()) if len(own) else 1.0 for own in of_mark]
    count = len(shares)
    while count > 1 and shares[count - 1] < max(shares) - _MOST_LOST:
        count -= 1
    return Marks(marks.rule, marks.number[:count], marks.bounds_ns[: count + 1])


def _common(marks: Sequence[Marks | None]) -> tuple[list[Marks] | None, tuple[str, ...]]:
    """The marks that all ranks have, and a fault if some have others; None without any."""
    known = [one for one in marks if one is not None]
    if len(known) < len(marks) or len({one.rule for one in known}) > 1:
        return None, ()
    numbers = set(known[0].number).intersection(*(one.number for one in known))
    if all(len(one.number) == len(numbers) for one in known):
        return known, ()
    if not numbers:
        return None, ("ranks have no step in common by their marks",)
    counts = sorted({len(one.number) for one in known})
    fault = f"ranks have {counts[0]} to {counts[-1]} steps: the {len(numbers)} common ones are used"
    return [_only(one, numbers) for one in known], (fault,)


def _only(marks: Marks, numbers: set[int]) -> Marks:
    """*marks* with only *numbers*, which follow each other."""
    kept = [place for place, number in enumerate(marks.number) if number in numbers]
    bounds = marks.bounds_ns[kept[0] : kept[-1] + 2]
    return Marks(marks.rule, marks.number[kept[0] : kept[-1] + 1], bounds)


def mark_of_tasks(view: RankView, marks: Marks) -> Int64s:
    """The place of the mark that each device task was launched in, or -1."""
    calls = view.device.call
    # The clock of the trace, because marks are on it.
    moments_ns = view.trace.columns.start_ns[view.calls.row][calls]
    place = np.searchsorted(marks.bounds_ns, moments_ns, side="right") - 1
    is_inside = (calls >= 0) & (place >= 0) & (place < len(marks.number))
    return np.where(is_inside, place, -1)
