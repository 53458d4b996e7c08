"""Rank program: the tasks of one recorded rank, with what each waits for.

No recorded start enters, except the first call of a chain of host steps and device work that was
launched before the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.calls import OperatorCall
from perfmodel.graph.issuing import Issuer, OpenLane
from perfmodel.graph.job import Origin
from perfmodel.graph.ops import ESTIMATED, Communication, Fixed, HostPart, HostWork
from perfmodel.graph.program import PLAIN, Anchor, Int64s, LaneKind, Program, Role
from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.hold_back import HoldRule, can_be_held, exempt_tasks, hold_ratios
from perfmodel.recordings.host_chain import HostChain, StepKind
from perfmodel.recordings.rank_view import NO_OPERATOR, RankView
from perfmodel.recordings.stream_edges import Edge
from perfmodel.recordings.task_work import WorkReader

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
    collectives: tuple[CollectiveCall, ...]
    members: dict[int, Member] = field(default_factory=dict)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    executed: Mapping[int, OperatorCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """The program, and the recorded times and hold ratios of its tasks in program order.

    *place* has the number of each device task in the program.
    """

    program: Program
    start_ns: Int64s
    end_ns: Int64s
    hold_ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]
    place: Int64s
    recorded_starts: dict[str, int]


def build_rank_program(findings: RankFindings, builder: ProgramBuilder) -> RankProgram:
    """Write the tasks of a rank with *builder*."""
    writer = _RecordedRankWriter(findings, builder)
    writer.add_host_steps()
    writer.add_device_tasks()
    writer.connect_host_steps()
    writer.connect_device_tasks()
    return writer.as_recorded()


class _RecordedRankWriter(Issuer):
    """Adds all tasks before any dependency, because waits point both ways.

    The first task is the beginning of the window. Host steps follow, then device tasks.
    """

    def __init__(self, findings: RankFindings, program: ProgramBuilder) -> None:
        super().__init__(program)
        self.findings, self.view = findings, findings.view
        self.recorded_starts = {"first call of a chain": 0, "work launched before the window": 0}
        self.ranges, self.modules = self.view.ranges_of_calls(), self.view.modules_of_calls()
        window = self.add_lane("window", LaneKind.HOST)
        self.window = self.put(window, Fixed("window", 0), label="beginning of the window")
        self.first_step = self.window + 1
        self.first_device = self.first_step + len(findings.chain.steps)

    def _origin_of(self, operator: str, call: int) -> Origin:
        if call < 0:
            return Origin(operator)
        return Origin(operator, self.modules[call], span=self.ranges[call])

    def add_host_steps(self) -> None:
        """One lane per thread."""
        for step in self.findings.chain.steps:
            thread = self.lane(f"thread {step.thread}", LaneKind.HOST)
            work = HostWork(step.label, _HOST_PARTS[step.kind])
            op = Fixed(step.kind.value, step.duration_ns, work=work)
            self.put(thread, op, label=step.label, origin=self._origin_of(step.label, step.call))

    def add_device_tasks(self) -> None:
        """One lane per stream."""
        view, device, lanes = self.view, self.view.device, self._add_stream_lanes()
        reader = WorkReader(view, self.findings.executed)
        described = {call.task: call for call in self.findings.collectives}
        for task in range(len(device)):
            label, row = view.task_name(task), reader.operators[task]
            operator = label if row == NO_OPERATOR else view.trace.name_of(row)
            member, arrival = self.findings.members.get(task), self.findings.arrivals.get(task)
            length_ns = device.length_ns(task) if arrival is None else arrival.transfer_ns
            name, work, is_estimated = (
                COUNTED_WORK,
                reader.works.get(task),
                task in reader.estimated,
            )
            if member is not None or device.is_collective[task]:
                call, name, work, is_estimated = described.get(task), COLLECTIVE, None, False
                if call is not None and call.collective is not None:
                    work, is_estimated = Communication(call.collective), call.is_estimated
            member = member or Member(PLAIN, length_ns, Role.BOTH)
            self.put(
                lanes[int(device.stream[task])],
                Fixed(
                    f"{name}{ESTIMATED}" if is_estimated else name, member.duration_ns, work=work
                ),
                label=label,
                slot=member.slot,
                role=member.role,
                origin=self._origin_of(operator, int(device.call[task])),
            )

    def _add_stream_lanes(self) -> dict[int, OpenLane]:
        device = self.view.device
        lanes = {}
        for stream in np.unique(device.stream).tolist():
            chosen = device.stream == stream
            kind = LaneKind.COPY if device.is_copy[chosen].all() else LaneKind.COMPUTE
            if device.is_collective[chosen].mean() > 0.5:
                kind = LaneKind.COMMUNICATION
            lanes[stream] = self.add_lane(f"stream {stream & 0xFFFFFFFF}", kind)
        return lanes

    def connect_host_steps(self) -> None:
        """A step follows the one before it in its chain, and the tasks it waited for."""
        for task, step in enumerate(self.findings.chain.steps, self.first_step):
            if step.kind is StepKind.FIRST:
                self._pin(task, step.start_ns, "first call of a chain")
            if step.previous >= 0:
                self._connect(task, self.first_step + step.previous)
            for awaited in step.awaited:
                self._connect(task, self.first_device + awaited)

    def connect_device_tasks(self) -> None:
        """A device task follows its launch, tasks of other streams, and other ranks.

        If it is known how much later those arrived, it starts as much later than all that.
        """
        before, device, first = self.view.is_before_window(), self.view.device, self.first_device
        arrivals, releases = self.findings.arrivals, self.findings.chain.releases
        waits = {task: arrival.wait_ns or 0 for task, arrival in arrivals.items()}
        last_on: dict[int, int] = {}
        for task, stream in enumerate(device.stream.tolist()):
            number, wait_ns = first + task, waits.get(task, 0)
            if task in releases:
                release = releases[task]
                step, lag_ns = self.first_step + release.task, release.lag_ns + wait_ns
                self._connect(number, step, lag_ns, release.anchor)
            elif before[task]:
                start_ns = int(device.start_ns[task]) + wait_ns
                self._pin(number, start_ns, "work launched before the window")
            if wait_ns and stream in last_on:
                self._connect(number, last_on[stream], wait_ns)
            if task in arrivals and arrivals[task].wait_ns is None:
                previous, lag_ns = arrivals[task].previous, max(arrivals[task].lag_ns, 0)
                if previous is None:
                    self._connect(number, self.window, lag_ns, Anchor.START)
                else:
                    self._connect(number, first + previous, lag_ns)
            last_on[stream] = number
        for target, source in self.findings.edges:
            self._connect(first + target, first + source, waits.get(target, 0))

    def _connect(
        self, task: int, source: int, lag_ns: int = 0, anchor: Anchor = Anchor.END
    ) -> None:
        self.program.add_dependency(task, Dependency(source, anchor, lag_ns))

    def _pin(self, task: int, start_ns: int, reason: str) -> None:
        self.recorded_starts[reason] += 1
        self._connect(task, self.window, max(start_ns, 0), Anchor.START)

    def as_recorded(self) -> RankProgram:
        """The program and its columns in program order."""
        place: Int64s = self.program.place_of_tasks()
        device, steps = self.view.device, self.findings.chain.steps
        start_ns, end_ns = np.empty((2, len(place)), dtype=np.int64)
        start_ns[place] = [0, *(step.start_ns for step in steps), *device.start_ns]
        end_ns[place] = [0, *(step.end_ns for step in steps), *device.end_ns]
        ratios, held = np.zeros(len(place)), np.zeros(len(place), dtype=bool)
        of_device: Int64s = place[self.first_device :]
        ratios[of_device] = hold_ratios(self.view)
        held[of_device] = can_be_held(self.view)
        # A collective that waits for other ranks is on the device already.
        held[of_device[list(self.findings.arrivals)]] = False
        program = self.finish()
        held &= ~exempt_tasks(program, start_ns, end_ns, HoldRule(ratios, held))
        return RankProgram(program, start_ns, end_ns, ratios, held, of_device, self.recorded_starts)
