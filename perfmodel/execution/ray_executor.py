"""RayExecutor: one big replay over many processes, or many small questions at once.

A replay always runs in blocks, however small the job is. Worker processes are
started when first needed and kept until the executor is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.engine.advance import NOT_DONE
from perfmodel.engine.layout import Int64s, sequence_counts
from perfmodel.engine.replay import Replay, Timeline, kept_iterations
from perfmodel.execution.executor import Item, OnRound, Result, Shared, ignore_round
from perfmodel.execution.rank_block import Assignment, BlockResult
from perfmodel.execution.ray_cluster import RayCluster
from perfmodel.execution.ray_crew import Material, RayCrew
from perfmodel.execution.rounds import run_rounds
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import NO_GROUP, Group, JobFacts, JobGraph

# Blocks are neighbouring ranks with about the same number of tasks. A cut may
# move a little from the even place to cross fewer rendezvous, since each that
# is crossed must be talked about.


MOST_IMBALANCE_RATIO = 0.05
"""How far a cut may move, as a share of one block's tasks."""


def deal_ranks(job: JobGraph, *, block_count: int) -> tuple[range, ...]:
    """The ranks of *job* in at most *block_count* blocks, none of them empty."""
    block_count = min(block_count, job.rank_count)
    before = np.concatenate([[0], np.cumsum(job.task_counts())])
    crossed = crossed_rendezvous(job)
    cuts = [0]
    for block in range(1, block_count):
        # Every block, those that follow too, gets a rank at least.
        first, last = cuts[-1] + 1, job.rank_count - (block_count - block)
        cuts.append(_best_cut(before, crossed, (first, last), block / block_count, block_count))
    cuts.append(job.rank_count)
    return tuple(range(start, stop) for start, stop in pairwise(cuts))


def crossed_rendezvous(job: JobGraph) -> Int64s:
    """How many rendezvous a cut before each rank, and one after the last, would cross."""
    ranks, slots = np.nonzero(job.rank_group != NO_GROUP)
    group = job.rank_group[ranks, slots]
    first = np.full(len(job.groups), job.rank_count, dtype=np.int64)
    last = np.full(len(job.groups), -1, dtype=np.int64)
    np.minimum.at(first, group, ranks)
    np.maximum.at(last, group, ranks)
    counts = np.where(first < last, sequence_counts(job), 0)
    change = np.zeros(job.rank_count + 2, dtype=np.int64)
    np.add.at(change, np.minimum(first + 1, job.rank_count), counts)
    np.add.at(change, last + 1, -counts)
    crossed: Int64s = np.cumsum(change)[: job.rank_count + 1]
    return crossed


def _best_cut(
    before: Int64s, crossed: Int64s, limits: tuple[int, int], share: float, block_count: int
) -> int:
    """The cut within *limits* that crosses least among those close to *share* of the tasks."""
    total = int(before[-1])
    places = np.arange(limits[0], limits[1] + 1)
    off: NDArray[np.float64] = np.abs(before[places] - share * total)
    near = off <= max(float(off.min()), MOST_IMBALANCE_RATIO * total / block_count)
    # Fewest crossed, then closest, then first.
    order = np.lexsort((places, off, crossed[places], ~near))
    return int(places[order[0]])


# Ops, labels, origins and the names of groups stay at home: nobody out there prices or
# shows anything.


NAMELESS = Group("", ())


def strip_job(job: JobGraph) -> JobGraph:
    """*job* with nothing but its structure."""
    unnamed = np.empty(0, dtype=np.int32)
    return JobGraph(
        ops=(),
        labels=(),
        origins=(),
        programs=tuple(replace(one, label=unnamed, origin=unnamed) for one in job.programs),
        rank_program=job.rank_program,
        groups=(NAMELESS,) * len(job.groups),
        rank_group=job.rank_group,
        facts=JobFacts(job.facts.name),
    )


# Rows stand in the order of ranks, as in a replay in one process. What tasks of
# a block did stays where the block left it, in the object store.


def gather_replay(job: JobGraph, results: Sequence[BlockResult]) -> Replay:
    """The replay of *job* from the *results* of its blocks, in the order of their ranks."""
    first = results[0]
    kept, iterations = len(first.timelines), len(first.lane_now_ns)
    vectors = first.lane_now_ns.shape[2]
    member_ready_ns = np.full((kept, _member_count(job), vectors), NOT_DONE, dtype=np.int64)
    for result in results:
        for index, timeline in enumerate(result.timelines):
            member_ready_ns[index, timeline.members] = timeline.member_ready_ns
    return Replay(
        timelines=tuple(
            Timeline(
                iterations - kept + index,
                tuple(result.timelines[index].end_ns for result in results),
                member_ready_ns[index],
            )
            for index in range(kept)
        ),
        lane_now_ns=np.concatenate([result.lane_now_ns for result in results], axis=1),
    )


def _member_count(job: JobGraph) -> int:
    sizes = np.bincount(job.rank_group[job.rank_group != NO_GROUP], minlength=len(job.groups))
    return int((sequence_counts(job) * sizes).sum())


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
