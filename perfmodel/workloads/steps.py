"""Steps: operators that a rank issues, each with its kernels or a collective, and their writer.

What a model runs is first built as steps, without lanes or tasks. `StepWriter` issues them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.ops import Op
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise


class Joining(Enum):
    """When compute waits for a collective: at once, where a later step joins it, or never."""

    AT_ONCE = "at once"
    INPUT = "input"
    GRADIENT = "gradient"
    PIECES = "pieces"
    NEXT_BLOCK = "next block"
    BLOCK_GRADIENT = "block gradient"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its kernels, or with a collective over the group of *slot*.

    *joins* are the collectives that compute, and a collective of this step, wait for before they
    start, *closes* those that everything after the kernels waits for.
    *parameters* counts the elements whose gradients are ready afterwards; with *is_expert* they
    are reduced over the ranks that hold the same experts. With *is_blocking* the host waits for
    the last kernel.
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
            task = writer.run(step.operator, step.kernels, label=label)
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

    def _join(self, joinings: tuple[Joining, ...]) -> list[int]:
        awaited = [
            self.outstanding.pop(joining) for joining in joinings if joining in self.outstanding
        ]
        self.writer.hold(self.writer.compute, *awaited)
        return awaited
