"""Data parallelism of a stage: gradients reduced, weights gathered, and the optimizer's step.

Gradients and weights of a part (a layer, the embedding, the head) are in the same
buckets; its first kernel in an iteration waits for all of them.

Fully sharded weights are gathered layer by layer just before their use, at most
two layers at a time: the gather of a layer waits until compute is done with the
layer two before it. A stack that does not overlap gathers with compute starts one
only when compute has come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import Dependency
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.capabilities import FrameworkBehaviour, OptimizerKernels
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import FP32_BYTES, elementwise, iter_optimizer_calls
from perfmodel.workloads.reduction import FIRST_BUCKET_BYTES, GradientReduction
from perfmodel.workloads.transformer.layout import Slot, has_norm_group, has_tied_group
from perfmodel.workloads.transformer.run import TransformerRun

_AHEAD = 2
_LEAST_PARAMETERS, _PARAMETERS_PER_RANK = 40_000_000, 1_000_000
"""Of a bucket that counts parameters (Megatron-Core, DistributedDataParallelConfig)."""

Groups = Sequence[Sequence[int]]
"""Elements of tensors, by layer."""


@dataclass(slots=True)
class Reductions:
    """Reductions over one set of ranks: of the last micro-batch, of earlier ones, and the active.

    *first_task* are the first kernels of parts, *users* those that use the weights of a bucket.
    """

    first_task: dict[str, int]
    last: GradientReduction | None = None
    early: GradientReduction | None = None
    active: GradientReduction | None = None
    users: dict[int, list[int]] = field(default_factory=dict)

    def note(self, elements: int, part: str) -> None:
        """Put gradients of *part* that were just made into the bucket being filled."""
        if self.active is None:
            return
        if self.active is self.last:
            users = self.users.setdefault(self.active.closed, [])
            first = self.first_task.get(part)
            if first is not None and first not in users:
                users.append(first)
        self.active.add(elements)

    def finish(self) -> None:
        """Reduce what is left."""
        for reduction in (self.early, self.last):
            if reduction is not None:
                reduction.finish()


def build_reduction(
    run: TransformerRun, writer: EagerWriter, stream: OpenLane, slot: Slot
) -> GradientReduction:
    """The reduction of gradients over the ranks of *slot*."""
    training, sharding, layout = run.spec.training, run.spec.parallel.sharding, run.layout
    # Gathered weights are reduced one layer at a time: every layer fills its bucket.
    is_by_layer = sharding.divides_weights
    has_replicas = layout.replicas > 1 and slot is Slot.DATA
    limit_bytes = bucket_bytes(run)
    return GradientReduction(
        writer,
        stream,
        slot,
        training.gradient_dtype,
        1 if is_by_layer else limit_bytes,
        CollectiveKind.REDUCE_SCATTER if sharding.divides_state else CollectiveKind.ALL_REDUCE,
        not (is_by_layer or run.overlaps_reduction),
        Slot.REPLICA if has_replicas else None,
        layout.shard_ranks,
        # DDP reduces a small bucket first; buckets that count parameters are all alike.
        first_bytes=limit_bytes if run.counts_bucket_parameters else FIRST_BUCKET_BYTES,
    )


def bucket_bytes(run: TransformerRun) -> int:
    """Bytes of gradients that close a bucket."""
    training = run.spec.training
    if not run.counts_bucket_parameters:
        return training.bucket_size
    parameters = max(_LEAST_PARAMETERS, _PARAMETERS_PER_RANK * run.layout.weight_copies)
    return parameters * training.gradient_dtype.size_bytes


class LayerGathering:
    """Gathers of weights of *run* over the ranks of *slot*; without a *stream* nothing is gathered.

    If gathers do not overlap, each waits for all compute issued before it. Stages of a pipeline
    need weights again at once, so what they gathered stays until the iteration ends.
    """

    def __init__(
        self,
        writer: EagerWriter,
        run: TransformerRun,
        stream: OpenLane | None,
        slot: Slot = Slot.DATA,
    ) -> None:
        self.stream, self._slot = stream, slot
        self.is_kept = run.layout.pp > 1
        self._writer, self._run = writer, run
        self._is_copied = run.stack.has(FrameworkBehaviour.COPIED_GATHERS)
        # The last kernels of past layers, and gathers whose weights are still to be used.
        self._used: list[Dependency | int] = []
        self._gathered: dict[str, int] = {}

    def state(self) -> list[list[Any]]:
        """Gathered weights, and the layers that the next gather may wait for."""
        return [self._used[-_AHEAD:], [*self._gathered], [*self._gathered.values()]]

    def restore(self, cells: Sequence[list[Any]]) -> None:
        """Continue from what `state` returned."""
        self._used, names, tasks = cells
        self._gathered = dict(zip(names, tasks, strict=True))

    def gather(self, name: str, parameters: int) -> None:
        """Start to gather the weights called *name*, unless that was done."""
        if name in self._gathered or self.stream is None or not parameters:
            return
        if len(self._used) >= _AHEAD and not self.is_kept:
            self._writer.hold(self.stream, self._used[-_AHEAD])
        dtype = self._run.dtype
        self._gathered[name] = self._writer.communicate(
            Collective(CollectiveKind.ALL_GATHER, parameters * dtype.size_bytes, dtype),
            label=f"{name}/{'experts' if self._slot is Slot.EXPERT_DATA else 'weights'} all_gather",
            stream=self.stream,
            slot=self._slot,
            is_behind_compute=not self._run.overlaps_gathers,
        )

    def use(self, name: str, parameters: int) -> None:
        """Make compute wait for the weights called *name*, and copy them to their place."""
        if self.stream is None or not parameters:
            return
        self.gather(name, parameters)
        self._writer.hold(self._writer.compute, self._gathered[name])
        if self._is_copied:
            copy = elementwise("split", parameters, self._run.dtype)
            self._writer.run("split_with_sizes_copy", [copy], label=f"{name}/weights copied out")
        if not self.is_kept:
            del self._gathered[name]

    def release(self) -> None:
        """Note that compute is done with the weights it used last."""
        if self.stream is not None and self._writer.compute.last_task is not None:
            self._used.append(self._writer.compute.last_task)


@dataclass(frozen=True, slots=True)
class UpdateWriter:
    """Writes what surrounds the passes of an iteration: zeroing, clipping, the optimizer's step.

    *groups* are tensors that data-parallel ranks hold together, *experts* those that only ranks
    with the same experts hold.
    """

    writer: EagerWriter
    run: TransformerRun
    groups: Groups
    experts: Groups

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
        if training.optimizer == "none":
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
        for operator, ops in iter_optimizer_calls(
            training.optimizer,
            kernels,
            shares,
            gradient_dtype=training.gradient_dtype,
            weight_dtype=training.weight_dtype,
        ):
            self.writer.run(operator, ops, label="optimizer/step")

    def gather_weights(self, reductions: Reductions, *, first_task: int) -> None:
        """Gather updated weights where ranks keep all of them; the next iteration waits for them.

        The first layers are needed first, and their bucket was the last to fill. Without overlap,
        and where calls are coalesced, all buckets are gathered in one call, and *first_task* waits
        for it.
        """
        sharding, training = self.run.spec.parallel.sharding, self.run.spec.training
        reduction, dtype = reductions.last, training.weight_dtype
        is_gathered = sharding.divides_state and not sharding.divides_weights
        if not is_gathered or training.optimizer == "none" or reduction is None:
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
