"""EagerWriter: one rank's iteration, issued operator by operator as eager PyTorch does.

A host thread spends T2 before an operator's first launch, T4 in each launch,
T5 between launches, T3 after the last and T1 before the next operator. Pieces
up to a launch are one host task, and the kernel depends on that task. The
launch queue is unbounded here: the host may run ahead as far as it can.

An iteration captured as a CUDA graph is one launch, and another after every
moment that the host waits for the device; operators inside cost the host nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import Collective
from perfmodel.base.provenance import Provenance
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import Communication, Fixed, HostPart, HostSpan, HostWork, Op
from perfmodel.graph.program import LaneKind, Program
from perfmodel.stacks.stack import Execution, SoftwareStack

_PARTS = tuple(HostPart)
_T1, _T2, _T3 = (
    _PARTS.index(part)
    for part in (HostPart.BETWEEN_OPERATORS, HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH)
)
_T4, _T5, _WAIT = (
    _PARTS.index(part) for part in (HostPart.LAUNCH, HostPart.BETWEEN_LAUNCHES, HostPart.WAIT)
)


@dataclass(frozen=True, slots=True)
class Issuing:
    """How launches get to the device: how late a kernel may start, and whether captured.

    *iteration_ns* is what the host spends before anything of an iteration is launched.
    """

    launch_latency_ns: int = 0
    is_captured: bool = False
    iteration_ns: int = 0


def issuing_under(stack: SoftwareStack) -> Issuing:
    """How *stack* issues kernels."""
    return Issuing(
        launch_latency_ns=round(stack.host.launch_latency_ns),
        is_captured=stack.execution is Execution.CUDA_GRAPH,
        iteration_ns=round(stack.host.iteration_ns),
    )


@dataclass(slots=True)
class HostThread:
    """A host thread while its tasks are written: pieces not yet in a task, and what they await."""

    lane: int
    pieces: list[tuple[str, int]] = field(default_factory=list)
    awaited: list[Dependency | int] = field(default_factory=list)


@dataclass(slots=True)
class Stream:
    """A device stream while its tasks are written: what its next task must wait for."""

    lane: int
    awaited: list[Dependency | int] = field(default_factory=list)
    last_task: int | None = None


EAGER = Issuing()


class EagerWriter:
    """Writes operators to host threads and their kernels to streams."""

    def __init__(self, program: ProgramBuilder, issuing: Issuing = EAGER) -> None:
        self._program = program
        self._issuing = issuing
        self._graph: Dependency | None = None
        self._spans: dict[tuple[tuple[str, int], ...], HostSpan] = {}
        self._threads: dict[str, HostThread] = {}
        self._streams: list[Stream] = []
        self.main = self.add_thread("main thread")
        self.autograd = self.add_thread("autograd thread")
        self.compute = self.add_stream("compute stream", LaneKind.COMPUTE)
        self._thread = self.main
        if issuing.iteration_ns:
            floor = Fixed("iteration", issuing.iteration_ns, Provenance.EXTRAPOLATED)
            program.add_task(self.main.lane, floor, label="host/start of iteration")

    def add_thread(self, name: str) -> HostThread:
        """Add a host thread."""
        thread = HostThread(self._program.add_lane(name, LaneKind.HOST))
        self._threads[name] = thread
        return thread

    def add_stream(self, name: str, kind: LaneKind) -> Stream:
        """Add a device stream."""
        stream = Stream(self._program.add_lane(name, kind))
        self._streams.append(stream)
        return stream

    def state(self) -> list[list[Any]]:
        """What threads and streams are in the middle of, as `Repetition` wants it."""
        current = next(name for name, one in self._threads.items() if one is self._thread)
        cells: list[list[Any]] = [[current, self._graph]]
        for thread in self._threads.values():
            cells += (thread.pieces, thread.awaited)
        for stream in self._streams:
            cells += (stream.awaited, [stream.last_task])
        return cells

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Go on from what `state` said."""
        rest = iter(cells)
        current, self._graph = next(rest)
        self._thread = self._threads[current]
        for thread in self._threads.values():
            thread.pieces, thread.awaited = next(rest), next(rest)
        for stream in self._streams:
            stream.awaited, (stream.last_task,) = next(rest), next(rest)

    def run(
        self,
        operator: str,
        kernels: Sequence[Op],
        *,
        label: str,
        stream: Stream | None = None,
    ) -> int:
        """Issue *operator* with its *kernels* and return its last task."""
        stream = stream or self.compute
        self._spend((operator, _T1), (operator, _T2))
        task = -1
        for number, kernel in enumerate(kernels):
            if number:
                self._spend((operator, _T5))
            launch = self._launch(operator, label)
            task = self._program.add_task(
                stream.lane, kernel, label=label, after=[launch, *stream.awaited]
            )
            stream.awaited.clear()
        self._spend((operator, _T3))
        stream.last_task = task
        return task

    def note(self, operator: str) -> None:
        """Issue an *operator* that launches nothing."""
        self._spend((operator, _T1), (operator, _T5))

    def communicate(
        self,
        operator: str,
        collective: Collective,
        *,
        label: str,
        stream: Stream,
        slot: int,
        is_behind_compute: bool = True,
    ) -> int:
        """Issue a collective on *stream*, as a rule behind all compute issued so far."""
        self._spend((operator, _T1), (operator, _T2))
        launch = self._launch(operator, label)
        self._spend((operator, _T3))
        after: list[Dependency | int] = [launch, *stream.awaited]
        if is_behind_compute and self.compute.last_task is not None:
            after.append(self.compute.last_task)
        task = self._program.add_rendezvous(
            stream.lane,
            Communication(collective),
            label=label,
            slot=slot,
            after=after,
        )
        stream.awaited.clear()
        stream.last_task = task
        return task

    def hold(self, stream: Stream, awaited: Iterable[Dependency | int]) -> None:
        """Let the next task of *stream* wait for *awaited*, as a stream wait does."""
        stream.awaited.extend(awaited)

    def hand_over(self, thread: HostThread, *, label: str) -> None:
        """Let *thread* go on where the current one stops and waits."""
        if thread is self._thread or self._issuing.is_captured:
            return
        self._thread.pieces.append(("hand_over", _T1))
        thread.awaited.append(self._write_pieces(f"{label} hand-over"))
        self._thread = thread

    def block(self, awaited: Iterable[Dependency | int], *, label: str) -> int:
        """Let the current thread wait for *awaited*, as a synchronising call does."""
        if self._thread.pieces:
            self._write_pieces(label)
        self._thread.pieces.append(("synchronize", _WAIT))
        self._thread.awaited.extend(awaited)
        self._graph = None
        return self._write_pieces(label)

    def finish(self) -> Program:
        """The program; host time after the last launch becomes a last task."""
        for thread in (self.autograd, self.main):
            self._thread = thread
            if thread.pieces or thread.awaited:
                thread.pieces = thread.pieces or [("hand_over", _T1)]
                self._write_pieces("end of iteration")
        return self._program.build()

    def _spend(self, *pieces: tuple[str, int]) -> None:
        if not self._issuing.is_captured:
            self._thread.pieces += pieces

    def _launch(self, operator: str, label: str) -> Dependency:
        if self._graph is not None:
            return self._graph
        is_captured = self._issuing.is_captured
        self._thread.pieces.append(("graph_launch" if is_captured else operator, _T4))
        task = self._write_pieces("graph/launch" if is_captured else label)
        launch = Dependency(task, lag_ns=self._issuing.launch_latency_ns)
        if is_captured:
            self._graph = launch
        return launch

    def _write_pieces(self, label: str) -> int:
        thread = self._thread
        key = tuple(thread.pieces)
        span = self._spans.get(key)
        if span is None:
            span = HostSpan(tuple(HostWork(operator, _PARTS[part]) for operator, part in key))
            self._spans[key] = span
        task = self._program.add_task(thread.lane, span, label=label, after=thread.awaited)
        thread.pieces = []
        thread.awaited = []
        return task
