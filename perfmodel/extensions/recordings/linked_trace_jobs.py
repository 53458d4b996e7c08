"""Linked-trace jobs: traces with operators, kernels and durations, but no starts, become jobs.

Chakra files of other programs and execution traces linked with Kineto (`et_plus`) say how long
every operator and kernel took and what waits for what. A kernel runs after the operator that
launched it, in the order of its stream; an operator runs after the one before it, without the time
of its children. Without starts the job cannot be replayed against its recording, so it has no
score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.collective_calls import WORLD, kind_of_name
from perfmodel.extensions.recordings.execution_trace_jobs import ExecutedJob
from perfmodel.extensions.recordings.execution_trace_work import communication_of
from perfmodel.extensions.recordings.import_report import uneven_faults
from perfmodel.extensions.recordings.kernel_estimates import (
    estimate_work,
    estimating_device,
    is_gemm_kernel,
)
from perfmodel.extensions.recordings.operator_calls import call_of_operator, whole_number
from perfmodel.extensions.recordings.operators.works import works_of_call
from perfmodel.extensions.recordings.rank_program import COLLECTIVE, COUNTED_WORK, ESTIMATED_WORK
from perfmodel.extensions.recordings.rank_view import is_communication
from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.issuing import Issuer
from perfmodel.graph.job import JobFacts, Origin
from perfmodel.graph.ops import Communication, Fixed, HostPart, HostWork, MemoryBound, Op, Work
from perfmodel.graph.program import PLAIN, LaneKind, Program
from perfmodel.graph.rendezvous import PeerCall, PeerGroups, group_peers
from traces.chakra import ChakraKind, ChakraOperation, ChakraTrace
from traces.execution_trace import ExecutedOperator, ExecutionTrace

_MOST_SHORTER_RATIO = 0.02
"""More operators that are shorter than their children: durations leave the children out."""
_NS_PER_US = 1000
_KERNEL_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_COLLECTIVE_KINDS = {
    0: CollectiveKind.ALL_REDUCE,
    1: CollectiveKind.REDUCE,
    2: CollectiveKind.ALL_GATHER,
    5: CollectiveKind.BROADCAST,
    6: CollectiveKind.ALL_TO_ALL,
    7: CollectiveKind.REDUCE_SCATTER,
    8: CollectiveKind.REDUCE_SCATTER,
    9: CollectiveKind.BARRIER,
}
"""By their numbers in Chakra's schema."""
_ON_DEVICE = (ChakraKind.COMPUTE, ChakraKind.COLLECTIVE, ChakraKind.SEND, ChakraKind.RECEIVE)


@dataclass(frozen=True, slots=True)
class LinkedOperation:
    """A host operator or a device task, with what it waits for."""

    number: int
    name: str
    parent: int
    waits: tuple[int, ...]
    is_on_device: bool
    duration_ns: int
    lane: str
    work: Work | None = None
    peer: PeerCall | None = None


def is_linked(trace: ExecutionTrace) -> bool:
    """Whether the operators of *trace* include kernels with durations."""
    return any(one.attributes.get("cat") in _KERNEL_CATEGORIES for one in trace.operators)


def _operations_of(trace: ExecutionTrace | ChakraTrace) -> tuple[LinkedOperation, ...]:
    """The operations of one rank in order."""
    if isinstance(trace, ExecutionTrace):
        names = {one.number: one.name for one in trace.operators}
        found = tuple(_from_executed(one, names.get(one.parent, "")) for one in trace.operators)
    else:
        states_place = any("is_cpu_op" in one.attributes for one in trace.operations)
        found = tuple(_from_chakra(one, states_place=states_place) for one in trace.operations)
    if not any(one.is_on_device for one in found):
        raise TraceError(
            f"{trace.document}: holds no device work. Convert a trace that was linked with "
            "Kineto, or import the execution trace it was made from."
        )
    if not any(one.duration_ns or one.work or one.peer for one in found):
        raise TraceError(
            f"{trace.document}: has neither durations nor shapes, so it cannot become a job."
        )
    return found


def _from_executed(one: ExecutedOperator, around: str) -> LinkedOperation:
    is_kernel = one.attributes.get("cat") in _KERNEL_CATEGORIES
    length_us = one.attributes.get("inclusive_dur", one.attributes.get("dur", 0))
    is_number = isinstance(length_us, int | float) and 0 <= length_us < 10**12
    found = communication_of(one) if is_kernel and is_communication(one.name) else None
    return LinkedOperation(
        number=one.number,
        name=one.name,
        parent=one.parent,
        waits=(),
        is_on_device=is_kernel,
        duration_ns=round(length_us * _NS_PER_US) if is_number else 0,
        lane=f"stream {one.attributes.get('stream', 0)}" if is_kernel else f"thread {one.thread}",
        work=_main_work(one, around or one.name) if is_kernel else None,
        peer=found.peer if found is not None else None,
    )


