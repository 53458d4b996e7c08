"""Breakdown: what the device of a rank was doing at every moment of a window.

A moment counts as the first of these that holds: computing, communicating,
copying, waiting for other ranks; else the device has nothing to do, because
the host has not launched it yet. The parts add up to the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.history import History
from perfmodel.engine.layout import Int64s
from perfmodel.graph.program import PLAIN, LaneKind


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of a window, in nanoseconds."""

    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    waiting_for_ranks_ns: int
    host_bound_idle_ns: int

    @property
    def total_ns(self) -> int:
        """The whole window."""
        return (
            self.compute_ns
            + self.exposed_communication_ns
            + self.exposed_copy_ns
            + self.waiting_for_ranks_ns
            + self.host_bound_idle_ns
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time."""

    from_ns: int
    to_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.to_ns - self.from_ns


def break_down(history: History, rank: int, window: Window) -> Breakdown:
    """What the device of *rank* was doing in *window*."""
    compute = busy_spans(history, rank, window, (LaneKind.COMPUTE,))
    communication = busy_spans(history, rank, window, (LaneKind.COMMUNICATION,))
    copies = busy_spans(history, rank, window, (LaneKind.COPY,))
    waits = _waits(history, rank, window)
    covered = [0]
    spans = np.empty((0, 2), dtype=np.int64)
    for part in (compute, communication, copies, waits):
        spans = np.concatenate([spans, part])
        covered.append(union_length_ns(spans))
    compute_ns, communication_ns, copy_ns, wait_ns = np.diff(covered)
    return Breakdown(
        compute_ns=int(compute_ns),
        exposed_communication_ns=int(communication_ns),
        exposed_copy_ns=int(copy_ns),
        waiting_for_ranks_ns=int(wait_ns),
        host_bound_idle_ns=window.length_ns - covered[-1],
    )


def union_length_ns(spans: Int64s) -> int:
    """Length of the union of *spans*, rows of (from, to)."""
    if not len(spans):
        return 0
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    begins = ordered[:, 0].copy()
    begins[1:] = np.maximum(begins[1:], reached[:-1])
    return int(np.maximum(ordered[:, 1] - begins, 0).sum())


def busy_spans(history: History, rank: int, window: Window, kinds: tuple[LaneKind, ...]) -> Int64s:
    """When tasks of *rank* on lanes of *kinds* ran, as (from, to) clipped to *window*."""
    program = history.program_of(rank)
    is_kind = np.array([lane.kind in kinds for lane in program.lanes], dtype=bool)
    return _spans(history, rank, window, is_kind[program.task_lanes()], is_wait=False)


def _waits(history: History, rank: int, window: Window) -> Int64s:
    is_member = history.program_of(rank).slot != PLAIN
    return _spans(history, rank, window, is_member, is_wait=True)


def _spans(
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
