"""RayExecutor: one big replay over many processes, or many small questions at once.

A replay always runs in blocks, however small the job is. Worker processes are
started when first needed and kept until the executor is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.engine.replay import Replay, kept_iterations
from perfmodel.execution.dealing import deal_ranks
from perfmodel.execution.executor import Item, OnRound, Result, Shared, ignore_round
from perfmodel.execution.gathering import gather_replay
from perfmodel.execution.rank_block import Assignment
from perfmodel.execution.ray_cluster import RayCluster
from perfmodel.execution.ray_crew import Material, RayCrew
from perfmodel.execution.rounds import run_rounds
from perfmodel.execution.structure import strip_job
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import JobGraph

CHUNKS_A_WORKER = 8
"""So many that a slow chunk can be made up for, and so few that small items travel together."""


class RayExecutor:
    """The executor on an open Ray cluster."""

    def __init__(self, cluster: RayCluster, *, on_round: OnRound = ignore_round) -> None:
        self._cluster = cluster
        self._on_round = on_round
        self._seats: list[Any] = []
        self._sent_job: tuple[JobGraph, Any] | None = None
        self._sent_durations: tuple[JobGraph, DurationTable, Any] | None = None
        self._most_blocks = 0
        self._rounds = 0
        self._rebuilds = 0
        self._items = 0

    @property
    def description(self) -> str:
        """Where the work was done so far, in a few words."""
        where = "" if self._cluster.is_local else " of a running cluster"
        said = [f"ray, {_count(self._cluster.workers, 'worker')}{where}"]
        if self._rounds:
            said.append(f"{_count(self._most_blocks, 'block')}, {_count(self._rounds, 'round')}")
        if self._rebuilds:
            said.append(f"{_count(self._rebuilds, 'lost block')} rebuilt")
        if self._items:
            said.append(f"{_count(self._items, 'question')} fanned out")
        return ", ".join(said)

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        job_reference = self._send_job(job)
        durations_reference = self._send_durations(job, durations)
        blocks = deal_ranks(job, block_count=self._cluster.workers)
        kept = kept_iterations(job, iterations)
        material = Material(
            job=job_reference,
            durations=durations_reference,
            assignments=tuple(Assignment(ranks, kept) for ranks in blocks),
        )
        while len(self._seats) < len(blocks):
            self._seats.append(self._cluster.new_seat())
        crew = RayCrew(self._cluster, material, seats=self._seats, on_round=self._on_round)
        try:
            run_rounds(
                job,
                crew,
                blocks=blocks,
                iterations=iterations,
                vector_count=durations.vector_count,
            )
            return gather_replay(job, crew.collect())
        finally:
            crew.dismiss()
            self._most_blocks = max(self._most_blocks, len(blocks))
            self._rounds += crew.rounds
            self._rebuilds += crew.rebuilds

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order."""
        size = -(-len(items) // (self._cluster.workers * CHUNKS_A_WORKER))
        chunks = [items[start : start + size] for start in range(0, len(items), max(size, 1))]
        self._items += len(items)
        answers = self._cluster.map_chunks(function, shared, chunks)
        return [answer for chunk in answers for answer in chunk]

    def close(self) -> None:
        """End the worker processes; the cluster itself stays."""
        while self._seats:
            self._cluster.give_up(self._seats.pop())

    def _send_job(self, job: JobGraph) -> Any:
        """A reference to the structure of *job*, audited and sent once for replays in a row."""
        if self._sent_job is None or self._sent_job[0] is not job:
            check_job(job)
            self._sent_job = (job, self._cluster.put(strip_job(job)))
        return self._sent_job[1]

    def _send_durations(self, job: JobGraph, durations: DurationTable) -> Any:
        """A reference to *durations*, checked and sent once for replays in a row."""
        sent = self._sent_durations
        if sent is None or sent[0] is not job or sent[1] is not durations:
            durations.check(job)
            sent = (job, durations, self._cluster.put(durations))
            self._sent_durations = sent
        return sent[2]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