def _main_work(kernel: ExecutedOperator, operator: str) -> Work | None:
    """The work of *operator* with the tensors of *kernel*, if that is its main kernel."""
    works = works_of_call(replace(call_of_operator(kernel), name=operator))
    work = works[0] if works else None
    return work if isinstance(work, MemoryBound) or is_gemm_kernel(kernel.name) else None


def _from_chakra(one: ChakraOperation, *, states_place: bool) -> LinkedOperation:
    # Generators of synthetic traces leave the place out: all they write runs on the device.
    is_device = not one.attributes.get("is_cpu_op", 1) if states_place else one.kind in _ON_DEVICE
    is_peer = is_device and one.kind in _ON_DEVICE and one.kind is not ChakraKind.COMPUTE
    peer = _peer_of_chakra(one) if is_peer else None
    stream = one.attributes.get("stream", peer.group if peer else "0")
    return LinkedOperation(
        number=one.number,
        name=one.name or one.kind.name.lower(),
        parent=one.control[0] if one.control else -1,
        waits=one.data,
        is_on_device=is_device,
        duration_ns=one.duration_us * _NS_PER_US,
        lane=f"stream {stream!s}" if is_device else f"thread {one.attributes.get('tid', 0)!s}",
        work=None if peer or not is_device else _chakra_work(one),
        peer=peer,
    )


def _chakra_work(one: ChakraOperation) -> Work | None:
    if one.inputs:
        # A kernel carries its operator in its schema, or it is only known by its own name.
        schema = str(one.attributes.get("op_schema", ""))
        operator = schema.split("(", 1)[0].split(".", 1)[0] or one.name
        arguments = (one.inputs, one.outputs)
        return _main_work(ExecutedOperator(one.number, one.name, 0, 0, *arguments), operator)
    flops, moved_bytes = (
        whole_number(one.attributes.get(key)) for key in ("num_ops", "tensor_size")
    )
    if flops or moved_bytes:
        return MemoryBound("compute", moved_bytes, 0, DType.FP32, flops=flops)
    return None


def _peer_of_chakra(one: ChakraOperation) -> PeerCall | None:
    attributes = one.attributes
    if one.kind is ChakraKind.COLLECTIVE:
        stated = attributes.get("comm_type", -1)
        kind = _COLLECTIVE_KINDS.get(stated) if isinstance(stated, int) else None
        kind = kind or kind_of_name(one.name)
        group = str(attributes.get("pg_name", attributes.get("pg_id", WORLD)))
    else:
        kind = CollectiveKind.SEND_RECV
        ends = sorted(whole_number(attributes.get(key)) for key in ("comm_src", "comm_dst"))
        group = f"{ends[0]}-{ends[1]}"
    if kind is None:
        return None
    return PeerCall(group, 0, kind, whole_number(attributes.get("comm_size")), DType.FP32)


def build_linked_job(
    name: str, traces: Sequence[ExecutionTrace | ChakraTrace], source: str
) -> ExecutedJob:
    """The job of *traces*, given in the order of their ranks."""
    ranks = [_operations_of(trace) for trace in traces]
    peers = group_peers(name, [[one.peer for one in of_rank if one.peer] for of_rank in ranks])
    job, shortest_ns = JobBuilder(), _shortest_ns(ranks)
    programs = [
        job.add_program(_LinkedRankWriter(of_rank, job.new_program(), peers, shortest_ns).write())
        for of_rank in ranks
    ]
    peers.add_ranks(job, programs)
    sentence = (
        f"built from {source}, which have durations but no starts: operators run one after the "
        "other, kernels after the operator that launched them; what the host does between "
        "operators is not in them, so a step bound by its host takes longer than this"
    )
    counts = [sum(one.is_on_device for one in of_rank) for of_rank in ranks]
    faults = [f"{trace.document}: {fault}" for trace in traces for fault in trace.faults]
    return ExecutedJob(
        job.build(JobFacts(name, source=source, assumptions=(sentence, *peers.assumptions))),
        operators=sum(len(of_rank) for of_rank in ranks),
        faults=(*faults, *peers.faults, *uneven_faults(dict(enumerate(counts)))),
    )


