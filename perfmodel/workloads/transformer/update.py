"""The update of a stage's weights: zeroing, clipping, the optimizer's step, gathers after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import Copy, CopyRoute, Gemm, MemoryBound
from perfmodel.graph.program import Dependency
from perfmodel.stacks.capabilities import FrameworkBehaviour, OptimizerKernels
from perfmodel.stacks.optimizers import NO_OPTIMIZER, load_optimizers
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import FP32_BYTES, elementwise, iter_optimizer_calls
from perfmodel.workloads.transformer.data_parallel import Reductions
from perfmodel.workloads.transformer.layout import Slot, has_norm_group, has_tied_group
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import LayerShape

_OFFLOADED = "optimizer/step on the host"
Groups = Sequence[Sequence[int]]
"""Elements of tensors, by layer."""


@dataclass(frozen=True, slots=True)
class UpdateWriter:
    """Writes what surrounds the passes of an iteration: zeroing, clipping, the optimizer's step.

    *groups* are tensors that data-parallel ranks hold together, of *layers* and then of both ends
    of the model; *experts* those that only ranks with the same experts hold.
    """

    writer: EagerWriter
    run: TransformerRun
    groups: Groups
    experts: Groups
    layers: Sequence[LayerShape] = ()

    def zero_gradients(self) -> int:
        """Clear the gradients; the task is the first on the compute stream."""
        layout, dtype = self.run.layout, self.run.spec.training.gradient_dtype
        held, of_experts = (sum(map(sum, one)) for one in (self.groups, self.experts))
        if self.run.spec.parallel.sharding.divides_gradients:
            held //= layout.shard_ranks
            of_experts //= layout.expert_copies
        zero = MemoryBound("zero", 0, (held + of_experts) * dtype.size_bytes, dtype)
        return self.writer.run("Optimizer.zero_grad", [zero], label="optimizer/zero gradients")

    def reduce_tied_weight(self) -> None:
        """Add up the gradients of a weight that the first and the last stage share."""
        spec, layout = self.run.spec, self.run.layout
        if spec.training.adapters_only or not has_tied_group(spec, layout):
            return
        dtype = spec.training.gradient_dtype
        elements = -(-spec.model.vocab // layout.tp) * spec.model.hidden
        self._all_reduce(elements * dtype.size_bytes, dtype, "gradients/tied weight", Slot.TIED)

    def step(self) -> None:
        """Clip gradients and update parameters."""
        spec, layout = self.run.spec, self.run.layout
        training, kernels = spec.training, self.run.stack.optimizer_kernels
        if training.optimizer == NO_OPTIMIZER:
            return
        groups = self.groups
        if not groups and not self.experts:
            # A stage without parameters still takes part in the norm of all gradients.
            groups = [[0]]
        is_divided = spec.parallel.sharding.divides_state
        shares = [
            [-(-tensor // (ranks if is_divided else 1)) for tensor in group]
            for some, ranks in ((groups, layout.shard_ranks), (self.experts, layout.expert_copies))
            for group in some
        ]
        if training.clip_gradients:
            tensors = [tensor for group in shares for tensor in group]
            self._clip(tensors if kernels is OptimizerKernels.PLAIN else [sum(tensors)])
        if training.offload_optimizer:
            shares = self._step_on_host(shares)
            if training.offload_optimizer == 1:
                return
        steps = {training.optimizer: shares}
        optimizer = load_optimizers()[training.optimizer]
        if optimizer.is_orthogonal:
            self._orthogonalise(1 if not is_divided else layout.shard_ranks)
        if optimizer.ends:
            ends = slice(len(self.layers), len(groups))
            steps = {optimizer.ends: shares[ends]}
            del shares[ends]
            steps[training.optimizer] = shares
        for name, some in steps.items():
            for operator, ops in iter_optimizer_calls(
                name,
                kernels,
                some,
                gradient_dtype=training.gradient_dtype,
                weight_dtype=training.weight_dtype,
                state_dtype=training.state_dtype,
            ):
                self.writer.run(operator, ops, label="optimizer/step")

    def _step_on_host(self, groups: Groups) -> list[list[int]]:
        """Update a share of each of *groups* on the host, and return what is left for the GPU.

        Gradients go down, the host waits for them and updates, then weights come up: no part of
        it overlaps, as in Megatron-Core and in DeepSpeed without delayed updates.
        """
        training, writer = self.run.spec.training, self.writer
        sent = [[round(one * training.offload_optimizer) for one in group] for group in groups]
        elements, size = sum(map(sum, sent)), training.weight_dtype.size_bytes
        down = Copy(CopyRoute.DEVICE_TO_HOST, elements * training.gradient_dtype.size_bytes)
        writer.synchronize(writer.run("to", [down], label=_OFFLOADED), label=_OFFLOADED)
        # Weight and states are read and written, the gradient read and a short weight written.
        states = load_optimizers()[training.optimizer].states
        moved = FP32_BYTES * (2 + 2 * states + 1) + size % FP32_BYTES
        writer.put(writer.thread, Copy(CopyRoute.HOST_TO_HOST, elements * moved), label=_OFFLOADED)
        writer.run("to", [Copy(CopyRoute.HOST_TO_DEVICE, elements * size)], label=_OFFLOADED)
        return [
            [one - gone for one, gone in zip(*pair, strict=True)]
            for pair in zip(groups, sent, strict=True)
        ]

    def _orthogonalise(self, shares: int) -> None:
        """Five Newton-Schulz steps over each matrix of the layers, in bf16.

        A step is X X^T, its square, and their sum times X. Ranks that share state take turns in
        whole matrices; this is one with the most. Tensor groups work on their own parts.
        """
        experts = [
            (shape.experts.held, one)
            for shape in self.layers
            if shape.experts is not None
            for one in (shape.experts.up, shape.experts.down)
        ]
        dense = [(1, one) for shape in self.layers for one in shape.linears.values()]
        copies = min(shares, self.run.layout.expert_copies)
        for some, ranks in ((dense, shares), (experts, copies)):
            ordered = sorted(some, key=lambda one: -one[0] * one[1].weight)
            for count, linear in ordered[::ranks]:
                short, long = sorted((linear.inputs, linear.outputs))
                for sides in ((short, short, long), (short, short, short), (short, long, short)):
                    product = Gemm(*sides, DType.BF16, batch=count)
                    for _ in range(5):
                        self.writer.run("baddbmm", [product], label="optimizer/orthogonalise")

    def gather_weights(self, reductions: Reductions, *, first_task: int) -> None:
        """Gather updated weights where ranks keep all of them; the next iteration waits for them.

        The first layers are needed first, and their bucket was the last to fill. Without overlap,
        and where calls are coalesced, all buckets are gathered in one call, and *first_task* waits
        for it.
        """
        sharding, training = self.run.spec.parallel.sharding, self.run.spec.training
        reduction, dtype = reductions.last, training.weight_dtype
        is_gathered = sharding.divides_state and not sharding.divides_weights
        if not is_gathered or training.optimizer == NO_OPTIMIZER or reduction is None:
            return
        what = "experts" if reduction.slot == Slot.EXPERT_DATA else "weights"
        buckets, users = list(enumerate(reduction.bucket_elements)), reductions.users
        is_one_call = self.run.stack.has(FrameworkBehaviour.COALESCED_GATHERS)
        if is_one_call or not self.run.overlaps_gathers:
            buckets, users = [(0, sum(reduction.bucket_elements))], {0: [first_task]}
        waits = []
        for number, elements in reversed(buckets):
            gather = self.writer.communicate(
                Collective(CollectiveKind.ALL_GATHER, elements * dtype.size_bytes, dtype),
                label=f"optimizer/{what} {number} all_gather",
                stream=reduction.stream,
                slot=reduction.slot,
            )
            waits += [(task, gather) for task in users.get(number, [])]
        for task, gather in waits:
            self.writer.program.add_dependency(task, Dependency(gather, distance=1))

    def _clip(self, sizes: Sequence[int]) -> None:
        dtype = self.run.spec.training.gradient_dtype
        for elements in sizes:
            norm = elementwise("gradient_norm", elements, dtype, writes=0)
            self.writer.run("norm", [norm], label="optimizer/gradient norm")
        if has_norm_group(self.run.spec, self.run.layout):
            self._all_reduce(FP32_BYTES, DType.FP32, "optimizer/gradient norm", Slot.NORM)
        for elements in sizes:
            scale = elementwise("gradient_clip", elements, dtype)
            self.writer.run("mul_", [scale], label="optimizer/clip gradients")

    def _all_reduce(self, size_bytes: int, dtype: DType, label: str, slot: Slot) -> None:
        task = self.writer.communicate(
            Collective(CollectiveKind.ALL_REDUCE, size_bytes, dtype),
            label=f"{label} all_reduce",
            stream=self.writer.add_lane(slot.stream_name),
            slot=slot,
        )
        self.writer.hold(self.writer.compute, task)
