"""Fan-out: many questions to the worker processes of a cluster, one chunk at a time for each.

A chunk whose worker is lost is asked again elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from perfmodel.base.errors import ExecutionError
from perfmodel.execution.on_ray.cluster import Call, Failed, Lost, RayCluster

MOST_LOSSES = 5
"""Of one chunk. Questions that end every worker cannot be answered."""

Work = tuple[Callable[[Any, Any], Any], object]
"""A function, and what all of its calls share."""


def map_chunks(
    cluster: RayCluster, seats: list[Any], work: Work, chunks: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """The answers to all *chunks*, in order. Lost actors are replaced in *seats*.

    If several chunks fail, the error of the first is raised, whichever failed first.
    """
    function, shared = work
    reference = cluster.put(shared)
    answers: dict[int, list[Any]] = {}
    failures: dict[int, Exception] = {}
    losses: Counter[int] = Counter()
    waiting = list(range(len(chunks)))
    busy: dict[int, tuple[int, Call]] = {}
    while len(answers) < len(chunks):
        for seat in sorted(set(range(len(seats))) - set(busy)):
            if waiting and waiting[0] < min(failures, default=len(chunks)):
                chunk = heappop(waiting)
                words = (function, reference, chunks[chunk])
                busy[seat] = (chunk, cluster.call(seats[seat], "answer", *words))
        if failures and not busy:
            raise failures[min(failures)]
        asked = list(busy)
        for place, answer in cluster.hear([busy[seat][1] for seat in asked]):
            chunk, _ = busy.pop(asked[place])
            if isinstance(answer, Lost):
                losses[chunk] += 1
                _check_losses(losses[chunk], answer)
                cluster.replace(seats, asked[place])
                heappush(waiting, chunk)
            elif isinstance(answer, Failed):
                failures[chunk] = answer.error
            else:
                answers[chunk] = answer
    return [answers[chunk] for chunk in range(len(chunks))]


def _check_losses(count: int, lost: Lost) -> None:
    if count > MOST_LOSSES:
        raise ExecutionError(
            f"ray: a worker was lost {count} times on the same question ({lost.reason}). If "
            "memory ran out, use fewer workers."
        )
