"""Programs: the iteration of a rank as tasks on host threads and device streams.

The stack says how long the host takes for an operator. Where another thread continues (the
backward pass), the first one hands over and waits. An event of an earlier iteration becomes a
dependency over that distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from collectives.collective import Collective, CollectiveKind
from perfmodel.extensions.emulation.rank_record import COMPILED, Call, CallType, RankRecord
from perfmodel.extensions.emulation.windows import Windows
from perfmodel.extensions.recordings.operators.calls import aten_name, host_operator
from perfmodel.extensions.recordings.operators.works import emulated_works
from perfmodel.graph.builder import MOST_DISTANCE, ProgramBuilder
from perfmodel.graph.issuing import T1, T2, Issuer, OpenLane
from perfmodel.graph.ops import Communication, HostPart, HostSpan, HostWork, MemoryBound, Op
from perfmodel.graph.program import Dependency, LaneKind, Program, Role
from perfmodel.graph.tables import Tables

_ACCUMULATION = "AccumulateGrad"
"""How the name of a node ends that adds to the gradient of a parameter."""
_COPIES = frozenset({"host_to_device", "device_to_host"})
_USES = (LaneKind.COPY, LaneKind.COMMUNICATION, LaneKind.COMPUTE)
"""What streams are for; the last that applies names a stream."""
_THREADS = ("main thread", "autograd thread")
_LOAD = "DataLoader.__next__"
_COMPILED_KERNEL = "compiled_kernel"
"""What the host does to launch a kernel of compiled code."""


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """A rank's part in a collective: the work, the communicator slot, and the role."""

    work: Communication
    slot: int
    role: Role


_NOT_WRITTEN = CollectivePart(Communication(Collective(CollectiveKind.BARRIER, 0)), 0, Role.BOTH)
"""Any collective of an iteration that is laid out but not written."""


