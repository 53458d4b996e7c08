"""Rank program: the tasks of one recorded rank, with what each waits for.

No recorded start enters, except the first call of a chain of host steps and device work that was
launched before the window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.extensions.recordings.call_paths import modules_of_calls, ranges_of_calls
from perfmodel.extensions.recordings.collective_calls import CollectiveKernel
from perfmodel.extensions.recordings.host_chain import KINDS, HostChain, StepKind, step_label
from perfmodel.extensions.recordings.operators.calls import OperatorCall
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView
from perfmodel.extensions.recordings.stream_edges import Edge
from perfmodel.extensions.recordings.stream_holds import (
    HoldRule,
    can_be_held,
    exempt_tasks,
    held_shares,
    waves_of,
)
from perfmodel.extensions.recordings.task_work import UNKNOWN, WorkReader
from perfmodel.extensions.recordings.unprofiled import find_excess_ns
from perfmodel.graph.builder import ProgramBuilder, TaskColumns
from perfmodel.graph.issuing import Issuer
from perfmodel.graph.job import Origin
from perfmodel.graph.ops import ESTIMATED, Communication, Fixed, HostPart, HostWork, Op, Work
from perfmodel.graph.program import PLAIN, Anchor, Dependency, Int64s, LaneKind, Program, Role
from traces.trace import Trace

_HOST_PARTS = {
    StepKind.FIRST: HostPart.BETWEEN_OPERATORS,
    StepKind.WORK: HostPart.BETWEEN_LAUNCHES,
    StepKind.LAUNCH: HostPart.LAUNCH,
    StepKind.WAIT: HostPart.WAIT,
    StepKind.ALLOCATION: HostPart.WAIT,
    StepKind.CALL: HostPart.BETWEEN_LAUNCHES,
}


COUNTED_WORK = "device work"
ESTIMATED_WORK = f"{COUNTED_WORK}{ESTIMATED}"
COLLECTIVE = "collective"
_DEVICE_NAMES = (COUNTED_WORK, ESTIMATED_WORK, COLLECTIVE, f"{COLLECTIVE}{ESTIMATED}")
"""Names of device tasks; a suffix marks work that is estimated and not counted from shapes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A device task's part in a rendezvous."""

    slot: int
    duration_ns: int
    role: Role


