"""Executed jobs: PyTorch execution traces of all ranks become a job of shapes.

An execution trace says what ran, with which tensors, in which order and on
which thread, and nothing about time: its job is priced as a workload is. An
operator launches a kernel where none of its children does, it works on device
tensors and does more than change a view. Compute runs on one stream,
collectives on one stream for each group; a `wait` of the trace, or the next use
of the same memory, orders the two.

Leaves out: streams of the program's own making, and host work outside operators.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import CollectiveKind
from perfmodel.base.errors import TraceError
from perfmodel.graph.builder import Dependency, JobBuilder, ProgramBuilder
from perfmodel.graph.job import JobFacts, JobGraph, Origin
from perfmodel.graph.ops import (
    Communication,
    Convolution,
    Copy,
    CopyRoute,
    HostPart,
    HostSpan,
    HostWork,
    Pass,
    Work,
)
from perfmodel.graph.program import LaneKind
from perfmodel.recordings.collective_calls import WORLD, kind_of_name, size_of_dtype
from perfmodel.recordings.executed_shapes import call_of_operator
from perfmodel.recordings.operator_work import OperatorCall, gradient_of_weights, work_of_call
from perfmodel.recordings.peer_groups import PeerCall, PeerGroups, group_peers
from traces.execution_trace import ExecutedOperator, ExecutionTrace

_COMMUNICATION = "record_param_comms"
_SCALAR = "_local_scalar_dense"
_AUTOGRAD = "autograd::engine::evaluate_function: "
_LEAST_RANK_RATIO = 0.7
_THREAD = re.compile(r"\[pytorch\|profiler\|")
_NO_SPANS = ("ProfilerStep", "nccl:", "[pytorch|")
# Views, allocations and questions: nothing runs on the device for them.
_NO_KERNEL = frozenset((
    "as_strided", "as_strided_", "view", "view_as", "reshape", "_reshape_alias", "transpose",
    "transpose_", "t", "t_", "permute", "expand", "expand_as", "slice", "select", "narrow",
    "squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "detach", "detach_", "alias", "empty",
    "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "new_zeros", "resize_", "resize_as_", "set_", "lift_fresh", "result_type", "record_stream",
    "is_pinned", "pin_memory", "_pin_memory", "split", "split_with_sizes", "chunk", "unbind",
    "unflatten", "flatten", "numpy_T", "mT", "movedim", "swapaxes", "diagonal", "unfold",
    "_unsafe_view", "contiguous", "to", "item", "is_nonzero", "resolve_conj", "resolve_neg",
    "requires_grad_", "size", "stride", "broadcast_tensors", "broadcast_to", "ones", "zeros",
    "full", "zeros_like", "ones_like", "full_like", "rand", "randn", "arange", "can_cast", "dim",
    "numel", "is_same_size", "wait_tensor",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launched:
    """One thing on the device: some work, a part in a collective, or a wait for one."""

    operator: str
    works: tuple[Work, ...] = ()
    peer: PeerCall | None = None
    awaited_key: int | None = None
    is_blocking: bool = False
    storages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Issued:
    """An operator that no other is around, and what it launched."""

    operator: str
    thread: int
    span: str
    launches: tuple[Launched, ...]


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


def read_issued(trace: ExecutionTrace) -> list[Issued]:
    """What a rank issued, in the order of its operators."""
    tree = _Tree(trace)
    launches: dict[int, list[Launched]] = {}
    for number in sorted(tree.launching):
        found = tree.launched(number)
        if found is not None:
            launches.setdefault(tree.outermost[number], []).append(found)
    issued = []
    for number, operator in tree.operators.items():
        if tree.outermost[number] == number and tree.is_operator(operator):
            issued.append(
                Issued(
                    operator=operator.name.removeprefix(_AUTOGRAD),
                    thread=operator.thread,
                    span=tree.span[number],
                    launches=tuple(launches.get(number, ())),
                )
            )
    return issued


class _Tree:
    """Operators and their parents: who launches, and what is around whom."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self.operators = {operator.number: operator for operator in trace.operators}
        self.is_named = any(found.name == _COMMUNICATION for found in trace.operators)
        # A trace that was taken without a GPU tells the same: its tensors stand for the device's.
        self.has_device = any(
            not argument.is_on_host and argument.storages
            for found in trace.operators
            for argument in (*found.inputs, *found.outputs)
        )
        self.calls: dict[int, OperatorCall] = {}
        self.outermost: dict[int, int] = {}
        self.span: dict[int, str] = {}
        self.launching: set[int] = set()
        self._look_down()
        self._look_up()

    def is_operator(self, operator: ExecutedOperator) -> bool:
        """Whether *operator* is one, and no thread or range that somebody named."""
        if _THREAD.match(operator.name) or operator.name.startswith(("##", "ProfilerStep")):
            return False
        scope = operator.attributes.get("scope")
        return scope in (0, 1) if scope is not None else "::" in operator.name

    def _parent(self, operator: ExecutedOperator) -> ExecutedOperator | None:
        # Parents come first; a file that says otherwise is not followed in circles.
        return self.operators.get(operator.parent) if operator.parent < operator.number else None

    def _look_down(self) -> None:
        for number, operator in self.operators.items():
            parent = self._parent(operator)
            if parent is None:
                self.outermost[number], self.span[number] = number, ""
                continue
            is_inside = self.is_operator(parent)
            self.outermost[number] = self.outermost[parent.number] if is_inside else number
            is_range = not is_inside and not parent.name.startswith(_NO_SPANS)
            self.span[number] = parent.name if is_range else self.span[parent.number]

    def _look_up(self) -> None:
        busy: set[int] = set()
        for number in sorted(self.operators, reverse=True):
            operator = self.operators[number]
            is_own = number not in busy and self._launches(operator)
            if operator.name == _COMMUNICATION:
                is_own = True
            if is_own:
                self.launching.add(number)
            parent = self._parent(operator)
            if parent is not None and (is_own or number in busy):
                busy.add(parent.number)

    def _launches(self, operator: ExecutedOperator) -> bool:
        if operator.name.startswith("nccl:"):
            return not self.is_named
        if not self.is_operator(operator) or operator.name.startswith(_AUTOGRAD):
            return False
        word = operator.name.rsplit("::", 1)[-1]
        if word in _NO_KERNEL:
            return False
        if not operator.attributes.get("op_schema") and "::" not in operator.name:
            # Views in the backward pass; what an extension computes it also allocates.
            return not operator.name.endswith("Backward0") and self._allocates(operator)
        if "AccumulateGrad" in operator.name or word.startswith("c10d"):
            return False
        return operator.name.split("::", 1)[0] != "c10d" and self._is_on_device(operator)

    def _allocates(self, operator: ExecutedOperator) -> bool:
        return self._is_on_device(operator) and any(
            other.parent == operator.number and "empty" in other.name
            for other in self._following(operator)
        )

    def _following(self, operator: ExecutedOperator) -> list[ExecutedOperator]:
        return [
            self.operators[number]
            for number in range(operator.number + 1, operator.number + 64)
            if number in self.operators
        ]

    def _is_on_device(self, operator: ExecutedOperator) -> bool:
        arguments = [one for one in (*operator.inputs, *operator.outputs) if one.storages]
        if not self.has_device:
            return bool(arguments)
        return any(not argument.is_on_host for argument in arguments)

    def launched(self, number: int) -> Launched | None:
        """What the operator *number* launches."""
        operator = self.operators[number]
        if operator.name == _COMMUNICATION or operator.name.startswith("nccl:"):
            return _communication(operator)
        call = call_of_operator(operator)
        storages = tuple(block for argument in operator.inputs for block in argument.storages)
        if operator.name.endswith(_SCALAR):
            size_bytes = sum(tensor.size_bytes for tensor in call.tensors[:1]) or 4
            copy = Copy(CopyRoute.DEVICE_TO_HOST, size_bytes, is_pinned=False)
            return Launched(operator.name, (copy,), is_blocking=True, storages=storages)
        if operator.name.endswith("::copy_"):
            copied = _copy(operator, call)
            if copied is not None:
                return Launched(
                    operator.name, (copied,), is_blocking=not copied.is_pinned, storages=storages
                )
        works = _works(call)
        return Launched(operator.name, works, storages=storages) if works else None


