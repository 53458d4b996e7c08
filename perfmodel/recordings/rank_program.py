"""Rank program: the tasks of one recorded rank, with what each waits for.

No recorded start enters, except the first call of a chain of host steps and
device work that was launched before the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.job import Origin
from perfmodel.graph.ops import ESTIMATED, Communication, Fixed, HostPart, HostWork
from perfmodel.graph.program import Anchor, LaneKind, Program, Role
from perfmodel.recordings.collective_calls import CollectiveCall
from perfmodel.recordings.hold_back import HoldRule, can_be_held, exempt_tasks, hold_ratios
from perfmodel.recordings.host_chain import HostChain, HostStep, StepKind
from perfmodel.recordings.operator_calls import OperatorCall
from perfmodel.recordings.rank_view import NO_OPERATOR, Int64s, RankView
from perfmodel.recordings.stream_edges import StreamEdge
from perfmodel.recordings.work_of_rows import FoundWork, WorkReader, WorkSource

_HOST_PARTS = {
    StepKind.FIRST: HostPart.BETWEEN_OPERATORS,
    StepKind.WORK: HostPart.BETWEEN_LAUNCHES,
    StepKind.LAUNCH: HostPart.LAUNCH,
    StepKind.WAIT: HostPart.WAIT,
    StepKind.ALLOCATION: HostPart.WAIT,
    StepKind.CALL: HostPart.BETWEEN_LAUNCHES,
}


@dataclass(frozen=True, slots=True)
class Member:
    """A device task's part in a rendezvous."""

    slot: int
    duration_ns: int
    role: Role


@dataclass(frozen=True, slots=True)
class Arrival:
    """Other ranks, not recorded, came *lag_ns* after the collective *previous* had ended.

    Then the transfer took *transfer_ns*. Without a *previous* the lag counts from the beginning of
    the window. Once it is known how much later than this rank that was, *wait_ns* stands for it:
    they run the same program, so they come that much later whatever is changed.
    """

    previous: int | None
    lag_ns: int
    transfer_ns: int
    wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankFindings:
    """Everything that was found out about one rank."""

    view: RankView
    chain: HostChain
    edges: tuple[StreamEdge, ...]
    collectives: tuple[CollectiveCall, ...]
    members: dict[int, Member] = field(default_factory=dict)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    executed: Mapping[int, OperatorCall] = field(default_factory=dict)


