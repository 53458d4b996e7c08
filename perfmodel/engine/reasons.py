"""Reasons: why an iteration took as long as it did: device activity, and the critical path.

The breakdown classifies every moment of a window as the first of these that holds: computing,
communicating, copying, waiting for other ranks; otherwise the device is idle, because
the host has not launched work yet. The parts add up to the window.

The critical path is the chain of tasks, across ranks, that fills a window. It is walked
backwards from the task that ended last: each step asks what that task waited for. Steps are
contiguous, so they add up to the window. A history of some ranks walks until the path leaves them.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.history import History, Hop, Occurrence
from perfmodel.engine.layout import Int64s
from perfmodel.graph.program import PLAIN, Anchor, LaneKind, offsets

NO_MOMENT = -(2**62)
"""The end of the span before the first."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of a window, in nanoseconds, in the order in which they are attributed."""

    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    waiting_for_ranks_ns: int
    host_bound_idle_ns: int

    @property
    def total_ns(self) -> int:
        """The whole window."""
        return sum(astuple(self))


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of time."""

    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.to_ns - self.from_ns


def break_down(history: History, rank: int, window: Window) -> Breakdown:
    """What the device of *rank* was doing in *window*."""
    program = history.program_of(rank)
    lane_kinds = np.array([lane.kind for lane in program.lanes])[program.task_lanes()]
    busy = [
        clipped_spans(history, rank, window, lane_kinds == kind, is_wait=False)
        for kind in (LaneKind.COMPUTE, LaneKind.COMMUNICATION, LaneKind.COPY)
    ]
    waits = clipped_spans(history, rank, window, program.slot != PLAIN, is_wait=True)
    covered = [0]
    spans = np.empty((0, 2), dtype=np.int64)
    for part in (*busy, waits):
        spans = np.concatenate([spans, part])
        covered.append(CoveredTime(spans).total_ns)
    return Breakdown(*np.diff([*covered, window.length_ns]).tolist())


class CoveredTime:
    """How much of a period of time *spans*, rows of (from, to), cover however they overlap."""

    def __init__(self, spans: Int64s) -> None:
        begins, ends = spans[np.argsort(spans[:, 0], kind="stable")].T
        reached = np.maximum.accumulate(ends)
        # Each span without what those before it cover.
        begins[1:] = np.maximum(begins[1:], reached[:-1])
        ends = np.maximum(begins, ends)
        self._begins, self._ends = begins, np.append(NO_MOMENT, ends)
        self._covered_ns = offsets(ends - begins)

    @property
    def total_ns(self) -> int:
        """How much they cover in all."""
        return int(self._covered_ns[-1])

    def within(self, from_ns: Int64s, to_ns: Int64s) -> Int64s:
        """How much they cover from each of *from_ns* to that of *to_ns*."""
        return self._until(to_ns) - self._until(from_ns)

    def _until(self, moment_ns: Int64s) -> Int64s:
        begun = np.searchsorted(self._begins, moment_ns, side="right")
        left_ns = np.maximum(self._ends[begun] - moment_ns, 0)
        reached: Int64s = self._covered_ns[begun] - left_ns
        return reached


def clipped_spans(
    history: History, rank: int, window: Window, chosen: NDArray[np.bool_], *, is_wait: bool
) -> Int64s:
    """The chosen tasks of all kept iterations as (from, to), clipped to *window*."""
    parts = [np.empty((0, 2), dtype=np.int64)]
    for iteration in history.iterations:
        start = history.start_ns(iteration, rank)[chosen]
        if is_wait:
            pair = (history.ready_ns(iteration, rank)[chosen], start)
        else:
            pair = (start, history.end_ns(iteration, rank)[chosen])
        parts.append(np.column_stack(pair).clip(window.from_ns, window.to_ns))
    return np.concatenate(parts)


class PathStep(NamedTuple):
    """The part of the path that one task fills, from *from_ns* to *to_ns*.

    *hop* says how the path came here from the step before. *lag_ns* of the
    part is not the task but the lag of the dependency that led to it.
    """

    at: Occurrence
    from_ns: int
    to_ns: int
    lag_ns: int
    hop: Hop


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far back the path is known: to what *at* did until *to_ns*.

    The last member of a rendezvous had only to be ready.
    """

    at: Occurrence
    to_ns: int
    is_member: bool


def critical_path(history: History, *, from_ns: int) -> list[PathStep]:
    """The path to the end of the last iteration, as far back as *from_ns*; earliest first."""
    ends: list[Cursor] = history.by_rank(last_end, history.iterations[-1])
    # Of several that end last, the first of the lowest rank.
    cursor: Cursor | None = max(ends, key=lambda end: end.to_ns)
    steps: list[PathStep] = []
    while cursor is not None:
        walked, cursor = history.at_rank(cursor.at.rank, walk_back, cursor, from_ns)
        steps += walked
    return steps[::-1]


def walk_back(
    history: History, cursor: Cursor, from_ns: int
) -> tuple[list[PathStep], Cursor | None]:
    """The steps before *cursor*, latest first, and where they leave the ranks of *history*."""
    at, to_ns, is_member = cursor.at, cursor.to_ns, cursor.is_member
    steps: list[PathStep] = []
    while at.rank in history.ranks:
        for start_ns in [] if is_member else history.lane_run(at, from_ns):
            if to_ns > start_ns:
                steps.append(PathStep(at, start_ns, to_ns, 0, Hop.LANE))
            at, to_ns = Occurrence(at.iteration, at.rank, at.task - 1), start_ns
        # The last member of a rendezvous had only to be ready: what it did
        # from then on is on the path as the work of the rank that waited.
        binding = history.local_binding(at) if is_member else history.binding(at)
        start_ns = to_ns if is_member else min(history.moment_ns(at, Anchor.START), to_ns)
        known_ns = from_ns if binding.source is None else max(binding.moment_ns, from_ns)
        if to_ns > known_ns:
            lag_ns = max(start_ns - known_ns, 0)
            steps.append(PathStep(at, known_ns, to_ns, lag_ns, binding.hop))
        if binding.source is None or known_ns <= from_ns:
            return steps, None
        at, to_ns = binding.source, known_ns
        is_member = binding.hop is Hop.RENDEZVOUS
    return steps, Cursor(at, to_ns, is_member)


def last_end(history: History, rank: int, iteration: int) -> Cursor:
    """The task of *rank* that ended last."""
    ends_ns = history.end_ns(iteration, rank)
    task = int(np.argmax(ends_ns))
    return Cursor(Occurrence(iteration, rank, task), int(ends_ns[task]), is_member=False)
