"""RankWriter: one rank's iteration of a recommendation model, from input to optimizer.

Autograd runs what was recorded last first: the exchange of embedding
gradients starts, the bottom layers run meanwhile, then the tables are updated.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import CopyRoute, MemoryBound, Op
from perfmodel.graph.program import LaneKind, Program
from perfmodel.stacks.stack import (
    FrameworkBehaviour,
    Fusion,
    OptimizerKernels,
    Overlap,
    SoftwareStack,
)
from perfmodel.workloads.dlrm.dense import (
    DenseWriter,
    bottom_layers,
    cross_layers,
    dense_layers,
    top_layers,
)
from perfmodel.workloads.dlrm.interaction import InteractionWriter
from perfmodel.workloads.dlrm.sparse import SparsePart, SparseWriter, has_lone_bottom
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.eager import EagerWriter, Stream, issuing_under
from perfmodel.workloads.feeding import copy_blocking, feed_batch, feed_blocking
from perfmodel.workloads.kernels import elementwise, row_sum
from perfmodel.workloads.optimizers import STATES, OptimizerStep
from perfmodel.workloads.reduction import BucketFill, GradientReduction

# How many kernels an operator launches is the optimizer's and the stack's business.


def write_step(
    writer: EagerWriter,
    spec: DlrmSpec,
    stack: SoftwareStack,
    sizes: Sequence[int],
    *,
    has_buckets: bool,
) -> None:
    """Write the step over tensors of *sizes* numbers."""
    dtype = DType.FP32
    name = spec.training.optimizer
    if has_buckets and not stack.fuses(Fusion.GRADIENT_COPY):
        for size in sizes:
            kernel = elementwise("copy", size, dtype)
            writer.run("copy_bucket_to_grad", [kernel], label="gradients/copy from bucket")
    is_short = stack.fuses(Fusion.WEIGHT_CAST)
    is_cast = STATES[name] > 0 and stack.has(FrameworkBehaviour.CASTS_WEIGHTS)
    step = OptimizerStep(
        name,
        stack.optimizer_kernels,
        gradient_dtype=spec.training.precision if is_short else dtype,
        weight_dtype=spec.training.precision if is_cast else dtype,
    )
    kernels = [kernel for call in step.iter_calls([sizes]) for kernel in call.kernels]
    writer.run(f"Optimizer.step#{name.upper()}.step", kernels, label="optimizer/step")


def write_clearing(
    writer: EagerWriter, spec: DlrmSpec, stack: SoftwareStack, sizes: Sequence[int]
) -> None:
    """Clear gradients of *sizes* numbers, where products do not overwrite them anyway."""
    if stack.fuses(Fusion.GRADIENT_COPY):
        return
    dtype = DType.FP32
    is_plain = stack.optimizer_kernels is OptimizerKernels.PLAIN
    cleared = sizes if is_plain else [sum(sizes)]
    zeros = [MemoryBound("zero", 0, size * dtype.size_bytes, dtype) for size in cleared]
    name = spec.training.optimizer.upper()
    operator = f"Optimizer.zero_grad#{name}.zero_grad"
    writer.run(operator, zeros, label="optimizer/zero gradients")


REDUCTION_SLOT = 1


class RankWriter:
    """Writes the program of the ranks that hold *part*."""

    def __init__(
        self,
        program: ProgramBuilder,
        spec: DlrmSpec,
        part: SparsePart,
        rank_count: int,
        stack: SoftwareStack,
    ) -> None:
        self._program = program
        self._spec = spec
        self._stack = stack
        self._samples = samples = spec.batch // rank_count
        self._writer = writer = EagerWriter(program, issuing_under(stack))
        stream = index_stream = None
        self._reduction = None
        if rank_count > 1:
            # One process group has one stream, so exchanges and reductions queue up behind
            # each other in the order they are issued.
            stream = writer.add_stream("communication stream", LaneKind.COMMUNICATION)
            reducing = stream
            if stack.overlaps_with_compute(Overlap.EXCHANGE_AND_REDUCTION):
                reducing = writer.add_stream("reduction stream", LaneKind.COMMUNICATION)
            self._reduction = self._build_reduction(reducing)
            if stack.overlaps_with_compute(Overlap.INDEX_EXCHANGE):
                index_stream = writer.add_stream("index stream", LaneKind.COMMUNICATION)
        precision = spec.training.precision
        self._dense = DenseWriter(writer, samples, precision, self._reduction, stack)
        self._has_lone_bottom = has_lone_bottom(stack, rank_count)
        reduced = None if self._has_lone_bottom else self._reduction
        self._bottom = DenseWriter(writer, part.bottom_samples, precision, reduced, stack)
        self._sparse = SparseWriter(
            writer, spec, part, samples, stream, index_stream, self._reduction, stack
        )
        self._interaction = InteractionWriter(writer, spec, stack, samples)

    def _build_reduction(self, stream: Stream) -> GradientReduction:
        training, stack = self._spec.training, self._stack
        is_short = stack.fuses(Fusion.WEIGHT_CAST)
        return GradientReduction(
            self._writer,
            stream,
            REDUCTION_SLOT,
            training.precision if is_short else DType.FP32,
            # Gradients in one piece have no smaller first bucket.
            BucketFill(
                training.bucket_size, closed=int(stack.has(FrameworkBehaviour.ONE_REDUCTION))
            ),
            is_deferred=not stack.overlaps_with_compute(Overlap.GRADIENT_REDUCTION),
        )

    def write(self) -> Program:
        """The program."""
        writer = self._writer
        self._feed()
        self._forward()
        self._loss()
        sizes = self._tensor_sizes()
        write_clearing(writer, self._spec, self._stack, sizes)
        writer.hand_over(writer.autograd, label="backward")
        self._backward()
        writer.hand_over(writer.main, label="optimizer")
        has_buckets = self._reduction is not None
        write_step(writer, self._spec, self._stack, sizes, has_buckets=has_buckets)
        if self._spec.sync_each_iteration:
            last = writer.compute.last_task
            writer.block([last] if last is not None else [], label="loss/read on the host")
        return writer.finish()

    def _tensor_sizes(self) -> list[int]:
        """Numbers in every tensor that this rank's optimizer steps over."""
        layers = dense_layers(self._spec)
        if not self._bottom.samples:
            layers = layers[len(bottom_layers(self._spec)) :]
        copied = [table.rows * table.width for table in self._sparse.copied_tables]
        return [size for layer in layers for size in layer.tensors] + copied

    def _feed(self) -> None:
        section, sizes = self._spec.input, self._input_sizes()
        if self._stack.has(FrameworkBehaviour.BLOCKING_COPIES):
            feed_blocking(self._writer, self._program, section=section, sizes=sizes)
            return
        if not self._stack.overlaps_with_compute(Overlap.INPUT):
            section = section.model_copy(update={"prefetch": False})
        labels_bytes = self._samples * DType.FP32.size_bytes
        size_bytes = sizes[0] + sizes[2] + labels_bytes
        feed_batch(self._writer, self._program, section=section, size_bytes=size_bytes)

    def _input_sizes(self) -> tuple[int, int, int]:
        """Bytes of indices, offsets and dense features."""
        tables = self._spec.embedding.tables()
        lookups = round(self._samples * sum(table.pooling_factor for table in tables))
        offsets = self._samples * len(tables) + 1
        index_bytes = self._spec.embedding.index_dtype.size_bytes
        dense_bytes = self._samples * self._spec.dense.features * DType.FP32.size_bytes
        return lookups * index_bytes, offsets * index_bytes, dense_bytes

    def _forward(self) -> None:
        spec = self._spec
        is_ahead = spec.training.distribute_ahead
        if not is_ahead:
            indices = self._sparse.distribute_indices()
            self._writer.hold(self._writer.compute, [] if indices is None else [indices])
        # Without an exchange to hide nothing is gained by looking up first, and scripts do not.
        is_first = self._sparse.part.exchanges is not None and not self._has_lone_bottom
        if not is_first:
            self._run_bottom_forward()
        tasks = self._sparse.look_up()
        if is_ahead:
            indices = self._sparse.distribute_indices()
            if indices is not None and tasks.lookup is not None:
                self._program.add_dependency(tasks.lookup, Dependency(indices, distance=1))
        is_beside = self._stack.overlaps_with_compute(Overlap.EMBEDDING_EXCHANGE)
        if not is_beside:
            self._sparse.join(tasks.exchange)
        if is_first:
            self._run_bottom_forward()
        if is_beside:
            self._sparse.join(tasks.exchange)
        self._interaction.run_forward()
        self._dense.run_cross_forward(cross_layers(spec))
        self._dense.run_forward(top_layers(spec))
        self._interaction.join_forward()

    def _run_bottom_forward(self) -> None:
        if self._bottom.samples:
            self._bottom.run_forward(bottom_layers(self._spec))

    def _loss(self) -> None:
        is_blocking = self._stack.has(FrameworkBehaviour.BLOCKING_COPIES)
        size_bytes = DType.FP32.size_bytes
        if is_blocking:
            copy_blocking(self._writer, self._samples * size_bytes, label="loss/labels to device")
        kernels: list[Op] = [elementwise("bce_loss", self._samples, DType.FP32, reads=2)]
        if not self._stack.fuses(Fusion.ELEMENTWISE):
            kernels.append(row_sum(self._samples, 1, DType.FP32))
        self._writer.run("binary_cross_entropy", kernels, label="loss forward")
        if is_blocking:
            route = CopyRoute.DEVICE_TO_HOST
            copy_blocking(self._writer, size_bytes, label="loss/read on the host", route=route)

    def _backward(self) -> None:
        spec = self._spec
        kernels: list[Op] = [elementwise("bce_loss", self._samples, DType.FP32, reads=2)]
        if not self._stack.fuses(Fusion.ELEMENTWISE):
            one = MemoryBound("fill", 0, DType.FP32.size_bytes, DType.FP32)
            self._writer.run("ones_like", [one], label="loss backward")
            kernels.insert(0, elementwise("zero", self._samples, DType.FP32, reads=0))
        self._writer.run("BinaryCrossEntropyBackward", kernels, label="loss backward")
        self._interaction.join_backward()
        self._dense.run_backward(top_layers(spec))
        self._dense.run_cross_backward(cross_layers(spec))
        self._interaction.run_backward()
        gradients = self._sparse.return_gradients()
        is_beside = self._stack.overlaps_with_compute(Overlap.EMBEDDING_EXCHANGE)
        is_hidden = gradients is not None and is_beside and not self._has_lone_bottom
        if not is_hidden:
            self._sparse.update(gradients)
        if self._bottom.samples:
            self._bottom.run_backward(bottom_layers(spec))
        self._sparse.reduce_copied()
        if self._reduction is not None:
            self._reduction.flush()
        if is_hidden:
            self._sparse.update(gradients)
        if self._reduction is not None:
            self._reduction.finish()
