"""RayExecutor: one big replay over many processes, or many small questions at once.

A replay always runs in blocks, however small the job is. Worker processes are
started when first needed and kept until the executor is closed. They keep their results
and send them on request.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.base.errors import ExecutionError
from perfmodel.engine.history import first_of_each
from perfmodel.engine.layout import Int32s, Int64s, max_distance
from perfmodel.engine.replay import Kept, Replay, Timeline, kept_of_reach
from perfmodel.engine.stall import explain_stall
from perfmodel.execution.executor import Item, OnRound, Result, Shared, ignore_round
from perfmodel.execution.parts import (
    Crossings,
    count_endpoints,
    deal_ranks,
    find_crossings,
    take_durations,
    take_part,
)
from perfmodel.execution.rank_block import Assignment, Heads
from perfmodel.execution.ray_cluster import RayCluster
from perfmodel.execution.ray_workers import Material, RayWorkers
from perfmodel.execution.rounds import run_rounds
from perfmodel.execution.stored_parts import check_members, store_job
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import DurationTable, OpDurations
from perfmodel.graph.job import JobGraph
from perfmodel.graph.program import offsets

CHUNKS_A_WORKER = 8
"""Enough to balance slow chunks, few enough to send small items together."""
MOST_FETCHED_BYTES = 2**32
"""The driver never holds a column larger than this: half a billion ends of tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Where the results of blocks belong in the columns of the whole job.

    *task_bounds* are the first rows of the blocks, *endpoints* is blocks x
    groups: neighbouring ranks have neighbouring places in a group.
    """

    task_bounds: Int64s
    endpoints: Int64s
    rendezvous: Int64s
    vector_count: int

    @property
    def member_count(self) -> int:
        """Number of members of all rendezvous."""
        return int((self.rendezvous * self.endpoints.sum(axis=0)).sum())

    def members_of(self, block: int) -> Int64s:
        """The numbers that the members of *block* have in the whole, in the block's own order."""
        sizes = self.endpoints.sum(axis=0)
        first = offsets(self.rendezvous * sizes)[:-1] + self.endpoints[:block].sum(axis=0)
        here = self.endpoints[block]
        counts = self.rendezvous * here
        group = np.repeat(np.arange(len(here)), counts)
        within = np.arange(len(group)) - np.repeat(offsets(counts)[:-1], counts)
        sequence, position = np.divmod(within, here[group])
        members: Int64s = first[group] + sequence * sizes[group] + position
        return members

    def fits(self, rows: int) -> bool:
        """Whether the driver may hold so many *rows* of a column."""
        return rows * self.vector_count * 8 <= MOST_FETCHED_BYTES


def build_whole(
    job: JobGraph, blocks: Sequence[range], rendezvous: Int64s, vector_count: int
) -> Whole:
    """The columns of *job*, which is split into *blocks*; *rendezvous* is by group."""
    bounds = job.rank_rows()[[*(ranks.start for ranks in blocks), job.rank_count]]
    return Whole(bounds, count_endpoints(job, blocks), rendezvous, vector_count)


