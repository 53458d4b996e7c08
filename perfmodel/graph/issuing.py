"""Issuing: what host threads call becomes tasks on threads and streams.

A host thread spends T1 and T2 before an operator's first launch, T4 in each launch, T5 between
launches and T3 after the last; an operator that launches nothing costs T1 and T5. Host time up to
a launch is one task. A kernel follows its launch, the kernel before it on its stream, and the tasks
that its stream waits for. A synchronisation is a host task that follows the tasks it waits for.
When another thread continues, the first one hands over and waits. The launch queue is unbounded.

A captured iteration is one launch, and one more after each synchronisation; operators inside it
cost the host nothing. Where a trace states host times, they are put on lanes as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.graph.builder import ProgramBuilder
from perfmodel.graph.job import Origin
from perfmodel.graph.ops import HostPart, HostSpan, HostWork, Op
from perfmodel.graph.program import PLAIN, Anchor, Dependency, LaneKind, Program, Role

# Words, because enumerations are slow to hash.
T1, T2, T3, T4, T5, WAIT = (part.value for part in HostPart)
LOADED_AHEAD = 2
"""Batches that a data loader keeps ready."""


@dataclass(slots=True)
class OpenLane:
    """A lane while its tasks are written: what its next task waits for, and its last task.

    A host thread also has time *spent* that is not yet in a task, as operators and parts.
    """

    lane: int
    awaited: list[Dependency | int] = field(default_factory=list)
    last_task: Dependency | int | None = None
    spent: list[tuple[str, str]] = field(default_factory=list)

    def reached(self) -> list[Dependency | int]:
        """What must have ended before the lane is done with all work so far: a CUDA event."""
        return [*self.awaited, *([] if self.last_task is None else [self.last_task])]


class Issuer:
    """Writes calls in the order in which host threads make them.

    *thread* is the one that calls now. A kernel can start *latency_ns* after its launch.
    """

    def __init__(
        self, program: ProgramBuilder, *, latency_ns: int = 0, is_captured: bool = False
    ) -> None:
        self.program = program
        self.thread = OpenLane(-1)
        self._lanes: list[OpenLane] = []
        self._threads: list[OpenLane] = []
        self._named: dict[str, OpenLane] = {}
        self._latency_ns = latency_ns
        self._is_captured = is_captured
        self._graph: Dependency | None = None
        self._operator = ""
        self._has_launched = False
        self._spans: dict[tuple[tuple[str, str], ...], HostSpan] = {}

    def add_lane(self, name: str, kind: LaneKind = LaneKind.COMMUNICATION) -> OpenLane:
        """Add a device stream or a host thread; the first thread is the one that begins."""
        lane = OpenLane(self.program.add_lane(name, kind))
        self._lanes.append(lane)
        if kind is LaneKind.HOST:
            self.thread = self.thread if self._threads else lane
            self._threads.append(lane)
        return lane

    def lane(self, name: str, kind: LaneKind) -> OpenLane:
        """The lane called *name*, added if it is new."""
        if name not in self._named:
            self._named[name] = self.add_lane(name, kind)
        return self._named[name]

    def put(
        self,
        lane: OpenLane,
        op: Op,
        *,
        label: str,
        slot: int = PLAIN,
        role: Role = Role.BOTH,
        origin: Origin | None = None,
    ) -> int:
        """Append a task to *lane*, after everything that the lane waits for."""
        task = self.program.add_task(
            lane.lane, op, label=label, slot=slot, role=role, origin=origin, after=lane.awaited
        )
        lane.awaited, lane.last_task = [], task
        return task

    def begin(self, operator: str) -> None:
        """Begin *operator*, which launches something."""
        self._operator, self._has_launched = operator, False
        self.spend((operator, T1), (operator, T2))

    def launch(
        self,
        *kernels: Op,
        stream: OpenLane,
        label: str,
        slot: int = PLAIN,
        role: Role = Role.BOTH,
        origin: Origin | None = None,
    ) -> int:
        """Launch *kernels* on *stream* by one call of the current operator; the last task."""
        if self._has_launched:
            self.spend((self._operator, T5))
        self._has_launched = True
        task, start = -1, self._start(label, origin)
        for kernel in kernels:
            stream.awaited.insert(0, start)
            task = self.put(stream, kernel, label=label, slot=slot, role=role, origin=origin)
        return task

    def capture(self, *, is_captured: bool) -> None:
        """From here on, operators belong to one captured graph, or are launched one by one."""
        self._is_captured, self._graph = is_captured, None

    def end(self) -> None:
        """End the current operator."""
        self.spend((self._operator, T3))

    def note(self, *operators: str) -> None:
        """Issue *operators* that launch nothing."""
        for operator in operators:
            self.spend((operator, T1), (operator, T5))

    def spend(self, *times: tuple[str, str]) -> None:
        """Let the current thread spend *times*, given as operators and parts."""
        if not self._is_captured:
            self.thread.spent += times

    def hold(self, lane: OpenLane, *awaited: Dependency | int | None) -> None:
        """Make the next task of *lane* wait for those *awaited* that there are."""
        for task in awaited:
            if task is not None and task not in lane.awaited:
                lane.awaited.append(task)

    def switch(self, thread: OpenLane, *, label: str, origin: Origin | None = None) -> None:
        """Let *thread* continue where the current one hands over and waits."""
        if thread is not self.thread and not self._is_captured:
            self.spend(("hand_over", T1))
            thread.awaited.append(self.write_spent(label, origin))
            self.thread = thread

    def synchronize(
        self, *awaited: Dependency | int | None, label: str, origin: Origin | None = None
    ) -> int:
        """Make the current thread wait for *awaited*."""
        if self.thread.spent:
            self.write_spent(label, origin)
        self.thread.spent.append(("synchronize", WAIT))
        self.hold(self.thread, *awaited)
        self._graph = None
        return self.write_spent(label, origin)

    def write_spent(self, label: str, origin: Origin | None = None) -> int:
        """Write the time that the current thread has spent as one task."""
        key = tuple(self.thread.spent)
        span = self._spans.get(key)
        if span is None:
            span = HostSpan(tuple(HostWork(operator, HostPart(part)) for operator, part in key))
            self._spans[key] = span
        thread = self.thread
        task = self.program.add_task(
            thread.lane, span, label=label, origin=origin, after=thread.awaited
        )
        thread.spent, thread.awaited = [], []
        return task

    def make_room(self, load: int, taken: int) -> None:
        """Let a loader's task *load* wait until there is room: a batch leaves it with *taken*."""
        room = Dependency(taken, anchor=Anchor.START, distance=LOADED_AHEAD)
        self.program.add_dependency(load, room)

    def finish(self) -> Program:
        """The program; host time after the last launch becomes a last task."""
        for thread in self._threads:
            if thread.spent or thread.awaited:
                self.thread = thread
                thread.spent = thread.spent or [("hand_over", T1)]
                self.write_spent("end of iteration")
        return self.program.build()

    def state(self) -> list[list[Any]]:
        """Everything that decides what is written next, as lists; a thread is a word."""
        cells: list[list[Any]] = [[str(self.thread.lane), self._graph]]
        for lane in self._lanes:
            cells += (lane.spent, lane.awaited, [lane.last_task])
        return cells

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Continue from what `state` returned."""
        rest = iter(cells)
        thread, self._graph = next(rest)
        self.thread = next(lane for lane in self._lanes if lane.lane == int(thread))
        for lane in self._lanes:
            lane.spent, lane.awaited, (lane.last_task,) = next(rest), next(rest), next(rest)

    def _start(self, label: str, origin: Origin | None) -> Dependency:
        """What kernels launched now follow: a launch of their own, or that of their graph."""
        if self._graph is not None:
            return self._graph
        if self._is_captured:
            self.thread.spent.append(("graph_launch", T4))
            label, origin = "graph/launch", None
        else:
            self.thread.spent.append((self._operator, T4))
            label = label if origin is None else origin.operator
        start = Dependency(self.write_spent(label, origin), lag_ns=self._latency_ns)
        self._graph = start if self._is_captured else None
        return start
