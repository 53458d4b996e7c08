"""TransformerRun: a Transformer in a layout under a software stack.

Every kernel, wait and byte of the program follows from these three. What the
specification says of overlaps goes before what the stack does by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.stacks.stack import Fusion, Overlap, SoftwareStack
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.slots import has_experts_apart
from perfmodel.workloads.transformer.spec import (
    AttentionKernel,
    DataOverlap,
    TensorOverlap,
    TransformerSpec,
)

_OF_DATA_GROUP = (Overlap.GRADIENT_REDUCTION, Overlap.PARAMETER_GATHER)


@dataclass(frozen=True, slots=True)
class TransformerRun:
    """*spec* spread as *layout* says and issued by *stack*."""

    spec: TransformerSpec
    layout: Layout
    stack: SoftwareStack

    def fuses(self, fusion: Fusion) -> bool:
        """Whether *fusion* is one kernel."""
        return self.stack.fuses(fusion)

    def overlaps(self, overlap: Overlap) -> bool:
        """Whether *overlap* runs beside compute."""
        stated = self.spec.parallel.dp_overlap
        if overlap in _OF_DATA_GROUP and stated is not None:
            return stated is DataOverlap.FULL
        if overlap in _OF_DATA_GROUP and self.spec.parallel.sharding.divides_weights:
            beside = (overlap, Overlap.SHARDED_LAYERS)
            return any(self.stack.overlaps_with_compute(one) for one in beside)
        return self.stack.overlaps_with_compute(overlap)

    @property
    def tensor_overlap(self) -> TensorOverlap:
        """What of the tensor group's communication runs beside products."""
        stated = self.spec.parallel.tp_overlap
        if stated is not None:
            return stated
        if self.stack.overlaps_with_compute(Overlap.TENSOR_EXCHANGE):
            return TensorOverlap.FULL
        is_beside = self.stack.overlaps_with_compute(Overlap.TENSOR_GRADIENT)
        return TensorOverlap.BACKWARD if is_beside else TensorOverlap.NONE

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch that one rank of those that share its sequences has."""
        return self.layout.micro_batch * self.spec.sequence_length // self.layout.cp

    @property
    def has_experts_apart(self) -> bool:
        """Whether experts are spread over ranks otherwise than everything else of a layer."""
        return has_experts_apart(self.spec, self.layout)

    @property
    def residual_dtype(self) -> DType:
        """What runs from layer to layer: fp32 where weights are cast for each micro-batch."""
        training = self.spec.training
        return DType.FP32 if training.is_autocast else training.precision

    @property
    def has_unfused_attention(self) -> bool:
        """Whether the core of attention is products with passes over the scores."""
        return unfuses_attention(self.spec, self.stack)


def unfuses_attention(spec: TransformerSpec, stack: SoftwareStack) -> bool:
    """Whether the core of attention of *spec* is products with passes over the scores."""
    kernel = spec.training.attention
    is_open = kernel is AttentionKernel.AUTO and stack.unfuses_attention
    return is_open or kernel is AttentionKernel.UNFUSED
