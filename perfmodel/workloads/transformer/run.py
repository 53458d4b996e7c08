"""TransformerRun: a Transformer in a layout, as a software stack issues it.

What a stack fuses, overlaps and does by default is asked for here if it changes several parts of a
program or its memory, else in the part that it changes. Overlaps that the workload states override
those of the stack.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.stacks.capabilities import Dispatcher, FrameworkBehaviour, Fusion, Overlap
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.layout import Layout, has_separate_experts
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import (
    AttentionKernel,
    CudaGraph,
    DataOverlap,
    TensorOverlap,
)


@dataclass(frozen=True, slots=True)
class TransformerRun:
    """*spec* in *layout*, issued by *stack*."""

    spec: TransformerSpec
    layout: Layout
    stack: SoftwareStack

    @property
    def fuses_pointwise(self) -> bool:
        """Whether all chains of pointwise operators are one kernel."""
        return self.stack.fuses(Fusion.ELEMENTWISE)

    @property
    def fuses_activation(self) -> bool:
        """Whether the activation of a feed-forward network is one kernel."""
        is_gated = self.spec.model.gated_ffn
        return self.stack.fuses(Fusion.SWIGLU if is_gated else Fusion.GELU)

    @property
    def fuses_loss(self) -> bool:
        """Whether the loss is one kernel that works in place."""
        return self.stack.fuses(Fusion.CROSS_ENTROPY)

    @property
    def overlaps_reduction(self) -> bool:
        """Whether gradients are reduced during compute."""
        return self._overlaps_data(Overlap.GRADIENT_REDUCTION)

    @property
    def overlaps_gathers(self) -> bool:
        """Whether weights are gathered during compute."""
        return self._overlaps_data(Overlap.PARAMETER_GATHER)

    def _overlaps_data(self, overlap: Overlap) -> bool:
        parallel, overlaps = self.spec.parallel, self.stack.overlaps_with_compute
        if parallel.dp_overlap is not None:
            return parallel.dp_overlap is DataOverlap.FULL
        is_sharded = parallel.sharding.divides_weights
        return overlaps(overlap) or (is_sharded and overlaps(Overlap.SHARDED_LAYERS))

    @property
    def counts_bucket_parameters(self) -> bool:
        """Whether buckets of gradients are limited by parameters, because nothing is stated."""
        is_open = "bucket_size" not in self.spec.training.model_fields_set
        return is_open and self.stack.has(FrameworkBehaviour.PARAMETER_BUCKETS)

    @property
    def dispatcher(self) -> Dispatcher:
        """What takes tokens to the ranks of their experts."""
        return self.spec.parallel.dispatcher or self.stack.dispatchers[0]

    @property
    def captures_all(self) -> bool:
        """Whether the passes of an iteration are one CUDA graph."""
        return self.spec.training.cuda_graph is CudaGraph.FULL

    @property
    def captures_layers(self) -> bool:
        """Whether layers outside their experts are CUDA graphs."""
        return self.spec.training.cuda_graph is CudaGraph.PARTIAL

    @property
    def groups_experts(self) -> bool:
        """Whether the GEMMs of a rank's experts are one kernel."""
        stated = self.spec.training.grouped_experts
        # A graph of all passes cannot have GEMMs whose sizes the host chooses.
        is_grouped = self.captures_all or not self.stack.has(FrameworkBehaviour.EXPERTS_ONE_BY_ONE)
        return is_grouped if stated is None else stated

    @property
    def fuses_expert_bias(self) -> bool:
        """Whether GEMMs of experts add their bias, and clamp: as graphs and compilers need it."""
        return self.captures_all or self.fuses_pointwise

    @property
    def tensor_overlap(self) -> TensorOverlap:
        """Which communication of the tensor group runs during GEMMs."""
        stated, overlaps = self.spec.parallel.tp_overlap, self.stack.overlaps_with_compute
        if stated is not None:
            return stated
        if overlaps(Overlap.TENSOR_EXCHANGE):
            return TensorOverlap.FULL
        is_overlapped = overlaps(Overlap.TENSOR_GRADIENT)
        return TensorOverlap.BACKWARD if is_overlapped else TensorOverlap.NONE

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one of the ranks that share its sequences."""
        return self.layout.micro_batch * self.spec.sequence_length // self.layout.sharers

    @property
    def predicted_tokens(self) -> int:
        """Those of them that logits are computed for."""
        return self.layout.micro_batch * self.spec.predicted_tokens // self.layout.sharers

    @property
    def split_ranks(self) -> int:
        """Ranks that divide the tokens of norms and residuals among themselves."""
        return self.layout.tp if self.layout.is_sequence_parallel else 1

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