@dataclass(frozen=True, slots=True)
class Arrival:
    """Other ranks, not recorded, arrived *lag_ns* after the end of the collective *previous*.

    Then the transfer took *transfer_ns*. Without a *previous* the lag counts from the beginning of
    the window. *wait_ns*, once known, is how much later than this rank they arrived: they run the
    same program, so they arrive that much later in a changed job, too.
    """

    previous: int | None
    lag_ns: int
    transfer_ns: int
    wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankFindings:
    """Everything found in the trace of one rank."""

    view: RankView
    chain: HostChain
    edges: tuple[Edge, ...]
    collectives: tuple[CollectiveKernel, ...]
    members: dict[int, Member] = field(default_factory=dict)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    executed: Mapping[int, OperatorCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """The program, and the recorded times of its tasks in program order.

    *place* has the number of each device task in the program.
    """

    program: Program
    start_ns: Int64s
    end_ns: Int64s
    can_be_held: NDArray[np.bool_]
    excess_ns: Int64s
    place: Int64s
    recorded_starts: dict[str, int]


class RankWriter(Issuer):
    """Writes the tasks of a rank once, and connects them as often as findings change.

    The first task is the beginning of the window. Host steps follow, then device tasks. All tasks
    come before any dependency, because waits point both ways.
    """

    def __init__(self, findings: RankFindings, program: ProgramBuilder) -> None:
        super().__init__(program)
        view = findings.view
        self.chain, self.edges, self.device = findings.chain, findings.edges, view.device
        self.is_before = view.is_before_window()
        self.waves, self.can_be_held = waves_of(view), can_be_held(view)
        self.ranges, self.modules = ranges_of_calls(view), modules_of_calls(view)
        window = self.add_lane("window", LaneKind.HOST)
        self.excess_ns = find_excess_ns(view, self.chain)
        self.window = self.put(window, Fixed("window", 0), label="beginning of the window")
        self.first_step = self.window + 1
        self.first_device = self.first_step + len(self.chain.steps)
        self._add_host_steps(view.trace)
        self._add_device_tasks(findings)
        # The trace itself is needed no more, and it is the largest thing in memory.
        del self.ranges, self.modules

    def connected(self, arrivals: Mapping[int, Arrival]) -> RankProgram:
        """The program in which tasks wait for each other and for *arrivals* of other ranks."""
        self.program.drop_dependencies()
        starts = {
            "first call of a chain": self._connect_host_steps(),
            "work launched before the window": self._connect_device_tasks(arrivals),
        }
        return self._as_recorded(arrivals, starts)

    def _add_host_steps(self, trace: Trace) -> None:
        """One lane per thread."""
        steps = self.chain.steps
        threads, first = np.unique(steps.thread, return_index=True)
        lanes = dict.fromkeys(threads[np.argsort(first)].tolist(), -1)
        for thread in lanes:
            lanes[thread] = self.lane(f"thread {thread}", LaneKind.HOST).lane
        label = self._label_numbers(trace, steps.label.astype(np.int64))
        names = list(self.program.tables.label_index)

        work_of = cache(lambda kind, label: HostWork(names[label], _HOST_PARTS[KINDS[kind]]))
        words = [kind.value for kind in KINDS]

        def make(kind: int, label: int, duration_ns: int) -> Op:
            return Fixed(words[kind], duration_ns, work=work_of(kind, label))

        kind, plain = steps.kind.astype(np.int64), np.full(len(steps), PLAIN, dtype=np.int64)
        own = np.array([lanes[thread] for thread in threads.tolist()], dtype=np.int64)
        op = self._numbered(self.program.tables.lone_op, make, (kind, label, steps.duration_ns))
        lane, origin = own[np.searchsorted(threads, steps.thread)], self._origins(label, steps.call)
        self.program.add_columns(TaskColumns(lane, op, label, origin, plain, plain))

    def _add_device_tasks(self, findings: RankFindings) -> None:
        """One lane per stream."""
        view, device, lanes = findings.view, self.device, self._add_stream_lanes()
        reader = WorkReader(view, findings.executed)
        names = view.trace.columns.name
        label = self._label_numbers(view.trace, names[device.row].astype(np.int64))
        rows = reader.operators
        around = self._label_numbers(view.trace, names[rows[rows >= 0]].astype(np.int64))
        operator = label.copy()
        operator[rows != NO_OPERATOR] = around
        works: list[Work | None] = [*reader.works, None]
        number, kind = reader.number.copy(), np.where(reader.is_estimated, 1, 0)
        number[number == UNKNOWN] = len(works) - 1
        duration_ns = device.end_ns - device.start_ns
        slot = np.full(len(device), PLAIN, dtype=np.int64)
        role = np.full(len(device), int(Role.BOTH), dtype=np.int64)
        for task, arrival in findings.arrivals.items():
            duration_ns[task] = arrival.transfer_ns
        # A collective without metadata has unknown work.
        is_collective = device.is_collective.copy()
        is_collective[list(findings.members)] = True
        number[is_collective], kind[is_collective] = len(works) - 1, 2
        for call in findings.collectives:
            if call.collective is not None:
                kind[call.task] = 3 if call.is_estimated else 2
                number[call.task] = len(works)
                works.append(Communication(call.collective))
        for task, member in findings.members.items():
            slot[task], role[task] = member.slot, int(member.role)
            duration_ns[task] = member.duration_ns

        waves, filled = np.unique(self.waves, return_inverse=True)

        def make(kind: int, number: int, duration_ns: int, filled: int) -> Op:
            return Fixed(
                _DEVICE_NAMES[kind], duration_ns, work=works[number], waves=float(waves[filled])
            )

        lane = np.array(lanes[1], dtype=np.int64)[np.searchsorted(lanes[0], device.stream)]
        op = self._numbered(self.program.tables.lone_op, make, (kind, number, duration_ns, filled))
        origin = self._origins(operator, device.call)
        self.program.add_columns(TaskColumns(lane, op, label, origin, slot, role))

    def _label_numbers(self, trace: Trace, names: Int64s) -> Int64s:
        """The numbers among the labels of the job of *names* of the trace or of steps."""
        distinct, place = np.unique(names, return_inverse=True)
        tables = self.program.tables
        numbers = [tables.label(step_label(trace, name)) for name in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[place]

    def _origins(self, operators: Int64s, calls: Int64s) -> Int64s:
        """The origin of each task: its operator, by the label's number, and its call, or -1."""
        names, tables = list(self.program.tables.label_index), self.program.tables
        modules, ranges = self.modules.texts, self.ranges.texts

        def make(operator: int, module: int, span: int) -> Origin:
            if module < 0:
                return Origin(names[operator])
            return Origin(names[operator], modules[module], span=ranges[span])

        around = [
            np.where(calls < 0, -1, paths.number[calls] if len(paths.number) else -1)
            for paths in (self.modules, self.ranges)
        ]
        return self._numbered(
            lambda origin: tables.origin(origin, ""), make, (operators, around[0], around[1])
        )

    @staticmethod
    def _numbered(
        number_of: Callable[[Any], int],
        make: Callable[..., Any],
        columns: tuple[Int64s, ...],
    ) -> Int64s:
        """The number of what *make* makes of each row of *columns*; equal rows are made once."""
        key = np.zeros(len(columns[0]), dtype=np.int64)
        for column in columns:
            values, place = np.unique(column, return_inverse=True)
            # Numbers of earlier columns are renumbered, so that the product never overflows.
            key = np.unique(key, return_inverse=True)[1] * len(values) + place
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        rows = zip(*(column[first].tolist() for column in columns), strict=True)
        return np.array([number_of(make(*row)) for row in rows], dtype=np.int64)[place]

    def _add_stream_lanes(self) -> tuple[Int64s, list[int]]:
        """Streams in order, and the lane of each."""
        device = self.device
        streams, lanes = np.unique(device.stream), []
        for stream in streams.tolist():
            chosen = device.stream == stream
            kind = LaneKind.COPY if device.is_copy[chosen].all() else LaneKind.COMPUTE
            if device.is_collective[chosen].mean() > 0.5:
                kind = LaneKind.COMMUNICATION
            lanes.append(self.add_lane(f"stream {stream & 0xFFFFFFFF}", kind).lane)
        return streams, lanes

    def _connect_host_steps(self) -> int:
        """A step follows the one before it in its chain, and the tasks it waited for.

        The number of steps at their recorded start.
        """
        steps = self.chain.steps
        first = steps.places_of(StepKind.FIRST)
        self._pin(self.first_step + first, steps.start_ns[first])
        followers = np.flatnonzero(steps.previous >= 0)
        sources = self.first_step + steps.previous[followers]
        self.program.add_dependencies(self.first_step + followers, sources)
        for step, tasks in steps.awaited.items():
            for awaited in tasks:
                self.program.add_dependency(self.first_step + step, self.first_device + awaited)
        return len(first)

    def _connect_device_tasks(self, arrivals: Mapping[int, Arrival]) -> int:
        """A device task follows its launch, tasks of other streams, and other ranks.

        If it is known how much later those arrived, it starts as much later than all that. The
        number of tasks at their recorded start.
        """
        device, first, releases = self.device, self.first_device, self.chain.releases
        waits_ns = np.zeros(len(device), dtype=np.int64)
        for task, arrival in arrivals.items():
            waits_ns[task] = arrival.wait_ns or 0
            if arrival.wait_ns is None:
                lag_ns = max(arrival.lag_ns, 0)
                if arrival.previous is None:
                    since = Dependency(self.window, Anchor.START, lag_ns)
                else:
                    since = Dependency(first + arrival.previous, Anchor.END, lag_ns)
                self.program.add_dependency(first + task, since)
        launched = np.flatnonzero(releases.step >= 0)
        self.program.add_dependencies(
            first + launched,
            self.first_step + releases.step[launched],
            lag_ns=releases.lag_ns[launched] + waits_ns[launched],
            anchor=releases.anchor[launched],
        )
        pinned = np.flatnonzero(self.is_before & (releases.step < 0))
        self._pin(first + pinned, device.start_ns[pinned] + waits_ns[pinned])
        gaps_ns = np.maximum(releases.gap_ns, waits_ns)
        for stream in np.unique(device.stream).tolist():
            own = np.flatnonzero(device.stream == stream)
            later = np.flatnonzero(gaps_ns[own[1:]] > 0) + 1
            before, late = first + own[later - 1], own[later]
            self.program.add_dependencies(first + late, before, lag_ns=gaps_ns[late])
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        self.program.add_dependencies(
            first + edges[:, 0], first + edges[:, 1], lag_ns=waits_ns[edges[:, 0]]
        )
        return len(pinned)

    def _pin(self, tasks: Int64s, start_ns: Int64s) -> None:
        """Let *tasks* start when they did in the recording."""
        windows = np.full(len(tasks), self.window, dtype=np.int64)
        lag_ns = np.maximum(start_ns, 0)
        self.program.add_dependencies(tasks, windows, lag_ns=lag_ns, anchor=Anchor.START)

    def _as_recorded(self, arrivals: Mapping[int, Arrival], starts: dict[str, int]) -> RankProgram:
        """The program and its columns in program order."""
        place: Int64s = self.program.place_of_tasks()
        device, steps = self.device, self.chain.steps
        start_ns, end_ns = np.empty((2, len(place)), dtype=np.int64)
        start_ns[place] = np.concatenate([[0], steps.start_ns, device.start_ns])
        end_ns[place] = np.concatenate([[0], steps.end_ns, device.end_ns])
        ratios, held = np.zeros(len(place)), np.zeros(len(place), dtype=bool)
        excess_ns = np.zeros(len(place), dtype=np.int64)
        excess_ns[place[self.first_step : self.first_device]] = self.excess_ns
        of_device: Int64s = place[self.first_device :]
        excess_ns[of_device[list(arrivals)]] = [one.wait_ns or 0 for one in arrivals.values()]
        ratios[of_device] = held_shares(self.waves)
        held[of_device] = self.can_be_held
        # A collective that waits for other ranks is on the device already.
        held[of_device[list(arrivals)]] = False
        program = self.finish()
        held &= ~exempt_tasks(program, start_ns, end_ns, HoldRule(ratios, held))
        return RankProgram(program, start_ns, end_ns, held, excess_ns, of_device, starts)
