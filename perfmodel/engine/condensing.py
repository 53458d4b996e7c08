"""Condensing: a program with only the tasks that matter, and exact waits between them.

Start times are sums and maxima of durations (max-plus algebra). So tasks with fixed durations can
be folded exactly into lags between the kept tasks: the longest path from one to the next.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.program import (
    PLAIN,
    Anchor,
    Dependency,
    Program,
    read_dependencies,
    sources_of,
)

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

ORIGIN = -1
"""Source of paths that begin at the start of the job."""


class Moment(NamedTuple):
    """The start or end of a kept task, *distance* iterations earlier."""

    task: int
    anchor: Anchor
    distance: int


Ways = dict[Moment, int]
"""The longest path from each moment, in nanoseconds."""


def choose_kept(program: Program, changing: Bools) -> Bools:
    """Tasks that must be kept when those marked *changing* have no fixed duration.

    Kept are also all rendezvous, the last task of every lane and every task
    that a later iteration waits for.
    """
    kept: Bools = changing | (program.slot != PLAIN)
    kept[lane_ends(program)] = True
    kept[program.dep_task[program.dep_distance > 0]] = True
    return kept


def condense(program: Program, durations_ns: Int64s, kept: Bools) -> dict[int, Ways]:
    """Fold the tasks of *program* that are not *kept*.

    The result has the waits of every kept task, in an order in which they can be executed.
    """
    previous = _previous_in_lane(program)
    waits_of = read_dependencies(program)
    lengths, is_kept = durations_ns.tolist(), kept.tolist()
    ends: dict[int, Ways] = {}
    starts: dict[int, Ways] = {}
    waits: dict[int, Ways] = {}
    for task in TopologicalSorter(sources_of(program)).static_order():
        ready = _ready(waits_of[task], task, previous[task], starts, ends)
        if is_kept[task]:
            waits[task] = ready
            starts[task] = {Moment(task, Anchor.START, 0): 0}
            ends[task] = {Moment(task, Anchor.END, 0): 0}
        else:
            length = lengths[task]
            starts[task] = ready
            ends[task] = {moment: way + length for moment, way in ready.items()}
    for task in waits:
        waits[task] = _prune(waits[task], waits)
    return waits


def _ready(
    waits: list[Dependency],
    task: int,
    before: int,
    starts: dict[int, Ways],
    ends: dict[int, Ways],
) -> Ways:
    """All moments that *task*, which runs after *before*, waits for, and the longest paths."""
    ready: Ways = {Moment(ORIGIN, Anchor.END, 0): 0}
    _join(ready, ends[before] if before < task else {Moment(before, Anchor.END, 1): 0}, 0)
    for source, anchor, lag, distance in waits:
        if distance:
            _join(ready, {Moment(source, anchor, distance): 0}, lag)
        else:
            _join(ready, ends[source] if anchor is Anchor.END else starts[source], lag)
    return ready


def _join(ready: Ways, ways: Ways, lag_ns: int) -> None:
    for moment, way in ways.items():
        known = ready.get(moment)
        if known is None or known < way + lag_ns:
            ready[moment] = way + lag_ns


def _prune(ways: Ways, waits: dict[int, Ways]) -> Ways:
    """Drop paths that are no longer than another one through a kept task."""
    kept = dict(ways)
    for middle, second in ways.items():
        if middle.task == ORIGIN or middle.anchor is Anchor.START or middle.distance:
            continue
        for moment, first in waits[middle.task].items():
            direct = kept.get(moment)
            if direct is not None and moment != middle and first + second >= direct:
                del kept[moment]
    return kept


def _previous_in_lane(program: Program) -> list[int]:
    """The task before each on its lane; for the first task of a lane its last one."""
    previous = list(range(-1, program.task_count - 1))
    for first, last in _lane_bounds(program).items():
        previous[first] = last
    return previous


def lane_ends(program: Program) -> list[int]:
    """The last task of every lane that has any."""
    return list(_lane_bounds(program).values())


def _lane_bounds(program: Program) -> dict[int, int]:
    """The last task of every lane that has any, by its first task."""
    starts = program.lane_start.tolist()
    return {first: after - 1 for first, after in pairwise(starts) if after > first}
