"""Critical path: the chain of tasks, across ranks, that fills a window of time.

Walked backwards from the task that ended last: each step asks what that task
waited for. Steps lie end to end, so that their parts add up to the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.engine.history import History, Hop, Occurrence
from perfmodel.graph.program import Anchor


@dataclass(frozen=True, slots=True)
class PathStep:
    """The part of the path that one task fills, from *from_ns* to *to_ns*.

    *hop* says how the path came here from the step before. *lag_ns* of the
    part is not the task but the lag of the dependency that led to it.
    """

    at: Occurrence
    from_ns: int
    to_ns: int
    lag_ns: int
    hop: Hop


def critical_path(history: History, *, from_ns: int) -> list[PathStep]:
    """The path to the end of the last iteration, as far back as *from_ns*; earliest first."""
    at = _last_task(history)
    to_ns = history.moment_ns(at, Anchor.END)
    is_member = False
    steps: list[PathStep] = []
    while True:
        # The last member of a rendezvous had only to be ready: what it did
        # from then on is on the path as the work of the rank that waited.
        binding = history.local_binding(at) if is_member else history.binding(at)
        start_ns = to_ns if is_member else min(history.moment_ns(at, Anchor.START), to_ns)
        known_ns = from_ns if binding.source is None else max(binding.moment_ns, from_ns)
        if to_ns > known_ns:
            lag_ns = max(start_ns - known_ns, 0)
            steps.append(PathStep(at, known_ns, to_ns, lag_ns, binding.hop))
        if binding.source is None or known_ns <= from_ns:
            return steps[::-1]
        at, to_ns = binding.source, known_ns
        is_member = binding.hop is Hop.RENDEZVOUS


def _last_task(history: History) -> Occurrence:
    iteration = history.iterations[-1]
    latest: tuple[int, Occurrence] | None = None
    for rank in range(history.job.rank_count):
        ends = history.end_ns(iteration, rank)
        task = int(np.argmax(ends))
        if latest is None or ends[task] > latest[0]:
            latest = (int(ends[task]), Occurrence(iteration, rank, task))
    assert latest is not None  # a job has at least one rank
    return latest[1]
