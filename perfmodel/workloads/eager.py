"""EagerWriter: one rank's iteration, issued operator by operator as eager PyTorch does.

A host thread spends T2 before an operator's first launch, T4 in each launch,
T5 between launches, T3 after the last and T1 before the next operator. Pieces
up to a launch are one host task, and the kernel depends on that task. The
launch queue is unbounded: the host may run ahead of the GPU without limit.

An iteration captured as a CUDA graph is one launch, and one more after each
host wait for the device; operators inside it cost the host nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import Collective
from perfmodel.base.provenance import Provenance
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import (
    Communication,
    Copy,
    CopyRoute,
    Fixed,
    HostPart,
    HostSpan,
    HostWork,
    Op,
)
from perfmodel.graph.program import Anchor, LaneKind, Program
from perfmodel.stacks.capabilities import Execution
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.fields import InputSection

_PARTS = (
    HostPart.BETWEEN_OPERATORS,
    HostPart.BEFORE_LAUNCH,
    HostPart.AFTER_LAUNCH,
    HostPart.LAUNCH,
    HostPart.BETWEEN_LAUNCHES,
    HostPart.WAIT,
)
_T1, _T2, _T3, _T4, _T5, _WAIT = range(len(_PARTS))
_QUEUE_LENGTH = 2
"""Batches that the data loader keeps ready."""
_NO_QUEUE = (
    "The host may run ahead of the GPU without limit; the launch queue (1,024 entries) is not "
    "modelled."
)


@dataclass(slots=True)
class OpenLane:
    """A lane while its tasks are written: what its next task waits for, and its last task.

    A host thread also has *pieces* of host time that are not yet in a task.
    """

    lane: int
    awaited: list[Dependency | int] = field(default_factory=list)
    last_task: int | None = None
    pieces: list[tuple[str, int]] = field(default_factory=list)


class EagerWriter:
    """Writes operators to host threads and their kernels to streams, as *stack* issues them.

    Without a stack, launches are immediate and nothing is captured.
    """

    def __init__(self, program: ProgramBuilder, stack: SoftwareStack | None = None) -> None:
        self.program = program
        self._latency_ns = 0 if stack is None else round(stack.host.launch_latency_ns)
        self._is_captured = stack is not None and stack.execution is Execution.CUDA_GRAPH
        self._graph: Dependency | None = None
        self._spans: dict[tuple[tuple[str, int], ...], HostSpan] = {}
        self._lanes: list[OpenLane] = []
        self.main = self.add_stream("main thread", LaneKind.HOST)
        self.autograd = self.add_stream("autograd thread", LaneKind.HOST)
        self.compute = self.add_stream("compute stream", LaneKind.COMPUTE)
        self._thread = self.main
        if stack is not None and (iteration_ns := round(stack.host.iteration_ns)):
            floor = Fixed("iteration", iteration_ns, Provenance.EXTRAPOLATED)
            program.add_task(self.main.lane, floor, label="host/start of iteration")

    def add_stream(self, name: str, kind: LaneKind = LaneKind.COMMUNICATION) -> OpenLane:
        """Add a device stream or a host thread."""
        lane = OpenLane(self.program.add_lane(name, kind))
        self._lanes.append(lane)
        return lane

    def state(self) -> list[list[Any]]:
        """Everything that decides what is written next, as `Repetition` wants it."""
        current = "autograd" if self._thread is self.autograd else "main"
        cells: list[list[Any]] = [[current, self._graph]]
        for lane in self._lanes:
            cells += (lane.pieces, lane.awaited, [lane.last_task])
        return cells

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Continue from what `state` returned."""
        rest = iter(cells)
        current, self._graph = next(rest)
        self._thread = self.autograd if current == "autograd" else self.main
        for lane in self._lanes:
            lane.pieces, lane.awaited, (lane.last_task,) = next(rest), next(rest), next(rest)

    def run(
        self, operator: str, kernels: Sequence[Op], *, label: str, stream: OpenLane | None = None
    ) -> int:
        """Issue *operator* with its *kernels* and return its last task."""
        stream = stream or self.compute
        self._spend((operator, _T1), (operator, _T2))
        task = -1
        for number, kernel in enumerate(kernels):
            if number:
                self._spend((operator, _T5))
            after = [self._launch(operator, label), *stream.awaited]
            task = self.program.add_task(stream.lane, kernel, label=label, after=after)
            stream.awaited.clear()
        self._spend((operator, _T3))
        stream.last_task = task
        return task

    def note(self, *operators: str) -> None:
        """Issue *operators* that launch nothing."""
        for operator in operators:
            self._spend((operator, _T1), (operator, _T5))

    def communicate(
        self,
        collective: Collective,
        *,
        label: str,
        stream: OpenLane,
        slot: int,
        operator: str = "",
        is_behind_compute: bool = True,
    ) -> int:
        """Issue a collective on *stream*, by default behind all compute issued so far."""
        operator = operator or collective.kind.value
        self._spend((operator, _T1), (operator, _T2))
        after: list[Dependency | int] = [self._launch(operator, label), *stream.awaited]
        self._spend((operator, _T3))
        if is_behind_compute and self.compute.last_task is not None:
            after.append(self.compute.last_task)
        stream.last_task = self.program.add_rendezvous(
            stream.lane, Communication(collective), label=label, slot=slot, after=after
        )
        stream.awaited.clear()
        return stream.last_task

    def hold(self, stream: OpenLane, *awaited: Dependency | int | None) -> None:
        """Make the next task of *stream* wait for those *awaited* that there are."""
        stream.awaited.extend(task for task in awaited if task is not None)

    def hand_over(self, thread: OpenLane, *, label: str) -> None:
        """Let *thread* continue where the current one stops and waits."""
        if thread is self._thread or self._is_captured:
            return
        self._thread.pieces.append(("hand_over", _T1))
        thread.awaited.append(self._write_pieces(f"{label} hand-over"))
        self._thread = thread

    def block(self, *awaited: int | None, label: str) -> int:
        """Make the current thread wait for *awaited*, as a synchronising call does."""
        if self._thread.pieces:
            self._write_pieces(label)
        self._thread.pieces.append(("synchronize", _WAIT))
        self.hold(self._thread, *awaited)
        self._graph = None
        return self._write_pieces(label)

    def finish(self, *, reads_loss: bool) -> Program:
        """The program; host time after the last launch becomes a last task.

        With *reads_loss* the host waits for the device at the end of every iteration.
        """
        if reads_loss:
            self.block(self.compute.last_task, label="loss/read on the host")
        for thread in (self.autograd, self.main):
            self._thread = thread
            if thread.pieces or thread.awaited:
                thread.pieces = thread.pieces or [("hand_over", _T1)]
                self._write_pieces("end of iteration")
        return self.program.build()

    def _spend(self, *pieces: tuple[str, int]) -> None:
        if not self._is_captured:
            self._thread.pieces += pieces

    def _launch(self, operator: str, label: str) -> Dependency:
        if self._graph is not None:
            return self._graph
        is_captured = self._is_captured
        self._thread.pieces.append(("graph_launch" if is_captured else operator, _T4))
        task = self._write_pieces("graph/launch" if is_captured else label)
        launch = Dependency(task, lag_ns=self._latency_ns)
        self._graph = launch if is_captured else None
        return launch

    def _write_pieces(self, label: str) -> int:
        thread = self._thread
        key = tuple(thread.pieces)
        span = self._spans.get(key)
        if span is None:
            span = HostSpan(tuple(HostWork(operator, _PARTS[part]) for operator, part in key))
            self._spans[key] = span
        task = self.program.add_task(thread.lane, span, label=label, after=thread.awaited)
        thread.pieces, thread.awaited = [], []
        return task


