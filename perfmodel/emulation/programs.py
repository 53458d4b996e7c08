"""Programs: the iteration of a rank as tasks on host threads and device streams.

A host thread spends T1 and T2 before an operator's first launch, T4 in each launch, T5 between
launches and T3 after the last; a view costs T1 and T5. The stack says how long these take. Where
another thread continues (the backward pass), the first one hands over and waits. A kernel follows
its launch and what its stream waits for; an event of an earlier iteration becomes a dependency
over that distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collectives.collective import Collective, CollectiveKind
from perfmodel.emulation.rank_record import Call, CallType, RankRecord
from perfmodel.emulation.windows import Windows
from perfmodel.graph.builder import MOST_DISTANCE, Dependency, ProgramBuilder, Tables
from perfmodel.graph.calls import aten_name, host_operator
from perfmodel.graph.operators import emulated_works
from perfmodel.graph.ops import Communication, HostPart, HostSpan, HostWork, MemoryBound, Op
from perfmodel.graph.program import Anchor, LaneKind, Program, Role

LOADED_AHEAD = 2
"""Batches that a loader with workers has ready."""
_ACCUMULATION = "AccumulateGrad"
"""How the name of a node ends that adds to the gradient of a parameter."""
_COPIES = frozenset({"host_to_device", "device_to_host"})
_LANE_WORDS = {LaneKind.COMPUTE: "compute", LaneKind.COPY: "copy"}
_Moment = tuple[int, int]
"""The end of a task: its iteration and its number."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the records were made for: the device's generation and the stack's launch latency."""

    major_capability: int
    launch_latency_ns: int


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """A rank's part in a collective: the work, the communicator slot, and the role."""

    work: Communication
    slot: int
    role: Role


_NOT_WRITTEN = CollectivePart(Communication(Collective(CollectiveKind.BARRIER, 0)), 0, Role.BOTH)
"""Any collective of an iteration that is laid out but not written."""


@dataclass(slots=True)
class _Thread:
    lane: int
    pieces: list[tuple[str, HostPart]] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Stream:
    """What its next task waits for, and its last task; both may be of an earlier iteration."""

    awaited: list[_Moment] = field(default_factory=list)
    last: _Moment | None = None

    @property
    def reached(self) -> list[_Moment]:
        """What must have ended before the stream is done with all work so far."""
        return [*self.awaited, *([] if self.last is None else [self.last])]


def build_program(
    windows: Windows, tables: Tables, machine: Machine, parts: Mapping[int, CollectivePart]
) -> Program:
    """The program of the chosen iteration of *windows*; *parts* are by number of the collective."""
    chosen = windows.chosen
    streams: dict[int, _Stream] = {}
    moments: dict[int, list[_Moment]] = {}
    # Earlier iterations are laid out too, for the events that this one waits for.
    for number in range(chosen):
        scratch = _Writer(windows.record, number, Tables(), machine, parts, streams, moments)
        scratch.write(windows.all[number])
    writer = _Writer(windows.record, chosen, tables, machine, parts, streams, moments)
    writer.write(windows.all[chosen])
    return writer.finish()