class RemoteTimelines:
    """The results that the blocks of a replay keep, fetched on demand.

    Rows are in the order of ranks, as in a replay in one process.
    """

    def __init__(self, workers: RayWorkers, whole: Whole, crossings: Crossings) -> None:
        self._workers = workers
        self._whole = whole
        self._crossings = crossings
        self._near: Kept | None = None
        self._is_wanted = True
        self.is_open = True

    def end_ns(self, iteration: int, rows: slice) -> Int64s:
        """When the tasks of *rows* ended."""
        if self._near is not None:
            return self._near.end_ns(iteration, rows)
        self._check_open()
        bounds = self._whole.task_bounds
        start, stop, _ = rows.indices(int(bounds[-1]))
        self._check_size(stop - start)
        if stop - start == bounds[-1]:
            return np.concatenate(self._workers.ask_all("end_ns", iteration, slice(None)))
        parts = []
        for block, (first, end) in enumerate(pairwise(bounds.tolist())):
            if start < end and first < stop:
                here = slice(max(start - first, 0), min(stop, end) - first)
                parts.append(self._workers.ask(block, "end_ns", iteration, here))
        return np.concatenate(parts)

    def member_ready_ns(self, iteration: int) -> Int64s:
        """When every member of a rendezvous was ready."""
        if self._near is not None:
            return self._near.member_ready_ns(iteration)
        self._check_open()
        self._check_size(self._whole.member_count)
        ready_ns = np.empty((self._whole.member_count, self._whole.vector_count), dtype=np.int64)
        for block, part in enumerate(self._workers.ask_all("member_ready_ns", iteration)):
            ready_ns[self._whole.members_of(block)] = part
        return ready_ns

    def by_rank(self, function: Callable[..., Any], *words: Any) -> list[Any]:
        """`function(history, rank, *words)` for all ranks, where their tasks are."""
        asked = [(last, function, *words) for last in self._last]
        return [found for block in self._workers.ask_each("by_rank", asked) for found in block]

    def at_rank(self, rank: int, function: Callable[..., Any], *words: Any) -> Any:
        """`function(history, *words)`, where the tasks of *rank* are."""
        blocks = [assignment.ranks for assignment in self._workers.assignments]
        block = next(index for index, ranks in enumerate(blocks) if rank in ranks)
        return self._workers.ask(block, "at_rank", self._last[block], function, *words)

    def release(self) -> None:
        """Give up the columns; nobody reads them after the blocks are gone."""
        self._is_wanted = False

    @cached_property
    def _last(self) -> list[Int64s]:
        """For every block, the last members of its shared rendezvous; see `last_signals`."""
        rows = np.concatenate(self._workers.ask_all("last_signals"))
        parts = []
        for iteration in np.unique(rows[:, 0]).tolist():
            found = first_of_each(rows[rows[:, 0] == iteration, 1:])
            parts.append(np.column_stack([np.full(len(found), iteration), found]))
        last = np.concatenate(parts) if parts else rows
        return [last[has_part[last[:, 1]]] for has_part in self._crossings.has_part]

    def close(self, iterations: range) -> None:
        """Fetch everything that fits before the blocks are dropped."""
        fits = self._whole.fits(int(self._whole.task_bounds[-1]) * len(iterations))
        if self._is_wanted and fits:
            self._near = Kept(
                iterations.start,
                tuple(self.end_ns(index, slice(None)) for index in iterations),
                tuple(self.member_ready_ns(index) for index in iterations),
            )
        self.is_open = False

    def _check_open(self) -> None:
        if not self.is_open:
            raise ExecutionError(
                "ray: the timelines of this replay went with the workers that kept them. Ask for "
                "them before those are let go."
            )

    def _check_size(self, rows: int) -> None:
        if not self._whole.fits(rows):
            raise ExecutionError(
                f"ray: {rows:,} rows of a timeline are more than the {MOST_FETCHED_BYTES:,} bytes "
                "that this process takes of a replay on many machines. Look at it rank by rank, "
                "or fold the job."
            )


Readable = tuple[weakref.ref[RemoteTimelines], RayWorkers, range]
"""A replay whose timelines may still be read, its workers, and the iterations that they keep."""


