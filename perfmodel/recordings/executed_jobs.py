"""Executed jobs: PyTorch execution traces of all ranks become a job of shapes.

An execution trace says what ran, with which tensors, in which order and on which thread, and
nothing about time: its job is priced as a workload is. Compute runs on one stream, collectives on
one stream per group; a `wait` in the trace, or the next use of the same memory, orders the two.

Leaves out: streams that the program itself creates, and host work outside operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import Dependency, JobBuilder, ProgramBuilder
from perfmodel.graph.job import JobFacts, JobGraph, Origin
from perfmodel.graph.ops import Communication, Fixed, HostPart, HostSpan, HostWork
from perfmodel.graph.program import PLAIN, LaneKind, Program
from perfmodel.graph.rendezvous import PeerGroups, group_peers
from perfmodel.recordings.issued_work import Issued, Launched, read_issued
from perfmodel.recordings.recorded_job import SCHEMA_VERSION, rank_parts
from perfmodel.recordings.trace_stats import known_share
from traces.execution_trace import ExecutionTrace

_LEAST_RANK_RATIO = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedJob:
    """A job without recorded starts, and the folder it was written to.

    *operators* is how many operators were read for it, *faults* are those of its traces.
    """

    graph: JobGraph
    operators: int
    faults: tuple[str, ...]
    folder: Path = Path()

    def document(self) -> dict[str, Any]:
        """What was found in the traces, as plain values for JSON."""
        graph = self.graph
        programs = [program for program, _ in rank_parts(graph)]
        works = [op.work if isinstance(op, Fixed) else op for op in graph.ops]
        kinds = ["unknown" if work is None else type(work).__name__ for work in works]
        counts = Counter(kinds[op] for program in programs for op in program.op.tolist())
        host = (HostWork.__name__, HostSpan.__name__)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "import",
            "job": graph.facts.name,
            "source": graph.facts.source,
            "ranks": graph.rank_count,
            "tasks": graph.task_count,
            "operators_read": self.operators,
            "device_tasks": sum(int(program.is_on_device().sum()) for program in programs),
            "collectives": sum(int((program.slot != PLAIN).sum()) for program in programs),
            "work": {kind: count for kind, count in sorted(counts.items()) if kind not in host},
            "faults": list(self.faults),
            "is_trusted": not self.faults,
            "known_work": known_share(graph),
            "assumptions": list(graph.facts.assumptions),
            "self_replay": None,
            "folder": str(self.folder),
        }


def build_executed_job(name: str, traces: Sequence[ExecutionTrace]) -> ExecutedJob:
    """The job that *traces* of its ranks describe; refuses traces of different jobs."""
    ordered = _by_rank(name, traces)
    issued = [read_issued(trace) for trace in ordered]
    launches = [[launch for one in of_rank for launch in one.launches] for of_rank in issued]
    counts = [sum(len(launch.works) for launch in of_rank) for of_rank in launches]
    if not any(counts):
        raise TraceError(
            f"job {name!r}: no operator of its execution traces works on the device. Record a "
            "whole training step."
        )
    peers = group_peers(name, [[one.peer for one in of_rank if one.peer] for of_rank in launches])
    job = JobBuilder()
    writers = [_ExecutedRankWriter(job.new_program(), peers) for _ in issued]
    programs = [
        job.add_program(writer.write(of_rank))
        for writer, of_rank in zip(writers, issued, strict=True)
    ]
    peers.add_ranks(job, programs)
    sentence = (
        "built from execution traces: operators run on one compute stream, collectives on one "
        "stream per group; host times come from the software stack"
    )
    assumptions = (sentence, *peers.assumptions)
    faults = [fault for trace in ordered for fault in trace.faults]
    return ExecutedJob(
        job.build(JobFacts(name, source="execution traces", assumptions=assumptions)),
        operators=sum(len(trace.operators) for trace in ordered),
        faults=(*faults, *peers.faults, *uneven_faults(counts)),
    )


def uneven_faults(counts: Sequence[int]) -> tuple[str, ...]:
    """Ranks with many fewer device tasks than the others: parts of their traces are missing."""
    typical = sorted(counts)[len(counts) // 2]
    return tuple(
        f"rank {rank} has {count} device tasks, other ranks {typical}: its trace is incomplete"
        for rank, count in enumerate(counts)
        if count < _LEAST_RANK_RATIO * typical
    )


def _by_rank(name: str, traces: Sequence[ExecutionTrace]) -> list[ExecutionTrace]:
    unknown = [trace.document for trace in traces if not trace.is_rank_stated]
    if len(traces) > 1 and unknown:
        raise TraceError(
            f"{', '.join(unknown)}: no rank in the file name. Name the files of one job "
            "rank0.json, rank1.json and so on."
        )
    ranks = [trace.rank for trace in traces]
    if len(set(ranks)) < len(ranks):
        raise TraceError(f"job {name!r}: two execution traces are of the same rank ({ranks}).")
    return sorted(traces, key=lambda trace: trace.rank)


@dataclass(slots=True)
class _Thread:
    """A host thread while it is written: its next host span, and what that waits for."""

    lane: int
    pieces: list[HostWork] = field(default_factory=list)
    awaited: list[Dependency | int] = field(default_factory=list)

    def add(self, operator: str, part: HostPart) -> None:
        """Append host work to the next span."""
        self.pieces.append(HostWork(operator, part))


class _ExecutedRankWriter:
    """Writes what one rank issued to host threads and streams."""

    def __init__(self, builder: ProgramBuilder, peers: PeerGroups) -> None:
        self.builder, self.peers = builder, peers
        self.collectives = peers.iter_collectives()
        self.threads: dict[int, _Thread] = {}
        self.compute = builder.add_lane("compute stream", LaneKind.COMPUTE)
        self.awaited: list[Dependency | int] = []
        self.last_compute: int | None = None
        self.lanes: dict[str, int] = {}
        self.task_of_key: dict[int, int] = {}
        self.task_of_storage: dict[int, int] = {}
        self.has_waits = False

    def write(self, issued: Sequence[Issued]) -> Program:
        """The program of the rank."""
        self.has_waits = any(
            launch.awaited_key is not None for one in issued for launch in one.launches
        )
        current: _Thread | None = None
        for one in issued:
            if one.thread not in self.threads:
                lane = self.builder.add_lane(f"thread {one.thread}", LaneKind.HOST)
                self.threads[one.thread] = _Thread(lane)
            thread = self.threads[one.thread]
            if current is not None and thread is not current:
                current.add("hand_over", HostPart.BETWEEN_OPERATORS)
                thread.awaited.append(self._flush(current, Origin("hand_over", span=one.span)))
            current = thread
            self._issue(thread, one)
        for thread in self.threads.values():
            if thread.pieces:
                self._flush(thread, Origin("end of iteration"))
        return self.builder.build()

    def _issue(self, thread: _Thread, one: Issued) -> None:
        kernels = [launch for launch in one.launches if launch.works or launch.peer]
        thread.add(one.operator, HostPart.BETWEEN_OPERATORS)
        thread.add(one.operator, HostPart.BEFORE_LAUNCH if kernels else HostPart.BETWEEN_LAUNCHES)
        for launch in one.launches:
            if launch.awaited_key is None:
                if launch is not kernels[0]:
                    thread.add(one.operator, HostPart.BETWEEN_LAUNCHES)
                self._launch(thread, one, launch)
            elif launch.awaited_key in self.task_of_key:
                self.awaited.append(self.task_of_key[launch.awaited_key])
        if kernels:
            thread.add(one.operator, HostPart.AFTER_LAUNCH)

    def _launch(self, thread: _Thread, one: Issued, launch: Launched) -> None:
        origin = Origin(launch.operator, span=one.span)
        thread.add(one.operator, HostPart.LAUNCH)
        started = self._flush(thread, origin)
        if launch.peer is not None:
            self._communicate(started, launch, origin)
            return
        task = -1
        for work in launch.works:
            task = self.builder.add_task(
                self.compute,
                work,
                label=launch.operator,
                origin=origin,
                after=[started, *self._awaited_by(launch)],
            )
        self.last_compute = task
        if launch.is_blocking:
            thread.add("synchronize", HostPart.WAIT)
            thread.awaited.append(task)
            self._flush(thread, origin)

    def _awaited_by(self, launch: Launched) -> list[Dependency | int]:
        awaited, self.awaited = self.awaited, []
        if not self.has_waits:
            # Without explicit waits in the trace, the next use of the memory waits.
            found = {self.task_of_storage.pop(block, None) for block in launch.storages}
            awaited += sorted(task for task in found if task is not None)
        return awaited

    def _communicate(self, started: int, launch: Launched, origin: Origin) -> None:
        peer = launch.peer
        assert peer is not None
        if peer.group not in self.collectives:
            return
        collective = next(self.collectives[peer.group])
        if peer.group not in self.lanes:
            lane = self.builder.add_lane(f"stream of group {peer.group}", LaneKind.COMMUNICATION)
            self.lanes[peer.group] = lane
        after = [started] if self.last_compute is None else [started, self.last_compute]
        task = self.builder.add_rendezvous(
            self.lanes[peer.group],
            Communication(collective),
            label=collective.kind.value,
            slot=self.peers.slot_of(peer.group),
            origin=origin,
            after=after,
        )
        self.task_of_key[peer.key] = task
        self.task_of_storage |= dict.fromkeys(launch.storages, task)

    def _flush(self, thread: _Thread, origin: Origin) -> int:
        span = HostSpan(tuple(thread.pieces))
        task = self.builder.add_task(
            thread.lane, span, label=origin.operator, origin=origin, after=thread.awaited
        )
        thread.pieces, thread.awaited = [], []
        return task
