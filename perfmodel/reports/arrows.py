"""Arrows: which task set off which, in a timeline of several ranks.

A launch points from a host task to the device task that depends on it; a wait
points from the member of a rendezvous that came last to each that waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.program import Anchor, Program
from perfmodel.prediction.evidence import Evidence


@dataclass(frozen=True, slots=True)
class ArrowEnd:
    """Where an arrow begins or ends: the start of a task."""

    rank: int
    lane: int
    moment_ns: int


@dataclass(frozen=True, slots=True)
class Arrow:
    """One task set off another."""

    name: str
    source: ArrowEnd
    target: ArrowEnd


def iter_launch_arrows(evidence: Evidence, ranks: tuple[int, ...]) -> Iterator[Arrow]:
    """From every host task to the device tasks that depend on it."""
    for rank in ranks:
        program = evidence.job.program_of(rank)
        starts_ns = evidence.starts_ns(rank).tolist()
        lanes = program.task_lanes().tolist()
        for source, target in _launches(program).tolist():
            yield Arrow(
                "launch",
                ArrowEnd(rank, lanes[source], starts_ns[source]),
                ArrowEnd(rank, lanes[target], starts_ns[target]),
            )


def iter_wait_arrows(evidence: Evidence, ranks: tuple[int, ...]) -> Iterator[Arrow]:
    """From the last member of every rendezvous to the members that waited for it."""
    starts_ns = {rank: evidence.starts_ns(rank) for rank in ranks}
    lanes = {rank: evidence.job.program_of(rank).task_lanes() for rank in ranks}

    def end_at(rank: int, task: int) -> ArrowEnd:
        return ArrowEnd(rank, int(lanes[rank][task]), int(starts_ns[rank][task]))

    for rank in ranks:
        for task in np.flatnonzero(evidence.waits_ns(rank) > 0).tolist():
            last = evidence.last_member(rank, task)
            if last.rank != rank and last.rank in starts_ns:
                yield Arrow("wait", end_at(last.rank, last.task), end_at(rank, task))


def _launches(program: Program) -> NDArray[np.int64]:
    """Pairs of a host task and a device task that waits for its end in the same iteration."""
    is_device = np.array([lane.kind.is_device for lane in program.lanes])[program.task_lanes()]
    targets = np.repeat(np.arange(program.task_count), np.diff(program.dep_start))
    sources = program.dep_task.astype(np.int64)
    is_launch = ~is_device[sources] & is_device[targets] & (program.dep_distance == 0)
    is_launch &= program.dep_anchor == int(Anchor.END)
    return np.column_stack([sources[is_launch], targets[is_launch]])