class RayExecutor:
    """The executor on an open Ray cluster."""

    def __init__(self, cluster: RayCluster, *, on_round: OnRound = ignore_round) -> None:
        self._cluster = cluster
        self._on_round = on_round
        self._seats: list[Any] = []
        self._sent: _Sent | None = None
        self._readable: list[Readable] = []
        self._replays = 0
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
        said.extend(self._cluster.notes)
        if self._items:
            said.append(f"{_count(self._items, 'question')} fanned out")
        return ", ".join(said)

    @property
    def reads_jobs(self) -> bool:
        """Yes: the workers together may have more memory than this machine."""
        return True

    def replay(self, job: JobGraph, durations: DurationTable, iterations: int = 1) -> Replay:
        """Replay *iterations* of *job*."""
        self._dismiss_unseen()
        sent = self._send(job, durations)
        kept = kept_of_reach(sent.reach, iterations)
        materials = [
            Material(part, of_part, Assignment(ranks, iterations, kept))
            for part, of_part, ranks in zip(sent.parts, sent.of_parts, sent.blocks, strict=True)
        ]
        if len(self._seats) < len(materials):
            new = range(len(self._seats), len(materials))
            self._seats.extend(self._cluster.new_seat() for _ in new)
            self._cluster.settle(self._seats)
        self._replays += 1
        workers = RayWorkers(
            self._cluster,
            materials,
            number=self._replays,
            seats=self._seats,
            on_round=self._on_round,
        )
        try:
            return self._run(workers, sent, range(iterations - kept, iterations))
        except BaseException:
            self._dismiss(workers)
            raise
        finally:
            self._most_blocks = max(self._most_blocks, len(materials))
            self._rounds += workers.rounds
            self._rebuilds += workers.rebuilds

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
        try:
            for reference, _, kept in self._readable:
                keeper = reference()
                if keeper is not None:
                    keeper.close(kept)
        finally:
            self._readable.clear()
            while self._seats:
                self._cluster.give_up(self._seats.pop())

    def _run(self, workers: RayWorkers, sent: _Sent, kept: range) -> Replay:
        vector_count = sent.durations.vector_count
        check_members(workers.members, sent.crossings, sent.job)
        if not run_rounds(workers, sent.crossings, vector_count=vector_count):
            raise explain_stall(sent.job, gather_heads(workers.ask_all("heads")))
        lane_now_ns = np.concatenate(workers.ask_all("lane_now_ns"), axis=1)
        rendezvous = sent.crossings.rendezvous
        whole = build_whole(sent.job, sent.blocks, rendezvous, vector_count)
        keeper = RemoteTimelines(workers, whole, sent.crossings)
        self._readable.append((weakref.ref(keeper), workers, kept))
        return Replay(tuple(Timeline(index, keeper) for index in kept), lane_now_ns, keeper)

    def _dismiss_unseen(self) -> None:
        """Release the blocks of replays that nobody reads any more."""
        for unread in [one for one in self._readable if one[0]() is None]:
            self._readable.remove(unread)
            self._dismiss(unread[1])

    def _dismiss(self, workers: RayWorkers) -> None:
        with suppress(ExecutionError):
            self._cluster.check()
            workers.dismiss()

    def _send(self, job: JobGraph, durations: DurationTable) -> _Sent:
        """References to what blocks need, checked and sent once for consecutive replays."""
        sent = self._sent
        if sent is None or sent.job is not job:
            stored = store_job(job)
            if stored is None:
                check_job(job)
            blocks = deal_ranks(job, block_count=self._cluster.workers)
            sent = _Sent(
                job=job,
                blocks=blocks,
                crossings=find_crossings(job, blocks),
                parts=(self._cluster.put(stored),) * len(blocks)
                if stored is not None
                else tuple(self._cluster.put(take_part(job, ranks)) for ranks in blocks),
                durations=durations,
                of_parts=(),
                reach=max_distance(job),
            )
        if sent.durations is not durations or not sent.of_parts:
            durations.check(job)
            of_parts: tuple[Any, ...]
            if isinstance(durations, OpDurations):
                of_parts = (self._cluster.put(durations),) * len(sent.blocks)
            else:
                tables = (take_durations(job, durations, ranks) for ranks in sent.blocks)
                of_parts = tuple(self._cluster.put(table) for table in tables)
            sent = replace(sent, durations=durations, of_parts=of_parts)
        self._sent = sent
        return sent


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A job in the object store: its blocks, and references to their parts."""

    job: JobGraph
    blocks: tuple[range, ...]
    crossings: Crossings
    parts: tuple[Any, ...]
    durations: DurationTable
    of_parts: tuple[Any, ...]
    reach: int


def gather_heads(heads: Sequence[Heads]) -> Int32s:
    """The next task of every lane, in the iteration of the block that is furthest behind."""
    behind = min(of_block.iteration for of_block in heads)
    return np.concatenate(
        [of_block.heads if of_block.iteration == behind else of_block.stops for of_block in heads]
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
