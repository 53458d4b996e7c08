"""Steps: what a Transformer rank issues, operator by operator, under a software stack.

Every kernel, wait and byte of a program follows from a workload, its layout and
the stack (`TransformerRun`). Overlaps that the workload states override those of
the stack.
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
from perfmodel.stacks.capabilities import Fusion, Overlap
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.transformer.layout import Layout, Slot, has_separate_experts
from perfmodel.workloads.transformer.shapes import LayerShape, layer_shape
from perfmodel.workloads.transformer.spec import (
    AttentionKernel,
    DataOverlap,
    TensorOverlap,
    TransformerSpec,
)

_OF_DATA_GROUP = (Overlap.GRADIENT_REDUCTION, Overlap.PARAMETER_GATHER)


@dataclass(frozen=True, slots=True)
class TransformerRun:
    """*spec* in *layout*, issued by *stack*."""

    spec: TransformerSpec
    layout: Layout
    stack: SoftwareStack

    def fuses(self, fusion: Fusion) -> bool:
        """Whether *fusion* is one kernel."""
        return self.stack.fuses(fusion)

    def overlaps(self, overlap: Overlap) -> bool:
        """Whether *overlap* runs during compute."""
        stated = self.spec.parallel.dp_overlap
        if overlap in _OF_DATA_GROUP and stated is not None:
            return stated is DataOverlap.FULL
        is_sharded = overlap in _OF_DATA_GROUP and self.spec.parallel.sharding.divides_weights
        return self.stack.overlaps_with_compute(overlap) or (
            is_sharded and self.stack.overlaps_with_compute(Overlap.SHARDED_LAYERS)
        )

    @property
    def tensor_overlap(self) -> TensorOverlap:
        """Which communication of the tensor group runs during GEMMs."""
        stated = self.spec.parallel.tp_overlap
        if stated is not None:
            return stated
        if self.stack.overlaps_with_compute(Overlap.TENSOR_EXCHANGE):
            return TensorOverlap.FULL
        is_overlapped = self.stack.overlaps_with_compute(Overlap.TENSOR_GRADIENT)
        return TensorOverlap.BACKWARD if is_overlapped else TensorOverlap.NONE

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one of the ranks that share its sequences."""
        return self.layout.micro_batch * self.spec.sequence_length // self.layout.cp

    @property
    def shape(self) -> LayerShape:
        """A dense layer as one rank has it."""
        return layer_shape(self.spec.model, tp=self.layout.tp)

    @property
    def dtype(self) -> DType:
        """The format that activations are stored in."""
        return self.spec.training.precision

    @property
    def residual_dtype(self) -> DType:
        """The format of the residual stream: fp32 where each micro-batch casts weights."""
        return DType.FP32 if self.spec.training.is_autocast else self.dtype

    @property
    def has_separate_experts(self) -> bool:
        """Whether experts are spread over ranks differently from the rest of a layer."""
        return has_separate_experts(self.spec, self.layout)

    @property
    def has_unfused_attention(self) -> bool:
        """Whether the attention core is GEMMs with passes over the scores."""
        return unfuses_attention(self.spec, self.stack)


def unfuses_attention(spec: TransformerSpec, stack: SoftwareStack) -> bool:
    """Whether the attention core of *spec* is GEMMs with passes over the scores."""
    kernel = spec.training.attention
    is_open = kernel is AttentionKernel.AUTO and stack.unfuses_attention
    return is_open or kernel is AttentionKernel.UNFUSED


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
    are reduced over the ranks that hold the same experts.
    """

    operator: str
    label: str
    kernels: tuple[Op, ...] = ()
    collective: Collective | None = None
    joining: Joining = Joining.AT_ONCE
    joins: tuple[Joining, ...] = ()
    closes: tuple[Joining, ...] = ()
    parameters: int = 0
    slot: Slot = Slot.TENSOR
    is_expert: bool = False


@dataclass(frozen=True, slots=True)
class PartSteps:
    """The steps of a layer, of the embedding or of the head; *recompute* runs before *backward*.

    *casts* convert weights to the format of GEMMs, as often as `StageWriter` finds necessary.
    """

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    casts: tuple[Step, ...] = ()
    recompute: tuple[Step, ...] = ()


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
    slot: Slot = Slot.TENSOR,
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
    streams: Mapping[Slot, OpenLane]
    outstanding: dict[Joining, int] = field(default_factory=dict)

    def write(self, step: Step, *, prefix: str) -> int | None:
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
