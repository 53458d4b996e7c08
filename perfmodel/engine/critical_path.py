"""Critical path: the chain of tasks, across ranks, that fills a window of time.

Walked backwards from the task that ended last: each step asks what that task
waited for. Steps lie end to end, so that their parts add up to the window.
A history of some ranks walks until the path leaves them.
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
    cursor: Cursor | None = _last_task(history)
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


def _last_task(history: History) -> Cursor:
    """The task that ended last; of several the first of the lowest rank."""
    ends: list[Cursor] = history.by_rank(last_end, history.iterations[-1])
    return max(ends, key=lambda cursor: cursor.to_ns)


def last_end(history: History, rank: int, iteration: int) -> Cursor:
    """The task of *rank* that ended last."""
    ends_ns = history.end_ns(iteration, rank)
    task = int(np.argmax(ends_ns))
    return Cursor(Occurrence(iteration, rank, task), int(ends_ns[task]), is_member=False)
