"""Linked jobs: traces with operators, kernels and durations, but no starts, become jobs.

Chakra files of other programs and execution traces linked with Kineto
(`et_plus`) say how long every operator and kernel took and what waits for what.
A kernel runs behind the operator that launched it, in the order of its stream;
an operator runs behind the one before it, with the time that is not its
children's. Without starts the job cannot be replayed against its recording, so
it has no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import JobBuilder, ProgramBuilder
from perfmodel.graph.job import JobFacts, Origin
from perfmodel.graph.ops import Communication, Fixed, HostPart, HostWork, MemoryBound, Op, Work
from perfmodel.graph.program import LaneKind, Program
from perfmodel.recordings.collective_calls import WORLD, kind_of_name, size_of_dtype
from perfmodel.recordings.executed_jobs import ExecutedJob, uneven_faults
from perfmodel.recordings.executed_shapes import call_of_operator
from perfmodel.recordings.kernel_estimates import (
    Launch,
    estimate_work,
    estimating_device,
    is_product,
)
from perfmodel.recordings.operator_calls import whole_number
from perfmodel.recordings.operator_work import work_of_call
from perfmodel.recordings.peer_groups import PeerCall, PeerGroups, group_peers
from perfmodel.recordings.rank_program import COLLECTIVE, COUNTED_WORK, ESTIMATED_WORK
from perfmodel.recordings.rank_view import is_communication
from traces.chakra import ChakraOperation, ChakraTrace
from traces.chakra_messages import ChakraKind
from traces.execution_trace import ExecutedOperator, ExecutionTrace

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
_ON_DEVICE = (ChakraKind.COMPUTE, ChakraKind.COLLECTIVE, ChakraKind.SEND, ChakraKind.RECEIVE)


@dataclass(frozen=True, slots=True)
class LinkedOperation:
    """An operator of the host or a task of the device, with what it waits for."""

    number: int
    name: str
    parent: int
    waits: tuple[int, ...]
    is_on_device: bool
    duration_ns: int
    lane: str
    work: Work | None = None
    peer: PeerCall | None = None


@dataclass(frozen=True, slots=True)
class LinkedTrace:
    """The operations of one rank in order."""

    document: str
    operations: tuple[LinkedOperation, ...]
    faults: tuple[str, ...]


def is_linked(trace: ExecutionTrace) -> bool:
    """Whether kernels with durations stand among the operators of *trace*."""
    return any(one.attributes.get("cat") in _KERNEL_CATEGORIES for one in trace.operators)


def linked_from_execution(trace: ExecutionTrace) -> LinkedTrace:
    """The operations of a linked execution trace."""
    names = {one.number: one.name for one in trace.operators}
    found = tuple(_from_executed(one, names.get(one.parent, "")) for one in trace.operators)
    return LinkedTrace(trace.document, found, trace.faults)


def _from_executed(one: ExecutedOperator, around: str) -> LinkedOperation:
    is_kernel = one.attributes.get("cat") in _KERNEL_CATEGORIES
    length_us = one.attributes.get("inclusive_dur", one.attributes.get("dur", 0))
    is_number = isinstance(length_us, int | float) and 0 <= length_us < 10**12
    return LinkedOperation(
        number=one.number,
        name=one.name,
        parent=one.parent,
        waits=(),
        is_on_device=is_kernel,
        duration_ns=round(length_us * _NS_PER_US) if is_number else 0,
        lane=f"stream {one.attributes.get('stream', 0)}" if is_kernel else f"thread {one.thread}",
        work=_work(one, around) if is_kernel else None,
        peer=_peer_of_executed(one) if is_kernel and is_communication(one.name) else None,
    )


def _peer_of_executed(one: ExecutedOperator) -> PeerCall | None:
    kind = kind_of_name(str(one.attributes.get("collective_name") or one.name))
    if kind is None:
        return None
    dtype = size_of_dtype(one.attributes.get("dtype"))
    values = max(
        whole_number(one.attributes.get("in_msg_nelems")),
        whole_number(one.attributes.get("out_msg_nelems")),
    )
    tensors = call_of_operator(one).tensors
    size_bytes = values * dtype.size_bytes or sum(tensor.size_bytes for tensor in tensors[:1])
    return PeerCall(
        group=str(one.attributes.get("pg_name") or WORLD),
        group_size=whole_number(one.attributes.get("pg_size")),
        kind=kind,
        size_bytes=size_bytes,
        dtype=tensors[0].dtype if tensors else dtype,
    )


def _work(one: ExecutedOperator, around: str) -> Work | None:
    """The work of the operator *around* a kernel with its tensors, if it is the main kernel."""
    work = work_of_call(replace(call_of_operator(one), name=around or one.name))
    return work if isinstance(work, MemoryBound) or is_product(one.name) else None


def linked_from_chakra(trace: ChakraTrace) -> LinkedTrace:
    """The operations of a Chakra trace of another program."""
    states_place = any("is_cpu_op" in one.attributes for one in trace.operations)
    found = tuple(_from_chakra(one, states_place=states_place) for one in trace.operations)
    return LinkedTrace(trace.document, found, trace.faults)


def _from_chakra(one: ChakraOperation, *, states_place: bool) -> LinkedOperation:
    # Generators of synthetic traces leave the place out: all they write runs on the device.
    is_device = not one.attributes.get("is_cpu_op", 1) if states_place else one.kind in _ON_DEVICE
    is_peer = is_device and one.kind in (
        ChakraKind.COLLECTIVE,
        ChakraKind.SEND,
        ChakraKind.RECEIVE,
    )
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
    executed = ExecutedOperator(
        one.number, _operator_name(one), 0, 0, 0, 0, 0, one.inputs, one.outputs
    )
    if one.inputs:
        work = work_of_call(call_of_operator(executed))
        is_main = isinstance(work, MemoryBound) or is_product(one.name)
        return work if is_main else None
    flops, moved_bytes = (
        whole_number(one.attributes.get(key)) for key in ("num_ops", "tensor_size")
    )
    if flops or moved_bytes:
        return MemoryBound("compute", moved_bytes, 0, DType.FP32, flops=flops)
    return None


def _operator_name(one: ChakraOperation) -> str:
    """The operator that a kernel carries in its schema; its own name where it has none."""
    schema = str(one.attributes.get("op_schema", ""))
    return schema.split("(", 1)[0].split(".", 1)[0] or one.name


def _peer_of_chakra(one: ChakraOperation) -> PeerCall | None:
    attributes = one.attributes
    size_bytes = whole_number(attributes.get("comm_size"))
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
    return PeerCall(group, 0, kind, size_bytes, DType.FP32)


def build_linked_job(name: str, traces: Sequence[LinkedTrace], source: str) -> ExecutedJob:
    """The job of *traces*, given in the order of their ranks."""
    for trace in traces:
        _check(trace)
    peers = group_peers(
        name, [[one.peer for one in trace.operations if one.peer] for trace in traces]
    )
    job, shortest_ns = JobBuilder(), _shortest_ns(traces)
    programs = [
        job.add_program(_Writer(trace, job.new_program(), peers, shortest_ns).write())
        for trace in traces
    ]
    for rank in range(peers.rank_count):
        job.add_rank(programs[rank % len(programs)])
    peers.add_groups(job)
    sentence = (
        f"made of {source}, which say durations and no starts: operators run one behind the "
        "other, kernels behind the operator that launched them"
    )
    counts = [sum(one.is_on_device for one in trace.operations) for trace in traces]
    faults = [f"{trace.document}: {fault}" for trace in traces for fault in trace.faults]
    return ExecutedJob(
        job.build(JobFacts(name, source=source, assumptions=(sentence, *peers.assumptions))),
        operators=sum(len(trace.operations) for trace in traces),
        faults=(*faults, *peers.faults, *uneven_faults(counts)),
    )


_Shortest = dict[tuple[str, int], int]


def _shortest_ns(traces: Sequence[LinkedTrace]) -> _Shortest:
    """How long each collective took the rank that came last: the others waited inside."""
    shortest: _Shortest = {}
    for trace in traces:
        counts: dict[str, int] = {}
        for one in trace.operations:
            if one.peer is not None:
                key = (one.peer.group, counts.get(one.peer.group, 0))
                counts[one.peer.group] = key[1] + 1
                shortest[key] = min(one.duration_ns, shortest.get(key, one.duration_ns))
    return shortest


def _check(trace: LinkedTrace) -> None:
    if not any(one.is_on_device for one in trace.operations):
        raise TraceError(
            f"{trace.document}: holds no work of the device. Convert a trace that was linked with "
            "Kineto, or import the execution trace it was made from."
        )
    if not any(one.duration_ns or one.work or one.peer for one in trace.operations):
        raise TraceError(
            f"{trace.document}: says neither durations nor shapes, so no job can be made of it."
        )


class _Writer:
    """Writes the operations of one rank."""

    def __init__(
        self,
        trace: LinkedTrace,
        builder: ProgramBuilder,
        peers: PeerGroups,
        shortest_ns: _Shortest,
    ) -> None:
        self.trace, self.builder, self.peers = trace, builder, peers
        self.shortest_ns = shortest_ns
        self.has_times = any(one.duration_ns for one in trace.operations if one.is_on_device)
        self.lanes: dict[str, int] = {}
        self.tasks: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self.device = estimating_device([])
        self.own_ns = _own_durations(trace.operations)
        self.has_kernels = {one.parent for one in trace.operations if one.is_on_device}

    def write(self) -> Program:
        """The program of the rank."""
        for one in self.trace.operations:
            if one.is_on_device:
                self._add_device(one)
            elif self.own_ns[one.number] or one.number in self.has_kernels:
                op = Fixed(
                    "host work",
                    self.own_ns[one.number],
                    work=HostWork(one.name, HostPart.BETWEEN_LAUNCHES),
                )
                lane = self._lane(one.lane, LaneKind.HOST)
                self.tasks[one.number] = self.builder.add_task(
                    lane, op, label=one.name, origin=Origin(one.name)
                )
        for one in self.trace.operations:
            self._connect(one)
        return self.builder.build()

    def _lane(self, name: str, kind: LaneKind) -> int:
        if name not in self.lanes:
            self.lanes[name] = self.builder.add_lane(name, kind)
        return self.lanes[name]

    def _add_device(self, one: LinkedOperation) -> None:
        origin = Origin(one.name)
        if one.peer is None:
            lane = self._lane(one.lane, LaneKind.COMPUTE)
            self.tasks[one.number] = self.builder.add_task(
                lane, self._op(one), label=one.name, origin=origin
            )
            return
        number = self.counts.get(one.peer.group, 0)
        self.counts[one.peer.group] = number + 1
        collective = self.peers.collective_of(one.peer.group, number)
        lane = self._lane(one.lane, LaneKind.COMMUNICATION)
        if collective is None:
            op: Op = Fixed(COLLECTIVE, one.duration_ns)
            self.tasks[one.number] = self.builder.add_task(lane, op, label=one.name, origin=origin)
            return
        work = Communication(collective)
        length_ns = self.shortest_ns[(one.peer.group, number)]
        op = Fixed(COLLECTIVE, length_ns, work=work) if self.has_times else work
        self.tasks[one.number] = self.builder.add_rendezvous(
            lane, op, label=one.name, slot=self.peers.slot_of(one.peer.group), origin=origin
        )

    def _op(self, one: LinkedOperation) -> Op:
        if not self.has_times and one.work is not None:
            return one.work
        if one.work is not None:
            return Fixed(COUNTED_WORK, one.duration_ns, work=one.work)
        estimate = estimate_work(Launch(one.name, one.duration_ns), self.device)
        return Fixed(ESTIMATED_WORK, one.duration_ns, work=estimate)

    def _connect(self, one: LinkedOperation) -> None:
        task = self.tasks.get(one.number)
        if task is None:
            return
        sources = {one.parent, *one.waits} if one.is_on_device else set(one.waits)
        known = {number: self.tasks[number] for number in sources if number in self.tasks}
        for number, source in sorted(known.items()):
            # A wait for a later operation of one's own lane would be a circle.
            if number < one.number:
                self.builder.add_dependency(task, source)


def _own_durations(operations: Sequence[LinkedOperation]) -> dict[int, int]:
    """Time of each operator of the host that is not its children's."""
    own = {one.number: one.duration_ns for one in operations if not one.is_on_device}
    for one in operations:
        if not one.is_on_device and one.parent in own and one.parent != one.number:
            own[one.parent] -= one.duration_ns
    return {number: max(length_ns, 0) for number, length_ns in own.items()}
