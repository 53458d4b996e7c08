"""Execution-trace jobs: PyTorch execution traces of all ranks become a job of shapes.

An execution trace says what ran, with which tensors, in which order and on which thread, and
nothing about time: its job is priced as a workload is. Compute runs on one stream, collectives on
one stream per group; a `wait` in the trace, or the next use of the same memory, orders the two.

Leaves out: streams that the program itself creates, and host work outside operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.execution_trace_work import Issued, Launched, read_issued
from perfmodel.extensions.recordings.import_report import uneven_faults
from perfmodel.extensions.recordings.recorded_job import SCHEMA_VERSION, rank_parts
from perfmodel.extensions.recordings.trace_stats import known_share
from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.issuing import Issuer
from perfmodel.graph.job import JobFacts, JobGraph, Origin
from perfmodel.graph.ops import Communication, HostSpan, HostWork, work_of
from perfmodel.graph.program import PLAIN, LaneKind, Program
from perfmodel.graph.rendezvous import PeerCall, PeerGroups, group_peers
from traces.execution_trace import ExecutionTrace
from traces.job_trace import by_rank


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
        works = map(work_of, graph.ops)
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
    ordered = by_rank(name, traces)
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
        "stream per group; host times come from the software stack, and all ranks begin together: "
        "one that is ahead of the others waits longer for them than this"
    )
    assumptions = (sentence, *peers.assumptions)
    faults = [fault for trace in ordered for fault in trace.faults]
    return ExecutedJob(
        job.build(JobFacts(name, source="execution traces", assumptions=assumptions)),
        operators=sum(len(trace.operators) for trace in ordered),
        faults=(*faults, *peers.faults, *uneven_faults(dict(enumerate(counts)))),
    )


class _ExecutedRankWriter(Issuer):
    """Writes what one rank issued to host threads and streams."""

    def __init__(self, program: ProgramBuilder, peers: PeerGroups) -> None:
        super().__init__(program)
        self.peers, self.collectives = peers, peers.iter_collectives()
        self.compute = self.add_lane("compute stream", LaneKind.COMPUTE)
        self.task_of_key: dict[int, int] = {}
        self.task_of_storage: dict[int, int] = {}
        self.has_waits = False

    def write(self, issued: Sequence[Issued]) -> Program:
        """The program of the rank."""
        self.has_waits = any(
            launch.awaited_key is not None for one in issued for launch in one.launches
        )
        for one in issued:
            thread = self.lane(f"thread {one.thread}", LaneKind.HOST)
            self.switch(thread, label="hand_over", origin=Origin("hand_over", span=one.span))
            self._issue(one)
        return self.finish()

    def _issue(self, one: Issued) -> None:
        has_kernels = any(launch.works or launch.peer for launch in one.launches)
        if has_kernels:
            self.begin(one.operator)
        else:
            self.note(one.operator)
        for launch in one.launches:
            origin = Origin(launch.operator, span=one.span)
            if launch.awaited_key is not None:
                self.hold(self.compute, self.task_of_key.get(launch.awaited_key))
            elif launch.peer is not None:
                self._communicate(launch, launch.peer, origin)
            else:
                self._compute(launch, origin)
        if has_kernels:
            self.end()

    def _compute(self, launch: Launched, origin: Origin) -> None:
        if not self.has_waits:
            # Without explicit waits in the trace, the next use of the memory waits.
            found = {self.task_of_storage.pop(block, None) for block in launch.storages}
            self.hold(self.compute, *sorted(task for task in found if task is not None))
        label = launch.operator
        task = self.launch(*launch.works, stream=self.compute, label=label, origin=origin)
        if launch.is_blocking:
            self.synchronize(task, label=label, origin=origin)

    def _communicate(self, launch: Launched, peer: PeerCall, origin: Origin) -> None:
        if peer.group not in self.collectives:
            # The host calls it; what it does on the device is not known.
            self.launch(stream=self.compute, label=launch.operator, origin=origin)
            return
        collective = next(self.collectives[peer.group])
        stream = self.lane(f"stream of group {peer.group}", LaneKind.COMMUNICATION)
        self.hold(stream, self.compute.last_task)
        task = self.launch(
            Communication(collective),
            stream=stream,
            label=collective.kind.value,
            slot=self.peers.slot_of(peer.group),
            origin=origin,
        )
        self.task_of_key[peer.key] = task
        self.task_of_storage |= dict.fromkeys(launch.storages, task)
