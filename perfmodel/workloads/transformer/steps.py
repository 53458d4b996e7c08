"""Step: one operator of a layer, in terms that do not depend on which layer it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from collectives.collective import Collective
from perfmodel.graph.ops import Op
from perfmodel.workloads.eager import EagerWriter, Stream


class Joining(Enum):
    """When compute waits for a collective: at once, or where a later step says so."""

    AT_ONCE = "at once"
    INPUT = "input"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Step:
    """An operator with its kernels, or with a collective over the tensor group.

    *joins* are the collectives that compute waits for before the kernels.
    *parameters* counts the elements whose gradients are ready afterwards.
    """

    operator: str
    label: str
    kernels: tuple[Op, ...] = ()
    collective: Collective | None = None
    joining: Joining = Joining.AT_ONCE
    joins: tuple[Joining, ...] = ()
    parameters: int = 0


@dataclass(slots=True)
class StepWriter:
    """Writes steps; *stream* and *slot* are those of the tensor group, if there is one."""

    writer: EagerWriter
    stream: Stream | None
    slot: int
    outstanding: dict[Joining, int] = field(default_factory=dict)

    def write(self, step: Step, *, prefix: str) -> int | None:
        """Write *step*, labelled with *prefix*; its last kernel, if it has one."""
        for joining in step.joins:
            if joining in self.outstanding:
                self.writer.hold(self.writer.compute, [self.outstanding.pop(joining)])
        if step.collective is not None:
            self._communicate(step, step.collective, prefix)
        elif step.kernels:
            return self.writer.run(step.operator, step.kernels, label=prefix + step.label)
        else:
            self.writer.note(step.operator)
        return None

    def _communicate(self, step: Step, collective: Collective, prefix: str) -> None:
        assert self.stream is not None
        task = self.writer.communicate(
            step.operator,
            collective,
            label=prefix + step.label,
            stream=self.stream,
            slot=self.slot,
        )
        if step.joining is Joining.AT_ONCE:
            self.writer.hold(self.writer.compute, [task])
        else:
            self.outstanding[step.joining] = task