def _works(call: OperatorCall) -> tuple[Work, ...]:
    work = work_of_call(call)
    if work is None:
        return ()
    if isinstance(work, Convolution) and work.direction is Pass.BACKWARD:
        return (work, gradient_of_weights(work))
    return (work,)


def _copy(operator: ExecutedOperator, call: OperatorCall) -> Copy | None:
    """A copy between host and device; None for one inside the device."""
    tensors = call.tensors
    if len(tensors) < 2 or tensors[0].is_on_host == tensors[1].is_on_host:
        return None
    route = CopyRoute.DEVICE_TO_HOST if tensors[0].is_on_host else CopyRoute.HOST_TO_DEVICE
    does_not_block = len(operator.inputs) > 2 and operator.inputs[2].value is True
    return Copy(route, tensors[1].size_bytes, is_pinned=does_not_block)


def _communication(operator: ExecutedOperator) -> Launched | None:
    """A collective, or the wait for one: `record_param_comms` is both."""
    words = [argument.value for argument in operator.inputs if argument.kind == "String"]
    stated = operator.attributes
    name = str(stated.get("collective_name") or next((w for w in words if w), operator.name))
    numbers = [one.value for one in operator.inputs if one.kind == "Int"]
    key = numbers[0] if numbers and isinstance(numbers[0], int) else operator.number
    if name == "wait":
        return Launched(operator.name, awaited_key=key)
    kind = kind_of_name(name)
    call = call_of_operator(operator)
    if kind is None or (not call.tensors and kind is not CollectiveKind.BARRIER):
        return None
    peer = PeerCall(
        group=_group_of(operator),
        group_size=_whole(stated.get("pg_size")),
        stride=_whole(stated.get("global_rank_stride")) or 1,
        kind=kind,
        size_bytes=_size_bytes(operator, call),
        dtype=call.tensors[0].dtype if call.tensors else size_of_dtype(stated.get("dtype")),
        sent_bytes=_sent_bytes(operator, call),
        key=key,
    )
    storages = tuple(block for one in operator.outputs for block in one.storages)
    storages += tuple(block for one in operator.inputs for block in one.storages)
    return Launched(operator.name, peer=peer, storages=storages)


