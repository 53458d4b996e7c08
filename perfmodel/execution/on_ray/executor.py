"""RayExecutor: one big replay over many processes, or many small questions at once.

A replay always runs in blocks, however small the job is. Worker processes are
started when first needed and kept until the executor is closed. They keep their results
and send them on request.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.layout import max_distance
from perfmodel.engine.replay import Replay, kept_of_reach
from perfmodel.execution.executor import Item, Observers, Result, Shared
from perfmodel.execution.on_ray.cluster import Lost, RayCluster, WorkerCall
from perfmodel.execution.on_ray.workers import RayWorkers
from perfmodel.execution.parts import Division, divide_job, take_durations, take_part
from perfmodel.execution.rank_block import Assignment, Failed
from perfmodel.execution.rounds import RemoteTimelines, replay_blocks
from perfmodel.execution.stored_parts import check_members, store_job
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable, OpDurations
from perfmodel.graph.job import JobGraph

CHUNKS_A_WORKER = 8
"""Enough to balance slow chunks, few enough to send small items together."""
MOST_LOSSES = 5
"""Of one chunk. Questions that end every worker cannot be answered."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A job in the object store: references to the parts of its blocks and their durations."""

    job: JobGraph
    division: Division
    parts: tuple[Any, ...]
    reach: int
    durations: DurationTable | None = None
    of_parts: tuple[Any, ...] = ()


class RayExecutor:
    """The executor on an open Ray cluster."""

    # The workers together may have more memory than this machine.
    reads_jobs = True

    def __init__(self, cluster: RayCluster, observers: Observers) -> None:
        self._cluster = cluster
        cluster.on_wait = observers.on_wait
        self._on_round = observers.on_round
        self._seats: list[Any] = []
        self._sent: _Sent | None = None
        # Replays whose timelines may still be read.
        self._readable: list[tuple[weakref.ref[RemoteTimelines], RayWorkers]] = []
        self._replays = self._most_blocks = self._rounds = self._rebuilds = self._items = 0

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        where = "" if self._cluster.is_local else " of a running cluster"
        said = [f"ray, {_count(self._cluster.workers, 'worker')}{where}"]
        if self._rounds:
            said.append(f"{_count(self._most_blocks, 'block')}, {_count(self._rounds, 'round')}")
        if self._rebuilds:
            said.append(f"{_count(self._rebuilds, 'lost block')} rebuilt")
        said.extend(self._cluster.notes)
        if self._items:
            said.append(f"{_count(self._items, 'question')} fanned out")
        return ", ".join(said)

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        self._dismiss_unread()
        sent = self._send(job, durations)
        kept = kept_of_reach(sent.reach, iterations)
        blocks = sent.division.blocks
        materials = [
            (part, of_part, Assignment(ranks, iterations, kept))
            for part, of_part, ranks in zip(sent.parts, sent.of_parts, blocks, strict=True)
        ]
        self._seat(len(blocks))
        self._replays += 1
        workers = RayWorkers(
            self._cluster,
            materials,
            number=self._replays,
            seats=self._seats,
            on_round=self._on_round,
        )
        try:
            check_members(workers.ask_all("members"), sent.division, job)
            answer = replay_blocks(
                workers,
                job,
                sent.division,
                range(iterations - kept, iterations),
                vector_count=durations.vector_count,
            )
        except BaseException:
            self._dismiss(workers)
            raise
        finally:
            self._most_blocks = max(self._most_blocks, len(blocks))
            self._rounds += workers.rounds
            self._rebuilds += workers.rebuilds
        assert isinstance(answer.remote, RemoteTimelines)
        self._readable.append((weakref.ref(answer.remote), workers))
        return answer

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order."""
        size = max(-(-len(items) // (self._cluster.workers * CHUNKS_A_WORKER)), 1)
        chunks = [items[start : start + size] for start in range(0, len(items), size)]
        self._items += len(items)
        self._seat(min(self._cluster.workers, len(chunks)))
        answers = self._map_chunks(function, shared, chunks)
        return [answer for chunk in answers for answer in chunk]

    def _map_chunks(
        self, function: Callable[..., Any], shared: object, chunks: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """The answers to all *chunks*, in order; one whose worker is lost is asked again elsewhere.

        If several chunks fail, the error of the first is raised, whichever failed first.
        """
        cluster, seats = self._cluster, self._seats
        reference = cluster.put(shared)
        answers: dict[int, list[Any]] = {}
        failures: dict[int, Exception] = {}
        losses: Counter[int] = Counter()
        waiting = list(range(len(chunks)))
        busy: dict[int, tuple[int, WorkerCall]] = {}
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

    def close(self) -> None:
        """End the worker processes; the cluster itself stays."""
        try:
            for reference, _ in self._readable:
                timelines = reference()
                if timelines is not None:
                    timelines.close()
        finally:
            self._readable.clear()
            while self._seats:
                self._cluster.give_up(self._seats.pop())

    def _seat(self, count: int) -> None:
        """Have *count* worker processes, at least."""
        if len(self._seats) < count:
            self._seats += self._cluster.new_seats(count - len(self._seats))
            self._cluster.settle(self._seats)

    def _dismiss_unread(self) -> None:
        """Release the blocks of replays that are no longer read."""
        for unread in [one for one in self._readable if one[0]() is None]:
            self._readable.remove(unread)
            self._dismiss(unread[1])

    def _dismiss(self, workers: RayWorkers) -> None:
        with suppress(ExecutionError):
            self._cluster.check()
            workers.dismiss()

    def _send(self, job: JobGraph, durations: DurationTable) -> _Sent:
        """References to what blocks need, checked and sent once for consecutive replays."""
        sent, put = self._sent, self._cluster.put
        if sent is None or sent.job is not job:
            stored = store_job(job)
            if stored is None:
                check_job(job)
            division = divide_job(job, block_count=self._cluster.workers)
            parts = (
                tuple(put(take_part(job, ranks)) for ranks in division.blocks)
                if stored is None
                else (put(stored),) * len(division.blocks)
            )
            sent = _Sent(job, division, parts, max_distance(job))
        if sent.durations is not durations:
            durations.check(job)
            blocks = sent.division.blocks
            of_parts = (
                (put(durations),) * len(blocks)
                if isinstance(durations, OpDurations)
                else tuple(put(take_durations(job, durations, ranks)) for ranks in blocks)
            )
            sent = replace(sent, durations=durations, of_parts=of_parts)
        self._sent = sent
        return sent


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _check_losses(count: int, lost: Lost) -> None:
    if count > MOST_LOSSES:
        raise ExecutionError(
            f"ray: a worker was lost {count} times on the same question ({lost.reason}). If "
            "memory ran out, use fewer workers."
        )