COUNTED_WORK = "device work"
ESTIMATED_WORK = f"{COUNTED_WORK}{ESTIMATED}"
COLLECTIVE = "collective"
ESTIMATED_COLLECTIVE = f"{COLLECTIVE}{ESTIMATED}"
"""Names of device tasks whose work was counted from shapes, and of those where it is estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """The program, and the recorded times and hold ratios of its tasks in program order."""

    program: Program
    start_ns: Int64s
    end_ns: Int64s
    hold_ratio: NDArray[np.float64]
    can_be_held: NDArray[np.bool_]
    place_of_device_task: Int64s
    recorded_starts: dict[str, int]


def build_rank_program(findings: RankFindings, builder: ProgramBuilder) -> RankProgram:
    """Write the tasks of a rank with *builder*."""
    writer = _Writer(findings, builder)
    writer.add_host_steps()
    writer.add_device_tasks()
    writer.connect_host_steps()
    writer.connect_device_tasks()
    return writer.finish()


class _Writer:
    """Adds tasks first and dependencies then, because waits point both ways."""

    def __init__(self, findings: RankFindings, builder: ProgramBuilder) -> None:
        self.findings, self.builder = findings, builder
        self.times: list[tuple[int, int]] = []
        self.recorded_starts = {"first call of a chain": 0, "work launched before the window": 0}
        self.spans = findings.view.ranges_of_calls()
        self.modules = findings.view.modules_of_calls()
        self.origin = self._add_origin()
        self.of_step: list[int] = []
        self.of_device: list[int] = []

    def _add_origin(self) -> int:
        lane = self.builder.add_lane("window", LaneKind.HOST)
        self.times.append((0, 0))
        return self.builder.add_task(lane, Fixed("window", 0), label="beginning of the window")

    def add_host_steps(self) -> None:
        """One lane a thread."""
        lanes: dict[int, int] = {}
        for step in self.findings.chain.steps:
            if step.thread not in lanes:
                lanes[step.thread] = self.builder.add_lane(f"thread {step.thread}", LaneKind.HOST)
            op = Fixed(
                step.kind.value,
                step.duration_ns,
                work=HostWork(step.label, _HOST_PARTS[step.kind]),
            )
            origin = Origin(step.label, self.modules[step.call], span=self.spans[step.call])
            self.of_step.append(
                self.builder.add_task(lanes[step.thread], op, label=step.label, origin=origin)
            )
            self.times.append((step.start_ns, step.end_ns))

    def add_device_tasks(self) -> None:
        """One lane a stream."""
        view, lanes = self.findings.view, self._add_stream_lanes()
        reader = WorkReader(view, self.findings.executed)
        described = {call.task: call for call in self.findings.collectives}
        for task in range(len(view.device)):
            label = view.trace.name_of(int(view.device.row[task]))
            lane = lanes[int(view.device.stream[task])]
            start_ns, end_ns = int(view.device.start_ns[task]), int(view.device.end_ns[task])
            self.times.append((start_ns, end_ns))
            member = self.findings.members.get(task)
            origin = self._origin_of(reader, task, label)
            if member is not None:
                op = _collective_op(member.duration_ns, described.get(task))
                self.of_device.append(
                    self.builder.add_rendezvous(
                        lane, op, label=label, slot=member.slot, role=member.role, origin=origin
                    )
                )
            else:
                arrival = self.findings.arrivals.get(task)
                length_ns = end_ns - start_ns if arrival is None else arrival.transfer_ns
                if view.device.is_collective[task]:
                    op = _collective_op(length_ns, described.get(task))
                else:
                    op = _recorded_op(length_ns, reader.found(task))
                self.of_device.append(self.builder.add_task(lane, op, label=label, origin=origin))

    def _origin_of(self, reader: WorkReader, task: int, label: str) -> Origin:
        row, call = reader.operator_of(task), int(self.findings.view.device.call[task])
        operator = label if row == NO_OPERATOR else self.findings.view.trace.name_of(row)
        if call < 0:
            return Origin(operator)
        return Origin(operator, self.modules[call], span=self.spans[call])

    def _add_stream_lanes(self) -> dict[int, int]:
        device = self.findings.view.device
        lanes = {}
        for stream in np.unique(device.stream).tolist():
            chosen = device.stream == stream
            if device.is_collective[chosen].mean() > 0.5:
                kind = LaneKind.COMMUNICATION
            else:
                kind = LaneKind.COPY if device.is_copy[chosen].all() else LaneKind.COMPUTE
            lanes[stream] = self.builder.add_lane(f"stream {stream & 0xFFFFFFFF}", kind)
        return lanes

    def connect_host_steps(self) -> None:
        """A step follows the one before it in its chain, and what it waited for."""
        for step, task in zip(self.findings.chain.steps, self.of_step, strict=True):
            self._connect_step(step, task)

    def _connect_step(self, step: HostStep, task: int) -> None:
        if step.kind is StepKind.FIRST:
            self._pin(task, step.start_ns, "first call of a chain")
        if step.previous >= 0:
            self.builder.add_dependency(task, self.of_step[step.previous])
        for awaited in step.awaited:
            self.builder.add_dependency(task, self.of_device[awaited])

    def connect_device_tasks(self) -> None:
        """A device task follows its launch, what other streams had to do, and other ranks.

        Where it is known how much later those came, it starts as much later than all that.
        """
        before = self.findings.view.is_before_window()
        device = self.findings.view.device
        arrivals = self.findings.arrivals
        waits = {task: arrival.wait_ns or 0 for task, arrival in arrivals.items()}
        last_on: dict[int, int] = {}
        for task, (number, stream) in enumerate(
            zip(self.of_device, device.stream.tolist(), strict=True)
        ):
            release, wait_ns = self.findings.chain.releases.get(task), waits.get(task, 0)
            if release is not None:
                anchor = Anchor.START if release.is_from_start else Anchor.END
                step = self.of_step[release.step]
                self._wait_for(number, step, release.lag_ns + wait_ns, anchor)
            elif before[task]:
                start_ns = int(device.start_ns[task]) + wait_ns
                self._pin(number, start_ns, "work launched before the window")
            if wait_ns and stream in last_on:
                self._wait_for(number, self.of_device[last_on[stream]], wait_ns)
            if task in arrivals and arrivals[task].wait_ns is None:
                self._connect_arrival(number, arrivals[task])
            last_on[stream] = task
        for edge in self.findings.edges:
            source, target = self.of_device[edge.source], self.of_device[edge.target]
            self._wait_for(target, source, waits.get(edge.target, 0))

    def _wait_for(self, task: int, source: int, lag_ns: int, anchor: Anchor = Anchor.END) -> None:
        self.builder.add_dependency(task, Dependency(source, anchor, lag_ns))

    def _connect_arrival(self, number: int, arrival: Arrival) -> None:
        lag_ns = max(arrival.lag_ns, 0)
        if arrival.previous is None:
            self._wait_for(number, self.origin, lag_ns, Anchor.START)
        else:
            self._wait_for(number, self.of_device[arrival.previous], lag_ns)

    def _pin(self, task: int, start_ns: int, reason: str) -> None:
        self.recorded_starts[reason] += 1
        pinned = Dependency(self.origin, Anchor.START, max(start_ns, 0))
        self.builder.add_dependency(task, pinned)

    def finish(self) -> RankProgram:
        """The program and its columns in program order."""
        place: Int64s = self.builder.place_of_tasks()
        times = np.array(self.times, dtype=np.int64)
        ordered = np.empty_like(times)
        ordered[place] = times
        ratios, held = np.zeros(len(times)), np.zeros(len(times), dtype=bool)
        of_device = np.array(self.of_device, dtype=np.int64)
        if len(of_device):
            ratios[place[of_device]] = hold_ratios(self.findings.view)
            held[place[of_device]] = can_be_held(self.findings.view)
        # A collective that waits for other ranks is on the device already.
        arriving = np.array([self.of_device[t] for t in self.findings.arrivals], dtype=np.int64)
        held[place[arriving]] = False
        program = self.builder.build()
        rule = HoldRule(ratios, held)
        held &= ~exempt_tasks(program, ordered[:, 0], ordered[:, 1], rule)
        return RankProgram(
            program=program,
            start_ns=ordered[:, 0],
            end_ns=ordered[:, 1],
            hold_ratio=ratios,
            can_be_held=held,
            place_of_device_task=place[of_device],
            recorded_starts=self.recorded_starts,
        )


def _recorded_op(length_ns: int, found: FoundWork | None) -> Fixed:
    if found is None:
        return Fixed(COUNTED_WORK, length_ns)
    name = COUNTED_WORK if found.source is WorkSource.SHAPES else ESTIMATED_WORK
    return Fixed(name, length_ns, work=found.work)


def _collective_op(length_ns: int, call: CollectiveCall | None) -> Fixed:
    if call is None or call.collective is None:
        return Fixed(COLLECTIVE, length_ns)
    name = ESTIMATED_COLLECTIVE if call.is_estimated else COLLECTIVE
    return Fixed(name, length_ns, work=Communication(call.collective))


def places(program: RankProgram, tasks: Sequence[int]) -> Int64s:
    """Where device *tasks* stand in the program."""
    found: Int64s = program.place_of_device_task[np.array(tasks, dtype=np.int64)]
    return found
