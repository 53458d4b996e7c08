"""Data parallelism of a stage: gradients reduced, weights gathered.

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
from perfmodel.graph.issuing import OpenLane
from perfmodel.graph.program import Dependency
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import elementwise
from perfmodel.workloads.reduction import (
    FIRST_BUCKET_BYTES,
    ONE_BUCKET_BYTES,
    GradientReduction,
)
from perfmodel.workloads.transformer.layout import Slot
from perfmodel.workloads.transformer.run import TransformerRun

_AHEAD = 2
_LEAST_PARAMETERS, _PARAMETERS_PER_RANK = 40_000_000, 1_000_000
"""Of a bucket that counts parameters (Megatron-Core, DistributedDataParallelConfig)."""


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
        # DDP reduces a small bucket first; buckets that count parameters are all equal.
        first_bytes=limit_bytes if run.counts_bucket_parameters else FIRST_BUCKET_BYTES,
        is_checked=run.stack.has(FrameworkBehaviour.CHECKED_NUMBERS),
        is_scaled=run.stack.has(FrameworkBehaviour.SCALED_GRADIENTS),
    )


def bucket_bytes(run: TransformerRun) -> int:
    """Bytes of gradients that close a bucket; Megatron-Core has one where nothing overlaps."""
    training = run.spec.training
    if not run.counts_bucket_parameters:
        return training.bucket_size
    if not run.overlaps_reduction:
        return ONE_BUCKET_BYTES
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
