"""FinishWriter: what surrounds the passes of an iteration: zeroing, clipping, the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.graph.program import LaneKind
from perfmodel.stacks.stack import OptimizerKernels, Overlap
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.optimizers import OptimizerStep
from perfmodel.workloads.reduction import GradientReduction
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.slots import Slot, has_norm_group, has_tied_group
from perfmodel.workloads.transformer.spec import TransformerSpec

Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class FinishWriter:
    """Writes the ends of an iteration of one rank."""

    writer: EagerWriter
    run: TransformerRun

    @property
    def spec(self) -> TransformerSpec:
        """The workload."""
        return self.run.spec

    @property
    def layout(self) -> Layout:
        """How it is spread."""
        return self.run.layout

    def zero_gradients(self, groups: Groups, experts: Groups = ()) -> int:
        """Clear the gradients; the task is the first on the compute stream.

        *groups* are elements of tensors, by layer, *experts* those that only ranks with the same
        experts hold.
        """
        dtype = self.spec.training.gradient_dtype
        held, of_experts = (sum(sum(group) for group in one) for one in (groups, experts))
        if self.spec.parallel.sharding.divides_gradients:
            held //= self.layout.shard_ranks
            of_experts //= self.layout.expert_copies
        held += of_experts
        zero = MemoryBound("zero", 0, held * dtype.size_bytes, dtype)
        return self.writer.run("Optimizer.zero_grad", [zero], label="optimizer/zero gradients")

    def reduce_tied_weight(self, *, is_sole_end: bool) -> None:
        """Add up the gradients of a weight that the first and the last stage share."""
        is_frozen = self.spec.training.adapters_only
        if is_sole_end or is_frozen or not has_tied_group(self.spec, self.layout):
            return
        dtype = self.spec.training.gradient_dtype
        elements = -(-self.spec.model.vocab // self.layout.tp) * self.spec.model.hidden
        self._all_reduce(elements * dtype.size_bytes, dtype, "gradients/tied weight", Slot.TIED)

    def step(self, groups: Groups, experts: Groups = ()) -> None:
        """Clip gradients and update parameters; *groups* are elements of tensors, by layer."""
        training = self.spec.training
        if training.optimizer == "none":
            return
        if not groups and not experts:
            # A stage without parameters still takes part in the norm of all gradients.
            groups = [[0]]
        is_divided = self.spec.parallel.sharding.divides_state
        share = self.layout.shard_ranks if is_divided else 1
        expert_share = self.layout.expert_copies if is_divided else 1
        shares = [[-(-tensor // share) for tensor in group] for group in groups]
        shares += [[-(-tensor // expert_share) for tensor in group] for group in experts]
        if training.clip_gradients:
            self._clip(shares)
        step = OptimizerStep(
            training.optimizer,
            self.run.stack.optimizer_kernels,
            gradient_dtype=training.gradient_dtype,
            weight_dtype=training.weight_dtype,
        )
        for call in step.iter_calls(shares):
            self.writer.run(call.operator, call.kernels, label="optimizer/step")

    def gather_weights(self, reduction: GradientReduction | None) -> dict[int, int]:
        """Gather updated weights where ranks keep all of them; the task of each bucket.

        The first layers are needed first, and their bucket was the last to fill. Where
        nothing runs beside it, all buckets are gathered in one call.
        """
        sharding, training = self.spec.parallel.sharding, self.spec.training
        is_gathered = sharding.divides_state and not sharding.divides_weights
        has_step = training.optimizer != "none"
        if not (is_gathered and has_step) or reduction is None:
            return {}
        what = "experts" if reduction.slot == Slot.EXPERT_DATA else "weights"
        dtype, kind = training.weight_dtype, CollectiveKind.ALL_GATHER
        buckets = list(reversed(list(enumerate(reduction.bucket_elements))))
        if not self.run.overlaps(Overlap.PARAMETER_GATHER):
            buckets = [(0, sum(elements for _, elements in buckets))]
        return {
            number: self.writer.communicate(
                kind.value,
                Collective(kind, elements * dtype.size_bytes, dtype),
                label=f"optimizer/{what} {number} all_gather",
                stream=reduction.stream,
                slot=reduction.slot,
            )
            for number, elements in buckets
        }

    def _clip(self, groups: Sequence[Sequence[int]]) -> None:
        dtype = self.spec.training.gradient_dtype
        is_plain = self.run.stack.optimizer_kernels is OptimizerKernels.PLAIN
        tensors = [tensor for group in groups for tensor in group]
        pieces = tensors if is_plain else [sum(tensors)]
        for elements in pieces:
            norm = elementwise("gradient_norm", elements, dtype, writes=0)
            self.writer.run("norm", [norm], label="optimizer/gradient norm")
        if has_norm_group(self.spec, self.layout):
            size_bytes = DType.FP32.size_bytes
            self._all_reduce(size_bytes, DType.FP32, "optimizer/gradient norm", Slot.NORM)
        for elements in pieces:
            scale = elementwise("gradient_clip", elements, dtype)
            self.writer.run("mul_", [scale], label="optimizer/clip gradients")

    def _all_reduce(self, size_bytes: int, dtype: DType, label: str, slot: Slot) -> None:
        stream = self.writer.add_stream(f"{slot.name.lower()} stream", LaneKind.COMMUNICATION)
        kind = CollectiveKind.ALL_REDUCE
        task = self.writer.communicate(
            kind.value,
            Collective(kind, size_bytes=size_bytes, dtype=dtype),
            label=f"{label} {kind.value}",
            stream=stream,
            slot=slot,
        )
        self.writer.hold(self.writer.compute, [task])
