"""Waiting: which rank waited for which, and in what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.engine.history import History, Occurrence


@dataclass(frozen=True, slots=True)
class Wait:
    """*waiting_rank* spent *waited_ns* in *label* until *late_rank* was ready."""

    waiting_rank: int
    late_rank: int
    label: str
    waited_ns: int
    count: int


def who_waits(history: History, iteration: int) -> list[Wait]:
    """Waits between pairs of ranks in one kept *iteration*, by label, longest first."""
    totals: dict[tuple[int, int, str], tuple[int, int]] = {}
    for rank in range(history.job.rank_count):
        waited = history.start_ns(iteration, rank) - history.ready_ns(iteration, rank)
        for task in np.flatnonzero(waited > 0):
            late = history.last_member(Occurrence(iteration, rank, int(task))).rank
            key = (rank, late, history.job.label_of(rank, int(task)))
            waited_ns, count = totals.get(key, (0, 0))
            totals[key] = (waited_ns + int(waited[task]), count + 1)
    waits = [Wait(*key, waited_ns, count) for key, (waited_ns, count) in totals.items()]
    return sorted(
        waits, key=lambda wait: (-wait.waited_ns, wait.waiting_rank, wait.late_rank, wait.label)
    )
