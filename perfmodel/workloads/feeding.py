"""Feeding: how a batch gets to the GPU, and when the host waits for the last one."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.base.provenance import Provenance
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import Copy, CopyRoute, Fixed
from perfmodel.graph.program import Anchor, LaneKind
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.fields import InputSection

_QUEUE_LENGTH = 2


def feed_batch(
    writer: EagerWriter, program: ProgramBuilder, *, section: InputSection, size_bytes: int
) -> None:
    """Copy a batch of *size_bytes* to the GPU and let compute wait for the one it needs.

    With prefetch the copy is of the next batch, so compute waits for the copy
    that the previous iteration issued.
    """
    stream = writer.add_stream("copy stream", LaneKind.COPY)
    load = _load(program, section)
    if load is not None:
        writer.hold(stream, [load])
    copy = Copy(CopyRoute.HOST_TO_DEVICE, size_bytes, is_pinned=True)
    task = writer.run("to", [copy], label="input/copy to device", stream=stream)
    _bound_queue(program, load, task)
    distance = 1 if section.prefetch else 0
    writer.hold(writer.compute, [Dependency(task, distance=distance)])


def feed_blocking(
    writer: EagerWriter, program: ProgramBuilder, *, section: InputSection, sizes: Iterable[int]
) -> None:
    """Copy tensors of *sizes* bytes one by one, the host waiting for each."""
    load = _load(program, section)
    if load is not None:
        writer.hold(writer.compute, [load])
    tasks = [copy_blocking(writer, size, label="input/copy to device") for size in sizes]
    _bound_queue(program, load, tasks[0])


def copy_blocking(
    writer: EagerWriter,
    size_bytes: int,
    *,
    label: str,
    route: CopyRoute = CopyRoute.HOST_TO_DEVICE,
) -> int:
    """Copy on the compute stream and let the host wait for it; the copy's task."""
    task = writer.run("to", [Copy(route, size_bytes)], label=label)
    writer.block([task], label=label)
    return task


def input_assumption(section: InputSection) -> str:
    """What was taken for granted about the input."""
    if section.load_time is None:
        return "Input batches are ready in pinned host memory when they are asked for."
    return f"Loading a batch takes {section.load_time / 1e6:g} ms."


def _load(program: ProgramBuilder, section: InputSection) -> int | None:
    if section.load_time is None:
        return None
    lane = program.add_lane("loader", LaneKind.LOADER)
    time = Fixed("load batch", round(section.load_time), Provenance.ASSUMED)
    return program.add_task(lane, time, label="input/load")


def _bound_queue(program: ProgramBuilder, load: int | None, copy: int) -> None:
    if load is not None:
        # The batch k can be loaded once batch k - 2 has left the queue.
        program.add_dependency(load, Dependency(copy, anchor=Anchor.START, distance=_QUEUE_LENGTH))
