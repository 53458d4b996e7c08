"""Operators that a rank issues one by one, as eager PyTorch does, and their writers.

What a model runs is first built as steps, each with its kernels or a collective, without lanes or
tasks; `StepWriter` issues them. The software stack says how long a launch takes to reach the GPU,
how long the host needs to start an iteration, and whether it is captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.base.provenance import Provenance
from perfmodel.graph.builder import ProgramBuilder
from perfmodel.graph.issuing import T1, T2, T3, T4, T5, Issuer, OpenLane
from perfmodel.graph.ops import Communication, Copy, CopyRoute, Fixed, Op
from perfmodel.graph.program import Dependency, LaneKind, Program
from perfmodel.stacks.capabilities import Execution
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.fields import InputSection
from perfmodel.workloads.kernels import elementwise

_NO_QUEUE = (
    "The host may run ahead of the GPU without limit; the launch queue (1,024 entries) is not "
    "modelled."
)


class EagerWriter(Issuer):
    """Writes operators to two host threads and their kernels to streams, as *stack* issues them.

    Without a stack, launches are immediate and nothing is captured; *is_captured* captures all. One
    process may drive all *ranks_per_host* ranks of a host.
    """

    def __init__(
        self,
        program: ProgramBuilder,
        stack: SoftwareStack | None = None,
        ranks_per_host: int = 1,
        *,
        is_captured: bool = False,
    ) -> None:
        of_stack = stack is not None and stack.execution is Execution.CUDA_GRAPH
        super().__init__(
            program,
            latency_ns=0 if stack is None else round(stack.host.launch_latency_ns),
            is_captured=is_captured or of_stack,
        )
        self.main = self.add_lane("main thread", LaneKind.HOST)
        self.autograd = self.add_lane("autograd thread", LaneKind.HOST)
        self.compute = self.add_lane("compute stream", LaneKind.COMPUTE)
        begin_ns = 0 if stack is None else round(stack.host.begin_ns(ranks_per_host))
        if begin_ns:
            floor = Fixed("iteration", begin_ns, Provenance.EXTRAPOLATED)
            self.put(self.main, floor, label="host/start of iteration")

    def run(
        self,
        operator: str,
        kernels: Sequence[Op],
        *,
        label: str,
        stream: OpenLane | None = None,
        times: int = 1,
    ) -> int:
        """Issue *operator* with its *kernels* and return its last task.

        If it is issued several *times*, the kernels stand for those of all times, and the host
        spends as much time again for each.
        """
        stream, task = stream or self.compute, -1
        self.begin(operator)
        for kernel in kernels:
            task = self.launch(kernel, stream=stream, label=label)
        self.end()
        launches = ((operator, T4), (operator, T5)) * len(kernels)
        again = ((operator, T1), (operator, T2), *launches[:-1], (operator, T3))
        self.spend(*again * (times - 1))
        return task

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
        """Issue a collective on *stream*, by default after all compute issued so far."""
        if is_behind_compute:
            self.hold(stream, self.compute.last_task)
        self.begin(operator or collective.kind.value)
        task = self.launch(Communication(collective), stream=stream, label=label, slot=slot)
        self.end()
        return task

    def copy_blocking(self, size_bytes: int, *, label: str) -> int:
        """Copy on the compute stream and make the host wait for it; the copy's task."""
        task = self.run("to", [Copy(CopyRoute.HOST_TO_DEVICE, size_bytes)], label=label)
        self.synchronize(task, label=label)
        return task

    def finish(self, *, reads_loss: bool = False) -> Program:
        """The program; with *reads_loss* the host waits for the device at the end."""
        if reads_loss:
            self.synchronize(self.compute.last_task, label="loss/read on the host")
        return super().finish()


def feed_batch(
    writer: EagerWriter, section: InputSection, sizes: Sequence[int], *, is_blocking: bool = False
) -> None:
    """Copy a batch of tensors of *sizes* bytes to the GPU; compute waits for what it needs.

    With prefetch the copy is of the next batch, so compute waits for the copy that the previous
    iteration issued. With *is_blocking* tensors are copied one by one on the compute stream, and
    the host waits for each.
    """
    label = "input/copy to device"
    stream = writer.compute if is_blocking else writer.add_lane("copy stream", LaneKind.COPY)
    load = None
    if section.load_time is not None:
        loader = writer.add_lane("loader", LaneKind.LOADER)
        time = Fixed("load batch", round(section.load_time), Provenance.ASSUMED)
        load = writer.put(loader, time, label="input/load")
    writer.hold(stream, load)
    if is_blocking:
        first, *_ = [writer.copy_blocking(size_bytes, label=label) for size_bytes in sizes]
    else:
        copy = Copy(CopyRoute.HOST_TO_DEVICE, sum(sizes), is_pinned=True)
        first = writer.run("to", [copy], label=label, stream=stream)
        writer.hold(writer.compute, Dependency(first, distance=int(section.prefetch)))
    if load is not None:
        writer.make_room(load, first)


