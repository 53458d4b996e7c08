"""Executed jobs: PyTorch execution traces of all ranks become a job of shapes.

An execution trace says what ran, with which tensors, in which order and on
which thread, and nothing about time: its job is priced as a workload is. Compute
runs on one stream, collectives on one stream for each group; a `wait` of the
trace, or the next use of the same memory, orders the two.

Leaves out: streams of the program's own making, and host work outside operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import Dependency, JobBuilder, ProgramBuilder
from perfmodel.graph.job import JobFacts, JobGraph, Origin
from perfmodel.graph.ops import (
    Communication,
    HostPart,
    HostSpan,
    HostWork,
)
from perfmodel.graph.program import LaneKind
from perfmodel.recordings.issued_work import Issued, Launched, read_issued
from perfmodel.recordings.peer_groups import PeerGroups, group_peers
from traces.execution_trace import ExecutionTrace

_LEAST_RANK_RATIO = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedJob:
    """A job of shapes, how much was read for it, and what was wrong."""

    graph: JobGraph
    operators: int
    faults: tuple[str, ...]


def build_executed_job(name: str, traces: Sequence[ExecutionTrace]) -> ExecutedJob:
    """The job that *traces* of its ranks describe; refuses traces of different jobs."""
    ordered = _by_rank(name, traces)
    issued = [read_issued(trace) for trace in ordered]
    if not any(launch.works for of_rank in issued for one in of_rank for launch in one.launches):
        raise TraceError(
            f"job {name!r}: no operator of its execution traces works on the device. Record a "
            "whole training step."
        )
    peers = group_peers(
        name,
        [
            [launch.peer for one in of_rank for launch in one.launches if launch.peer]
            for of_rank in issued
        ],
    )
    job = JobBuilder()
    programs = []
    for rank, of_rank in enumerate(issued):
        writer = _Writer(job.new_program(), peers, rank)
        programs.append(job.add_program(writer.write(of_rank)))
    for rank in range(peers.rank_count):
        job.add_rank(programs[rank % len(programs)])
    peers.add_groups(job)
    faults = [fault for trace in ordered for fault in trace.faults]
    facts = JobFacts(name, source="execution traces", assumptions=_assumptions(peers))
    return ExecutedJob(
        job.build(facts),
        operators=sum(len(trace.operators) for trace in ordered),
        faults=(*faults, *peers.faults, *uneven_faults([_launches(one) for one in issued])),
    )


def _launches(issued: Sequence[Issued]) -> int:
    return sum(len(launch.works) for one in issued for launch in one.launches)


def uneven_faults(counts: Sequence[int]) -> tuple[str, ...]:
    """Ranks that do much less than the others: parts of their traces are missing."""
    typical = sorted(counts)[len(counts) // 2]
    return tuple(
        f"rank {rank} has {count} device tasks where others have {typical}: its trace is not whole"
        for rank, count in enumerate(counts)
        if count < _LEAST_RANK_RATIO * typical
    )


def _by_rank(name: str, traces: Sequence[ExecutionTrace]) -> list[ExecutionTrace]:
    if len(traces) > 1 and not all(trace.is_rank_stated for trace in traces):
        unknown = [trace.document for trace in traces if not trace.is_rank_stated]
        raise TraceError(
            f"{', '.join(unknown)}: no rank in the file name. Name the files of one job "
            "rank0.json, rank1.json and so on."
        )
    ranks = [trace.rank for trace in traces]
    if len(set(ranks)) < len(ranks):
        raise TraceError(f"job {name!r}: two execution traces are of the same rank ({ranks}).")
    return sorted(traces, key=lambda trace: trace.rank)


def _assumptions(peers: PeerGroups) -> tuple[str, ...]:
    sentence = (
        "made of execution traces: operators on one compute stream, collectives on one stream "
        "for each group, host times by the software stack"
    )
    return (sentence, *peers.assumptions)


@dataclass(slots=True)
class _Thread:
    """A host thread while it is written."""

    lane: int
    pieces: list[HostWork] = field(default_factory=list)
    awaited: list[Dependency | int] = field(default_factory=list)
    last: int | None = None


class _Writer:
    """Writes what one rank issued to host threads and streams."""

    def __init__(self, builder: ProgramBuilder, peers: PeerGroups, rank: int) -> None:
        self.builder, self.peers, self.rank = builder, peers, rank
        self.threads: dict[int, _Thread] = {}
        self.compute = builder.add_lane("compute stream", LaneKind.COMPUTE)
        self.awaited: list[Dependency | int] = []
        self.last_compute: int | None = None
        self.lanes: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.task_of_key: dict[int, int] = {}
        self.task_of_storage: dict[int, int] = {}
        self.has_waits = False

    def write(self, issued: Sequence[Issued]) -> Any:
        """The program of the rank."""
        self.has_waits = any(
            launch.awaited_key is not None for one in issued for launch in one.launches
        )
        current: _Thread | None = None
        for one in issued:
            thread = self._thread(one.thread)
            if current is not None and thread is not current:
                self._hand_over(current, thread, one)
            current = thread
            self._issue(thread, one)
        for thread in self.threads.values():
            if thread.pieces:
                self._flush(thread, Origin("end of iteration"))
        return self.builder.build()

    def _thread(self, number: int) -> _Thread:
        if number not in self.threads:
            lane = self.builder.add_lane(f"thread {number}", LaneKind.HOST)
            self.threads[number] = _Thread(lane)
        return self.threads[number]

    def _hand_over(self, old: _Thread, new: _Thread, one: Issued) -> None:
        old.pieces.append(HostWork("hand_over", HostPart.BETWEEN_OPERATORS))
        new.awaited.append(self._flush(old, Origin("hand_over", span=one.span)))

    def _issue(self, thread: _Thread, one: Issued) -> None:
        kernels = [launch for launch in one.launches if launch.works or launch.peer]
        thread.pieces.append(HostWork(one.operator, HostPart.BETWEEN_OPERATORS))
        part = HostPart.BEFORE_LAUNCH if kernels else HostPart.BETWEEN_LAUNCHES
        thread.pieces.append(HostWork(one.operator, part))
        for launch in one.launches:
            if launch.awaited_key is not None:
                self._await(launch.awaited_key)
                continue
            if launch is not kernels[0]:
                thread.pieces.append(HostWork(one.operator, HostPart.BETWEEN_LAUNCHES))
            self._launch(thread, one, launch)
        if kernels:
            thread.pieces.append(HostWork(one.operator, HostPart.AFTER_LAUNCH))

    def _await(self, key: int) -> None:
        task = self.task_of_key.get(key)
        if task is not None:
            self.awaited.append(task)

    def _launch(self, thread: _Thread, one: Issued, launch: Launched) -> None:
        origin = Origin(launch.operator, span=one.span)
        thread.pieces.append(HostWork(one.operator, HostPart.LAUNCH))
        started = self._flush(thread, origin)
        if launch.peer is not None:
            self._communicate(started, launch, origin)
            return
        task = -1
        for work in launch.works:
            after = [started, *self._awaited_by(launch)]
            task = self.builder.add_task(
                self.compute, work, label=launch.operator, origin=origin, after=after
            )
        self.last_compute = task
        if launch.is_blocking:
            thread.pieces.append(HostWork("synchronize", HostPart.WAIT))
            thread.awaited.append(task)
            self._flush(thread, origin)

    def _awaited_by(self, launch: Launched) -> list[Dependency | int]:
        awaited, self.awaited = self.awaited, []
        if not self.has_waits:
            # Nobody waits in so many words: the next use of the memory does.
            found = {self.task_of_storage.pop(block, None) for block in launch.storages}
            awaited += sorted(task for task in found if task is not None)
        return awaited

    def _communicate(self, started: int, launch: Launched, origin: Origin) -> None:
        peer = launch.peer
        assert peer is not None
        number = self.counts.get(peer.group, 0)
        self.counts[peer.group] = number + 1
        collective = self.peers.collective_of(peer.group, number)
        if collective is None:
            return
        if peer.group not in self.lanes:
            lane = self.builder.add_lane(f"stream of group {peer.group}", LaneKind.COMMUNICATION)
            self.lanes[peer.group] = lane
        after: list[Dependency | int] = [started]
        if self.last_compute is not None:
            after.append(self.last_compute)
        task = self.builder.add_rendezvous(
            self.lanes[peer.group],
            Communication(collective),
            label=collective.kind.value,
            slot=self.peers.slot_of(peer.group),
            origin=origin,
            after=after,
        )
        self.task_of_key[peer.key] = task
        for block in launch.storages:
            self.task_of_storage[block] = task

    def _flush(self, thread: _Thread, origin: Origin) -> int:
        span = HostSpan(tuple(thread.pieces))
        task = self.builder.add_task(
            thread.lane, span, label=origin.operator, origin=origin, after=thread.awaited
        )
        thread.pieces, thread.awaited = [], []
        thread.last = task
        return task
