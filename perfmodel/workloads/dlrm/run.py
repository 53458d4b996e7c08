"""DlrmRun: a recommendation model on a number of ranks, as a software stack issues it.

What a stack fuses, overlaps and does by default is asked for here if it changes several parts of a
program, else in the part that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion, Overlap
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.spec import DlrmSpec


@dataclass(frozen=True, slots=True)
class DlrmRun:
    """*spec* on *rank_count* ranks, *ranks_per_host* of them on a host, issued by *stack*."""

    spec: DlrmSpec
    rank_count: int
    stack: SoftwareStack
    ranks_per_host: int = 1

    @property
    def samples(self) -> int:
        """Samples of one rank."""
        return self.spec.batch // self.rank_count

    @property
    def outputs(self) -> int:
        """Outputs of one rank, which the top layers make."""
        return self.samples * self.spec.outputs

    @property
    def dtype(self) -> DType:
        """The format of GEMMs and of the interaction."""
        return self.spec.training.precision

    @property
    def gradient_dtype(self) -> DType:
        """The format of dense gradients: that of GEMMs if the cast of weights is fused."""
        return self.dtype if self.stack.fuses(Fusion.WEIGHT_CAST) else DType.FP32

    @property
    def arriving_dtype(self) -> DType:
        """The format in which updates read the gradients of pooled vectors."""
        is_fused = self.stack.fuses(Fusion.LOOKUP_CAST)
        return self.spec.embedding.exchange_dtype if is_fused else DType.FP32

    @property
    def fuses_pointwise(self) -> bool:
        """Whether chains of pointwise operators are one kernel."""
        return self.stack.fuses(Fusion.ELEMENTWISE)

    @property
    def fuses_interaction(self) -> bool:
        """Whether an interaction by products is one kernel."""
        return self.stack.fuses(Fusion.INTERACTION)

    @property
    def copies_gradients(self) -> bool:
        """Whether gradients are copied to the buffer they are reduced in, and back."""
        return not self.stack.fuses(Fusion.GRADIENT_COPY)

    @property
    def has_unfused_bias(self) -> bool:
        """Whether a bias is copied before the GEMM and its gradient summed by an operator."""
        return self.stack.has(FrameworkBehaviour.UNFUSED_BIAS)

    @property
    def has_host_triangle(self) -> bool:
        """Whether the host indexes the triangle of dot products."""
        return self.stack.has(FrameworkBehaviour.HOST_TRIANGLE)

    @property
    def has_blocking_copies(self) -> bool:
        """Whether the host waits for each copy."""
        return self.stack.has(FrameworkBehaviour.BLOCKING_COPIES)

    @property
    def has_lone_bottom(self) -> bool:
        """Whether one rank runs the bottom layers for all."""
        return self.rank_count > 1 and self.stack.has(FrameworkBehaviour.LONE_BOTTOM)

    @property
    def overlaps_exchange(self) -> bool:
        """Whether pooled vectors and their gradients travel during compute."""
        return self.stack.overlaps_with_compute(Overlap.EMBEDDING_EXCHANGE)