def host_assumptions(section: InputSection) -> list[str]:
    """Sentences on what is assumed of the input and of the host."""
    return [
        "Data loading costs nothing: batches wait in pinned host memory."
        if section.load_time is None
        else f"Loading a batch takes {section.load_time / 1e6:g} ms.",
        _NO_QUEUE,
    ]


class Joining(Enum):
    """When compute waits for a collective: at once, where a later step joins it, or never."""

    AT_ONCE = "at once"
    INPUT = "input"
    GRADIENT = "gradient"
    PIECES = "pieces"
    NEXT_BLOCK = "next block"
    BLOCK_GRADIENT = "block gradient"
    TOKENS = "tokens"
    GRADIENTS_OF_TOKENS = "gradients of tokens"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its kernels, or with a collective over the group of *slot*.

    *joins* are the collectives that compute, and a collective of this step, wait for before they
    start, *closes* those that everything after the kernels waits for.
    *parameters* counts the elements whose gradients are ready afterwards; with *is_expert* they
    are reduced over the ranks that hold the same experts. With *is_blocking* the host waits for
    the last kernel. The last *weight_kernels*, or with *is_weight* all, only serve gradients of
    weights, which a pipeline may compute later. A step of several *times* is made by `repeat`.
    """

    operator: str
    label: str
    kernels: tuple[Op, ...] = ()
    collective: Collective | None = None
    joining: Joining = Joining.AT_ONCE
    joins: tuple[Joining, ...] = ()
    closes: tuple[Joining, ...] = ()
    parameters: int = 0
    slot: int = 0
    is_expert: bool = False
    is_blocking: bool = False
    weight_kernels: int = 0
    is_weight: bool = False
    times: int = 1


def repeat(step: Step, times: int) -> list[Step]:
    """*step* issued *times* times; all but the first and the last time are held as one step.

    No task ends at another moment but those in between. If a step takes the host H and the
    stream G, the last kernel waits for the launches of step i and for G of every step after it:
    i H + (times - i) G, which is largest for the first or for the last step.
    """
    between = times - 2
    if between < 2:
        return [step] * times
    kernels = tuple(replace(kernel, launches=between) for kernel in step.kernels)  # type: ignore[arg-type]  # products of experts, and kernels bound by memory
    label = f"{step.label} x {between}"
    return [step, replace(step, label=label, kernels=kernels, times=between), step]


def pointwise(
    operator: str,
    label: str,
    kernel: str,
    elements: int,
    dtype: DType,
    *,
    reads: int = 1,
    writes: int = 1,
) -> Step:
    """A step of one memory-bound *kernel* over tensors of *elements* numbers."""
    return Step(
        operator, label, (elementwise(kernel, elements, dtype, reads=reads, writes=writes),)
    )


def communication(
    kind: CollectiveKind,
    label: str,
    size_bytes: int,
    dtype: DType,
    slot: int = 0,
    joining: Joining = Joining.AT_ONCE,
) -> Step:
    """A step of one collective, labelled with its kind."""
    collective = Collective(kind, size_bytes, dtype)
    name = f"{label} {kind.value}"
    return Step(kind.value, name, collective=collective, joining=joining, slot=slot)


@dataclass(slots=True)
class StepWriter:
    """Writes steps; *streams* are those of the existing groups, by their slots."""

    writer: EagerWriter
    streams: Mapping[int, OpenLane] = field(default_factory=dict)
    outstanding: dict[Joining, int] = field(default_factory=dict)

    def write(self, step: Step, *, prefix: str = "") -> int | None:
        """Write *step*, labelled with *prefix*; its last kernel, if it has one."""
        writer, label = self.writer, prefix + step.label
        task, awaited = None, self._join(step.joins)
        if step.collective is not None:
            stream = self.streams[step.slot]
            writer.hold(stream, *awaited)
            collective = writer.communicate(
                step.collective, label=label, stream=stream, slot=step.slot
            )
            if step.joining is Joining.AT_ONCE:
                writer.hold(writer.compute, collective)
            elif step.joining is not Joining.NEVER:
                self.outstanding[step.joining] = collective
        elif step.kernels:
            task = writer.run(step.operator, step.kernels, label=label, times=step.times)
            if step.is_blocking:
                writer.synchronize(task, label=label)
        else:
            writer.note(step.operator)
        self._join(step.closes)
        return task

    def state(self) -> list[list[Any]]:
        """Collectives that compute has yet to wait for."""
        return [[joining.value for joining in self.outstanding], [*self.outstanding.values()]]

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Continue from what `state` returned."""
        words, tasks = cells
        self.outstanding = dict(zip(map(Joining, words), tasks, strict=True))

    def wait(self, *joinings: Joining) -> None:
        """Make compute wait for the collectives of *joinings* that are still outstanding."""
        self._join(joinings)

    def _join(self, joinings: tuple[Joining, ...]) -> list[int]:
        awaited = [
            self.outstanding.pop(joining) for joining in joinings if joining in self.outstanding
        ]
        self.writer.hold(self.writer.compute, *awaited)
        return awaited
