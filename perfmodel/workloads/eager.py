"""EagerWriter: one rank's iteration, issued operator by operator as eager PyTorch does.

The software stack says how long a launch takes to reach the GPU, how long the host needs to start
an iteration, and whether the iteration is captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.collective import Collective
from perfmodel.base.provenance import Provenance
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.issuing import Issuer, OpenLane
from perfmodel.graph.ops import Communication, Copy, CopyRoute, Fixed, Op
from perfmodel.graph.program import LaneKind, Program
from perfmodel.stacks.capabilities import Execution
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.fields import InputSection

_NO_QUEUE = (
    "The host may run ahead of the GPU without limit; the launch queue (1,024 entries) is not "
    "modelled."
)


class EagerWriter(Issuer):
    """Writes operators to two host threads and their kernels to streams, as *stack* issues them.

    Without a stack, launches are immediate and nothing is captured.
    """

    def __init__(self, program: ProgramBuilder, stack: SoftwareStack | None = None) -> None:
        super().__init__(
            program,
            latency_ns=0 if stack is None else round(stack.host.launch_latency_ns),
            is_captured=stack is not None and stack.execution is Execution.CUDA_GRAPH,
        )
        self.main = self.add_lane("main thread", LaneKind.HOST)
        self.autograd = self.add_lane("autograd thread", LaneKind.HOST)
        self.compute = self.add_lane("compute stream", LaneKind.COMPUTE)
        if stack is not None and (iteration_ns := round(stack.host.iteration_ns)):
            floor = Fixed("iteration", iteration_ns, Provenance.EXTRAPOLATED)
            self.put(self.main, floor, label="host/start of iteration")

    def run(
        self, operator: str, kernels: Sequence[Op], *, label: str, stream: OpenLane | None = None
    ) -> int:
        """Issue *operator* with its *kernels* and return its last task."""
        stream, task = stream or self.compute, -1
        self.begin(operator)
        for kernel in kernels:
            task = self.launch(kernel, stream=stream, label=label)
        self.end()
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
        """Issue a collective on *stream*, by default behind all compute issued so far."""
        if is_behind_compute:
            self.hold(stream, self.compute.last_task)
        self.begin(operator or collective.kind.value)
        task = self.launch(Communication(collective), stream=stream, label=label, slot=slot)
        self.end()
        return task

    def copy_blocking(
        self, size_bytes: int, *, label: str, route: CopyRoute = CopyRoute.HOST_TO_DEVICE
    ) -> int:
        """Copy on the compute stream and make the host wait for it; the copy's task."""
        task = self.run("to", [Copy(route, size_bytes)], label=label)
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
        "Input batches are ready in pinned host memory when they are requested."
        if section.load_time is None
        else f"Loading a batch takes {section.load_time / 1e6:g} ms.",
        _NO_QUEUE,
    ]