def _shortest_ns(ranks: Sequence[Sequence[LinkedOperation]]) -> dict[str, list[int]]:
    """By group, how long each collective took the last rank to arrive: the others waited in it."""
    shortest: dict[str, list[int]] = {}
    for of_rank in ranks:
        lengths: dict[str, list[int]] = {}
        for one in of_rank:
            if one.peer is not None:
                lengths.setdefault(one.peer.group, []).append(one.duration_ns)
        for group, own in lengths.items():
            known = shortest.get(group, own)
            shortest[group] = [min(pair) for pair in zip(own, known, strict=True)]
    return shortest


class _LinkedRankWriter(Issuer):
    """Writes the operations of one rank."""

    def __init__(
        self,
        operations: Sequence[LinkedOperation],
        program: ProgramBuilder,
        peers: PeerGroups,
        shortest_ns: dict[str, list[int]],
    ) -> None:
        super().__init__(program)
        self.operations, self.peers = operations, peers
        self.collectives = peers.iter_collectives()
        self.shortest_ns = {group: iter(lengths) for group, lengths in shortest_ns.items()}
        self.has_times = any(one.duration_ns for one in operations if one.is_on_device)
        self.tasks: dict[int, int] = {}
        self.device = estimating_device([])

    def write(self) -> Program:
        """The program of the rank."""
        own_ns = _own_durations(self.operations)
        launching = {one.parent for one in self.operations if one.is_on_device}
        for one in self.operations:
            if one.is_on_device:
                self._add_device(one)
            elif own_ns[one.number] or one.number in launching:
                work = HostWork(one.name, HostPart.BETWEEN_LAUNCHES)
                op = Fixed("host work", own_ns[one.number], work=work)
                self._add(one, LaneKind.HOST, op)
        for one in self.operations:
            if one.number in self.tasks:
                sources = {one.parent, *one.waits} if one.is_on_device else set(one.waits)
                for source in sorted(sources & self.tasks.keys()):
                    # A wait for a later operation of its own lane would be a cycle.
                    if source < one.number:
                        task = self.tasks[one.number]
                        self.program.add_dependency(task, self.tasks[source])
        return self.finish()

    def _add(self, one: LinkedOperation, kind: LaneKind, op: Op, slot: int = PLAIN) -> None:
        """Add *one* to its lane, as a member of communicator *slot* if there is one."""
        self.tasks[one.number] = self.put(
            self.lane(one.lane, kind), op, label=one.name, slot=slot, origin=Origin(one.name)
        )

    def _add_device(self, one: LinkedOperation) -> None:
        if one.peer is None:
            op: Op
            if one.work is None:
                estimate = estimate_work(one.name, one.duration_ns, self.device)
                op = Fixed(ESTIMATED_WORK, one.duration_ns, work=estimate)
            elif self.has_times:
                op = Fixed(COUNTED_WORK, one.duration_ns, work=one.work)
            else:
                op = one.work
            self._add(one, LaneKind.COMPUTE, op)
        elif one.peer.group not in self.collectives:
            self._add(one, LaneKind.COMMUNICATION, Fixed(COLLECTIVE, one.duration_ns))
        else:
            group = one.peer.group
            work = Communication(next(self.collectives[group]))
            length_ns = next(self.shortest_ns[group])
            op = Fixed(COLLECTIVE, length_ns, work=work) if self.has_times else work
            self._add(one, LaneKind.COMMUNICATION, op, self.peers.slot_of(group))


def _own_durations(operations: Sequence[LinkedOperation]) -> dict[int, int]:
    """Time of each host operator without that of its children.

    Some writers state just that, others the whole time: then no operator is shorter than its
    children, but for rounding to microseconds.
    """
    own = {one.number: one.duration_ns for one in operations if not one.is_on_device}
    inside_ns, rounding_ns = Counter[int](), Counter[int]()
    for one in operations:
        if not one.is_on_device and one.parent in own and one.parent != one.number:
            inside_ns[one.parent] += one.duration_ns
            rounding_ns[one.parent] += _NS_PER_US
    timed = [number for number in inside_ns if own[number]]
    shorter = sum(own[number] + rounding_ns[number] < inside_ns[number] for number in timed)
    if shorter > _MOST_SHORTER_RATIO * len(timed):
        return own
    return {number: max(length_ns - inside_ns[number], 0) for number, length_ns in own.items()}