def _group_of(operator: ExecutedOperator) -> str:
    stated = operator.attributes.get("pg_name")
    if stated not in (None, ""):
        return str(stated)
    pairs = [one.value for one in operator.inputs if one.kind.startswith("Tuple[String")]
    named = [pair[0] for pair in pairs if isinstance(pair, list | tuple) and pair and pair[0]]
    return str(named[0]) if named else WORLD


def _size_bytes(operator: ExecutedOperator, call: OperatorCall) -> int:
    """The larger of what goes in and what comes out, as sizes of collectives are counted."""
    into = sum(tensor.size_bytes for tensor in call.tensors)
    out_of = sum(tensor.size_bytes for tensor in call.results or ())
    dtype = size_of_dtype(operator.attributes.get("dtype"))
    stated = max(
        _whole(operator.attributes.get(key)) for key in ("in_msg_nelems", "out_msg_nelems")
    )
    return stated * dtype.size_bytes if stated else max(into, out_of)


def _sent_bytes(operator: ExecutedOperator, call: OperatorCall) -> tuple[int, ...]:
    """What an uneven all-to-all sends to each; empty where it does not say."""
    lists = [
        one.value
        for one in operator.inputs
        if isinstance(one.value, list)
        and one.value
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in one.value)
    ]
    if not lists or not call.tensors:
        return ()
    first = call.tensors[0]
    total = sum(lists[0])
    if not total or first.count % total:
        return ()
    # Splits count rows; a row is as wide as the tensor has values for each.
    width_bytes = first.size_bytes // total
    return tuple(rows * width_bytes for rows in lists[0])


def _whole(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**48
    return value if is_whole else 0


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