class _IterationBuilder(ProgramBuilder):
    """Leaves out waits for tasks of earlier iterations that this one does not have."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._late: list[tuple[int, Dependency]] = []

    def add_dependency(self, task: int, dependency: Dependency | int) -> None:
        if isinstance(dependency, Dependency) and dependency.distance:
            self._late.append((task, dependency))
        else:
            super().add_dependency(task, dependency)

    def build(self) -> Program:
        for task, awaited in self._late:
            if awaited.task < self.task_count and awaited.distance <= MOST_DISTANCE:
                super().add_dependency(task, awaited)
        return super().build()


def build_program(
    windows: Windows, tables: Tables, latency_ns: int, parts: Mapping[int, CollectivePart]
) -> Program:
    """The program of the chosen iteration of *windows*; *parts* are by number of the collective.

    A kernel can start *latency_ns* after its launch.
    """
    streams: dict[int, OpenLane] = {}
    events: dict[int, list[Dependency | int]] = {}
    # Earlier iterations are laid out too, for the events that this one waits for.
    for number in range(windows.chosen):
        scratch = _Writer(windows.record, Tables(), latency_ns, parts, streams, events)
        scratch.write(windows.all[number])
        for stream in streams.values():
            stream.awaited = [_aged(moment) for moment in stream.awaited]
            stream.last_task = None if stream.last_task is None else _aged(stream.last_task)
        for moments in events.values():
            moments[:] = map(_aged, moments)
    writer = _Writer(windows.record, tables, latency_ns, parts, streams, events)
    writer.write(windows.all[windows.chosen])
    return writer.finish()


def _aged(moment: Dependency | int) -> Dependency:
    """*moment* as the next iteration sees it."""
    if isinstance(moment, int):
        return Dependency(moment, distance=1)
    return moment._replace(distance=moment.distance + 1)


class _Writer(Issuer):
    """Writes the calls of one iteration; streams and events are those of the iterations before."""

    def __init__(
        self,
        record: RankRecord,
        tables: Tables,
        latency_ns: int,
        parts: Mapping[int, CollectivePart],
        streams: dict[int, OpenLane],
        events: dict[int, list[Dependency | int]],
    ) -> None:
        super().__init__(_IterationBuilder(tables), latency_ns=latency_ns)
        self._record, self._parts = record, parts
        self._streams, self._events = streams, events
        self._threads_seen: dict[int, int] = {}
        self._lane_of_stream: dict[int, int] = {}
        self._ops: dict[int, tuple[Op, ...]] = {}
        self._switch(record.main_thread)

    def write(self, calls: Sequence[Call]) -> None:
        """Write all *calls*; those of one operator follow each other on their thread."""
        for stream, kind in _lane_kinds(calls, self._record.kinds).items():
            name = f"{kind.value} stream {len(self._lane_of_stream)}"
            self._lane_of_stream[stream] = self.program.add_lane(name, kind)
        for operator, group in groupby(calls, key=_operator_of):
            if operator is None:
                for call in group:
                    self._write_other(call)
            else:
                self._write_operator(list(group))

    def _write_operator(self, calls: Sequence[Call]) -> None:
        _, _, thread, _, operator = calls[0]
        self._switch(thread)
        launches = [call for call in calls if call[0] == CallType.KERNEL]
        kinds = self._record.kinds
        words = [aten_name(kinds[call[1]]["operator"]) for call in launches or calls]
        name = self._record.operator_names[operator] or host_operator(words)
        if not launches:
            self.note(name)
            return
        self.begin(_COMPILED_KERNEL if name.startswith(COMPILED) else name)
        for (_, kind, _, stream, _), word in zip(launches, words, strict=True):
            label = name if word == name else f"{name}/{word}"
            for op in self._ops_of(kind, name):
                self.launch(op, stream=self._stream(stream), label=label)
        self.end()

    def _write_other(self, call: Call) -> None:
        kind, what, thread, stream, _ = call
        if kind == CallType.RECORD:
            self._events[what] = self._stream(stream).reached()
        elif kind == CallType.AWAIT:
            self.hold(self._stream(stream), *self._events.get(what, ()))
        else:
            self._switch(thread)
            if kind == CallType.COLLECTIVE:
                self._communicate(what, stream)
            elif kind == CallType.LOAD:
                self._load(has_workers=bool(what))
            elif kind == CallType.GRAPH:
                self.capture(is_captured=bool(what))
            else:
                self.synchronize(*self._awaited_by(kind, what, stream), label="synchronize")

    def _communicate(self, number: int, stream: int) -> None:
        call, part = self._record.collectives[number], self._parts.get(number, _NOT_WRITTEN)
        self.begin(call["call"])
        self.launch(
            part.work,
            stream=self._stream(stream),
            label=f"{call['call']} ({call['line']})",
            slot=part.slot,
            role=part.role,
        )
        self.end()

    def _awaited_by(self, kind: int, what: int, stream: int) -> list[Dependency | int]:
        if kind == CallType.SYNC_STREAM:
            return self._stream(stream).reached()
        if kind == CallType.SYNC_EVENT:
            return self._events.get(what, [])
        return [moment for state in self._streams.values() for moment in state.reached()]

    def _load(self, *, has_workers: bool) -> None:
        if not has_workers:
            self.spend((_LOAD, T2))
            return
        span = HostSpan((HostWork(_LOAD, HostPart.BEFORE_LAUNCH),))
        load = self.put(self.lane("loader", LaneKind.LOADER), span, label="load batch")
        if self.thread.spent:
            self.write_spent("before the batch")
        self.hold(self.thread, load)
        self.spend((_LOAD, T1))
        self.make_room(load, self.write_spent("take batch"))

    def _switch(self, ident: int) -> None:
        number = self._threads_seen.setdefault(ident, len(self._threads_seen))
        name = _THREADS[number] if number < len(_THREADS) else f"thread {number}"
        self.switch(self.lane(name, LaneKind.HOST), label="hand-over")

    def _ops_of(self, kind: int, node: str) -> list[Op]:
        """The kernels of a call by *node*."""
        if kind not in self._ops:
            self._ops[kind] = emulated_works(self._record.kinds[kind])
        # Gradients are summed up outside of what a compiler joins.
        is_sum = node.endswith(_ACCUMULATION)
        return [
            replace(op, operator="accumulate") if is_sum and isinstance(op, MemoryBound) else op
            for op in self._ops[kind]
        ]

    def _stream(self, number: int) -> OpenLane:
        stream = self._streams.setdefault(number, OpenLane(-1))
        stream.lane = self._lane_of_stream.get(number, -1)
        return stream


def _lane_kinds(
    calls: Sequence[Call], kinds: Sequence[Mapping[str, object]]
) -> dict[int, LaneKind]:
    """What each stream is for: computing if anything computes on it, else what else it does."""
    found: dict[int, LaneKind] = {}
    for kind, what, _, stream, _ in calls:
        if kind == CallType.COLLECTIVE:
            use = LaneKind.COMMUNICATION
        elif kind == CallType.KERNEL:
            is_copy = kinds[what]["operator"] in _COPIES
            use = LaneKind.COPY if is_copy else LaneKind.COMPUTE
        else:
            continue
        found[stream] = max(use, found.get(stream, use), key=_USES.index)
    return found


def _operator_of(call: Call) -> tuple[int, int] | None:
    """The thread and operator of a call that computes or changes a view."""
    return (call[2], call[4]) if call[0] in (CallType.KERNEL, CallType.NOTE) else None
