"""FinishWriter: what surrounds the passes of an iteration: zeroing, clipping, the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.graph.program import LaneKind
from perfmodel.workloads.eager import EagerWriter, Stream
from perfmodel.workloads.kernels import elementwise, optimizer_step
from perfmodel.workloads.reduction import GradientReduction
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.slots import Slot, has_norm_group, has_tied_group
from perfmodel.workloads.transformer.spec import StateSharding, TransformerSpec


@dataclass(frozen=True, slots=True)
class FinishWriter:
    """Writes the ends of an iteration of one rank; *data* is its data-parallel stream."""

    writer: EagerWriter
    spec: TransformerSpec
    layout: Layout
    data: Stream | None

    def zero_gradients(self, parameters: int) -> int:
        """Clear the gradients; the task is the first on the compute stream."""
        dtype = self.spec.training.gradient_dtype
        held = parameters
        if self.spec.parallel.sharding is StateSharding.FULL:
            held //= self.layout.dp
        zero = MemoryBound("zero", 0, held * dtype.size_bytes, dtype)
        return self.writer.run("Optimizer.zero_grad", [zero], label="optimizer/zero gradients")

    def reduce_tied_weight(self, *, is_sole_end: bool) -> None:
        """Add up the gradients of a weight that the first and the last stage share."""
        if is_sole_end or not has_tied_group(self.spec, self.layout):
            return
        dtype = self.spec.training.gradient_dtype
        elements = -(-self.spec.model.vocab // self.layout.tp) * self.spec.model.hidden
        self._all_reduce(elements * dtype.size_bytes, dtype, "gradients/tied weight", Slot.TIED)

    def step(self, sizes: Sequence[int]) -> None:
        """Clip gradients and update parameters: one kernel for each of *sizes*."""
        training = self.spec.training
        share = 1 if self.spec.parallel.sharding is StateSharding.NONE else self.layout.dp
        shares = [-(-size // share) for size in sizes]
        if training.clip_gradients:
            self._clip(sum(shares))
        kernels = [
            optimizer_step(
                training.optimizer,
                size,
                gradient_dtype=training.gradient_dtype,
                weight_dtype=training.precision,
            )
            for size in shares
        ]
        operator = f"Optimizer.step#{training.optimizer.upper()}.step"
        self.writer.run(operator, kernels, label="optimizer/step")

    def gather_weights(self, reduction: GradientReduction | None) -> list[int]:
        """Gather updated weights where only the optimizer is sharded; the tasks."""
        is_sharded = self.spec.parallel.sharding is StateSharding.OPTIMIZER
        if not is_sharded or reduction is None or self.data is None:
            return []
        dtype, kind = self.spec.training.precision, CollectiveKind.ALL_GATHER
        return [
            self.writer.communicate(
                kind.value,
                Collective(kind, elements * dtype.size_bytes, dtype),
                label=f"optimizer/weights {number} all_gather",
                stream=self.data,
                slot=Slot.DATA,
            )
            for number, elements in enumerate(reduction.bucket_elements)
        ]

    def _clip(self, elements: int) -> None:
        dtype = self.spec.training.gradient_dtype
        norm = MemoryBound("reduce_sum", elements * dtype.size_bytes, DType.FP32.size_bytes, dtype)
        self.writer.run("norm", [norm], label="optimizer/gradient norm")
        if has_norm_group(self.spec, self.layout):
            size_bytes = DType.FP32.size_bytes
            self._all_reduce(size_bytes, DType.FP32, "optimizer/gradient norm", Slot.NORM)
        scale = elementwise("copy", elements, dtype)
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