class _Writer:
    """Writes the calls of one iteration."""

    def __init__(
        self,
        record: RankRecord,
        number: int,
        tables: Tables,
        machine: Machine,
        parts: Mapping[int, CollectivePart],
        streams: dict[int, _Stream],
        moments: dict[int, list[_Moment]],
    ) -> None:
        self._record = record
        self._number = number
        self._machine = machine
        self._parts = parts
        self._streams = streams
        self._moments = moments
        self._builder = ProgramBuilder(tables)
        self._threads: dict[int, _Thread] = {}
        self._lane_of_stream: dict[int, int] = {}
        self._loader: int | None = None
        self._ops: dict[int, tuple[Op, ...]] = {}
        self._spans: dict[tuple[tuple[str, HostPart], ...], HostSpan] = {}
        self._late: list[tuple[int, _Moment]] = []
        self._current = self._thread(record.main_thread)

    def write(self, calls: Sequence[Call]) -> None:
        """Write all *calls*; those of one operator follow each other on their thread."""
        for lane_stream, use in _lane_kinds(calls, self._record.kinds).items():
            name = f"{_LANE_WORDS.get(use, 'communication')} stream {len(self._lane_of_stream)}"
            self._lane_of_stream[lane_stream] = self._builder.add_lane(name, use)
        place = 0
        while place < len(calls):
            kind, what, thread, stream, operator = calls[place]
            if kind in (CallType.KERNEL, CallType.NOTE):
                stop = place + 1
                while stop < len(calls) and _belongs(calls[stop], thread, operator):
                    stop += 1
                self._write_operator(calls[place:stop])
                place = stop
                continue
            self._write_other(CallType(kind), what, thread, stream)
            place += 1

    def finish(self) -> Program:
        """The program; host time after the last launch becomes a last task."""
        for thread in self._threads.values():
            self._current = thread
            if thread.pieces or thread.awaited:
                thread.pieces = thread.pieces or [("hand_over", HostPart.BETWEEN_OPERATORS)]
                self._write_pieces("end of iteration")
        for task, (window, awaited) in self._late:
            distance = self._number - window
            if awaited < self._builder.task_count and distance <= MOST_DISTANCE:
                self._builder.add_dependency(task, Dependency(awaited, distance=distance))
        return self._builder.build()

    def _write_operator(self, calls: Sequence[Call]) -> None:
        thread, operator = calls[0][2], calls[0][4]
        self._switch(thread)
        kinds, node = self._record.kinds, self._record.operator_names[operator]
        launches = [call for call in calls if call[0] == CallType.KERNEL]
        counted = launches or calls
        name = node or host_operator([aten_name(kinds[call[1]]["operator"]) for call in counted])
        pieces = self._current.pieces
        pieces.append((name, HostPart.BETWEEN_OPERATORS))
        if not launches:
            pieces.append((name, HostPart.BETWEEN_LAUNCHES))
            return
        pieces.append((name, HostPart.BEFORE_LAUNCH))
        is_first = True
        for _, kind, _, stream, _ in launches:
            kernel = aten_name(kinds[kind]["operator"])
            label = name if kernel == name else f"{name}/{kernel}"
            for op in self._ops_of(kind, name):
                if not is_first:
                    self._current.pieces.append((name, HostPart.BETWEEN_LAUNCHES))
                is_first = False
                self._current.pieces.append((name, HostPart.LAUNCH))
                launch = self._launch(label)
                lane = self._lane_of_stream[stream]
                self._follow(self._builder.add_task(lane, op, label=label, after=[launch]), stream)
        self._current.pieces.append((name, HostPart.AFTER_LAUNCH))

    def _write_other(self, kind: CallType, what: int, thread: int, stream: int) -> None:
        if kind is CallType.COLLECTIVE:
            self._switch(thread)
            self._communicate(what, stream)
        elif kind is CallType.RECORD:
            self._moments[what] = self._stream(stream).reached
        elif kind is CallType.AWAIT:
            self._stream(stream).awaited.extend(self._moments.get(what, ()))
        elif kind is CallType.LOAD:
            self._switch(thread)
            self._load(has_workers=bool(what))
        else:
            self._switch(thread)
            self._wait(self._awaited_by(kind, what, stream))

    def _launch(self, label: str) -> Dependency:
        return Dependency(self._write_pieces(label), lag_ns=self._machine.launch_latency_ns)

    def _communicate(self, number: int, stream: int) -> None:
        call = self._record.collectives[number]
        name = call["call"]
        part = self._parts.get(number, _NOT_WRITTEN)
        self._current.pieces += [
            (name, HostPart.BETWEEN_OPERATORS),
            (name, HostPart.BEFORE_LAUNCH),
            (name, HostPart.LAUNCH),
        ]
        label = f"{name} ({call['line']})"
        launch = self._launch(label)
        self._current.pieces.append((name, HostPart.AFTER_LAUNCH))
        task = self._builder.add_rendezvous(
            self._lane_of_stream[stream],
            part.work,
            label=label,
            slot=part.slot,
            role=part.role,
            after=[launch],
        )
        self._follow(task, stream)

    def _follow(self, task: int, stream: int) -> None:
        """Make *task* the last of its stream, behind what the stream waits for."""
        state = self._stream(stream)
        self._depend(task, state.awaited)
        state.awaited.clear()
        state.last = (self._number, task)

    def _depend(self, task: int, moments: Sequence[_Moment]) -> None:
        for window, awaited in dict.fromkeys(moments):
            if window == self._number:
                self._builder.add_dependency(task, awaited)
            else:
                self._late.append((task, (window, awaited)))

    def _wait(self, moments: Sequence[_Moment]) -> None:
        if self._current.pieces:
            self._write_pieces("synchronize")
        self._current.pieces.append(("synchronize", HostPart.WAIT))
        self._depend(self._write_pieces("synchronize"), moments)

    def _awaited_by(self, kind: CallType, what: int, stream: int) -> list[_Moment]:
        if kind is CallType.SYNC_STREAM:
            return self._stream(stream).reached
        if kind is CallType.SYNC_EVENT:
            return list(self._moments.get(what, ()))
        return [moment for state in self._streams.values() for moment in state.reached]

    def _load(self, *, has_workers: bool) -> None:
        name = "DataLoader.__next__"
        if not has_workers:
            self._current.pieces.append((name, HostPart.BEFORE_LAUNCH))
            return
        if self._loader is None:
            self._loader = self._builder.add_lane("loader", LaneKind.LOADER)
        span = HostSpan((HostWork(name, HostPart.BEFORE_LAUNCH),))
        load = self._builder.add_task(self._loader, span, label="load batch")
        if self._current.pieces:
            self._write_pieces("before the batch")
        self._current.awaited.append(load)
        self._current.pieces.append((name, HostPart.BETWEEN_OPERATORS))
        taken = self._write_pieces("take batch")
        # A batch can be loaded once there is room for it.
        room = Dependency(taken, anchor=Anchor.START, distance=LOADED_AHEAD)
        self._builder.add_dependency(load, room)

    def _switch(self, ident: int) -> None:
        thread = self._thread(ident)
        if thread is self._current:
            return
        self._current.pieces.append(("hand_over", HostPart.BETWEEN_OPERATORS))
        thread.awaited.append(self._write_pieces("hand-over"))
        self._current = thread

    def _write_pieces(self, label: str) -> int:
        thread = self._current
        key = tuple(thread.pieces)
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = HostSpan(tuple(HostWork(*piece) for piece in key))
        task = self._builder.add_task(thread.lane, span, label=label, after=thread.awaited)
        thread.pieces, thread.awaited = [], []
        return task

    def _ops_of(self, kind: int, node: str) -> list[Op]:
        """The kernels of a call by *node*."""
        if kind not in self._ops:
            call, capability = self._record.kinds[kind], self._machine.major_capability
            self._ops[kind] = emulated_works(call, major_capability=capability)
        # Gradients are summed up outside of what a compiler joins.
        is_sum = node.endswith(_ACCUMULATION)
        return [
            replace(op, operator="accumulate") if is_sum and isinstance(op, MemoryBound) else op
            for op in self._ops[kind]
        ]

    def _thread(self, ident: int) -> _Thread:
        thread = self._threads.get(ident)
        if thread is None:
            names = ("main thread", "autograd thread")
            count = len(self._threads)
            name = names[count] if count < len(names) else f"thread {count}"
            lane = self._builder.add_lane(name, LaneKind.HOST)
            thread = self._threads[ident] = _Thread(lane)
        return thread

    def _stream(self, stream: int) -> _Stream:
        return self._streams.setdefault(stream, _Stream())


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
        if found.get(stream) is not LaneKind.COMPUTE:
            is_stronger = stream not in found or use is not LaneKind.COPY
            found[stream] = use if is_stronger else found[stream]
    return found


def _belongs(call: Call, thread: int, operator: int) -> bool:
    return call[0] in (CallType.KERNEL, CallType.NOTE) and call[2:5:2] == (thread, operator)