def feed_batch(
    writer: EagerWriter, section: InputSection, sizes: Sequence[int], *, is_blocking: bool = False
) -> None:
    """Copy a batch of tensors of *sizes* bytes to the GPU; compute waits for what it needs.

    With prefetch the copy is of the next batch, so compute waits for the copy that the previous
    iteration issued. With *is_blocking* tensors are copied one by one on the compute stream, and
    the host waits for each.
    """
    program, label = writer.program, "input/copy to device"
    stream = writer.compute if is_blocking else writer.add_stream("copy stream", LaneKind.COPY)
    load = None
    if section.load_time is not None:
        lane = program.add_lane("loader", LaneKind.LOADER)
        time = Fixed("load batch", round(section.load_time), Provenance.ASSUMED)
        load = program.add_task(lane, time, label="input/load")
    writer.hold(stream, load)
    if is_blocking:
        first, *_ = [copy_blocking(writer, size_bytes, label=label) for size_bytes in sizes]
    else:
        copy = Copy(CopyRoute.HOST_TO_DEVICE, sum(sizes), is_pinned=True)
        first = writer.run("to", [copy], label=label, stream=stream)
        writer.hold(writer.compute, Dependency(first, distance=int(section.prefetch)))
    if load is not None:
        # Batch k can be loaded once batch k - 2 has left the queue.
        program.add_dependency(load, Dependency(first, anchor=Anchor.START, distance=_QUEUE_LENGTH))


def copy_blocking(
    writer: EagerWriter,
    size_bytes: int,
    *,
    label: str,
    route: CopyRoute = CopyRoute.HOST_TO_DEVICE,
) -> int:
    """Copy on the compute stream and make the host wait for it; the copy's task."""
    task = writer.run("to", [Copy(route, size_bytes)], label=label)
    writer.block(task, label=label)
    return task


def host_assumptions(section: InputSection) -> list[str]:
    """Sentences on what is assumed of the input and of the host."""
    return [
        "Input batches are ready in pinned host memory when they are requested."
        if section.load_time is None
        else f"Loading a batch takes {section.load_time / 1e6:g} ms.",
        _NO_QUEUE,
    ]
