"""RankWriter: one rank's iteration of a recommendation model, from input to optimizer.

Autograd runs what was recorded last first: the exchange of embedding
gradients starts, the bottom layers run meanwhile, then the tables are updated.
"""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import Dependency, ProgramBuilder
from perfmodel.graph.ops import CopyRoute, MemoryBound, Op
from perfmodel.graph.program import Program
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion, OptimizerKernels, Overlap
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.dlrm.dense import (
    DenseWriter,
    InteractionWriter,
    bottom_layers,
    cross_layers,
    dense_layers,
    top_layers,
)
from perfmodel.workloads.dlrm.sparse import SparsePart, SparseWriter, has_lone_bottom
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.eager import EagerWriter, feed_batch
from perfmodel.workloads.kernels import (
    FP32_BYTES,
    STATES,
    elementwise,
    iter_optimizer_calls,
    row_sum,
)
from perfmodel.workloads.reduction import BucketFill, GradientReduction

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
        self._spec, self._stack = spec, stack
        self._samples = samples = spec.batch // rank_count
        self._writer = writer = EagerWriter(program, stack)
        # Gradients in the format of products where the cast of weights is fused.
        precision = spec.training.precision
        self._gradient_dtype = precision if stack.fuses(Fusion.WEIGHT_CAST) else DType.FP32
        stream = index_stream = reduction = None
        if rank_count > 1:
            # One process group has one stream, so exchanges and reductions queue in the order
            # in which they are issued.
            stream = reducing = writer.add_lane("communication stream")
            if stack.overlaps_with_compute(Overlap.EXCHANGE_AND_REDUCTION):
                reducing = writer.add_lane("reduction stream")
            # Gradients in one piece have no smaller first bucket.
            closed = int(stack.has(FrameworkBehaviour.ONE_REDUCTION))
            reduction = GradientReduction(
                writer,
                reducing,
                REDUCTION_SLOT,
                self._gradient_dtype,
                BucketFill(spec.training.bucket_size, closed=closed),
                is_deferred=not stack.overlaps_with_compute(Overlap.GRADIENT_REDUCTION),
            )
            if stack.overlaps_with_compute(Overlap.INDEX_EXCHANGE):
                index_stream = writer.add_lane("index stream")
        self._reduction = reduction
        self._dense = DenseWriter(writer, samples, precision, reduction, stack)
        self._has_lone_bottom = has_lone_bottom(stack, rank_count)
        reduced = None if self._has_lone_bottom else reduction
        self._bottom = DenseWriter(writer, part.bottom_samples, precision, reduced, stack)
        self._sparse = SparseWriter(
            writer, spec, part, samples, stream, index_stream, reduction, stack
        )
        self._interaction = InteractionWriter(writer, spec, stack, samples)

    def write(self) -> Program:
        """The program."""
        writer = self._writer
        self._feed()
        self._forward()
        self._loss()
        layers = dense_layers(self._spec)
        if not self._bottom.samples:
            layers = layers[len(bottom_layers(self._spec)) :]
        copied = [table.rows * table.width for table in self._sparse.copied_tables]
        sizes = [size for layer in layers for size in layer.tensors] + copied
        self._zero_gradients(sizes)
        writer.switch(writer.autograd, label="backward hand-over")
        self._backward()
        writer.switch(writer.main, label="optimizer hand-over")
        self._step(sizes)
        return writer.finish(reads_loss=self._spec.sync_each_iteration)

    def _feed(self) -> None:
        """Copy indices, offsets, dense features and labels to the GPU."""
        spec, section, samples = self._spec, self._spec.input, self._samples
        tables = spec.embedding.tables()
        index_bytes = spec.embedding.index_dtype.size_bytes
        lookups = round(samples * sum(table.pooling_factor for table in tables))
        indices, offsets = lookups * index_bytes, (samples * len(tables) + 1) * index_bytes
        features, labels = samples * spec.dense.features * FP32_BYTES, samples * FP32_BYTES
        if self._stack.has(FrameworkBehaviour.BLOCKING_COPIES):
            feed_batch(self._writer, section, (indices, offsets, features), is_blocking=True)
            return
        if not self._stack.overlaps_with_compute(Overlap.INPUT):
            section = section.model_copy(update={"prefetch": False})
        feed_batch(self._writer, section, (indices, features, labels))

    def _forward(self) -> None:
        spec, writer, sparse = self._spec, self._writer, self._sparse
        is_ahead = spec.training.distribute_ahead
        if not is_ahead:
            writer.hold(writer.compute, sparse.distribute_indices())
        # Without an exchange to hide, looking up first gains nothing, and scripts do not do it.
        is_first = sparse.part.exchanges is not None and not self._has_lone_bottom
        if not is_first:
            self._run_bottom_forward()
        lookup, exchange = sparse.look_up()
        if is_ahead:
            indices = sparse.distribute_indices()
            if indices is not None and lookup is not None:
                writer.program.add_dependency(lookup, Dependency(indices, distance=1))
        is_overlapped = self._stack.overlaps_with_compute(Overlap.EMBEDDING_EXCHANGE)
        if not is_overlapped:
            sparse.join(exchange)
        if is_first:
            self._run_bottom_forward()
        if is_overlapped:
            sparse.join(exchange)
        self._interaction.run_forward()
        self._dense.run_cross_forward(cross_layers(spec))
        self._dense.run_forward(top_layers(spec))
        self._interaction.join_forward()

    def _run_bottom_forward(self) -> None:
        if self._bottom.samples:
            self._bottom.run_forward(bottom_layers(self._spec))

    def _loss(self) -> None:
        writer, is_blocking = self._writer, self._stack.has(FrameworkBehaviour.BLOCKING_COPIES)
        if is_blocking:
            writer.copy_blocking(self._samples * FP32_BYTES, label="loss/labels to device")
        kernels: list[Op] = [elementwise("bce_loss", self._samples, DType.FP32, reads=2)]
        if not self._stack.fuses(Fusion.ELEMENTWISE):
            kernels.append(row_sum(self._samples, 1, DType.FP32))
        writer.run("binary_cross_entropy", kernels, label="loss forward")
        if is_blocking:
            route = CopyRoute.DEVICE_TO_HOST
            writer.copy_blocking(FP32_BYTES, label="loss/read on the host", route=route)

    def _backward(self) -> None:
        spec = self._spec
        kernels: list[Op] = [elementwise("bce_loss", self._samples, DType.FP32, reads=2)]
        if not self._stack.fuses(Fusion.ELEMENTWISE):
            one = MemoryBound("fill", 0, FP32_BYTES, DType.FP32)
            self._writer.run("ones_like", [one], label="loss backward")
            kernels.insert(0, elementwise("zero", self._samples, DType.FP32, reads=0))
        self._writer.run("BinaryCrossEntropyBackward", kernels, label="loss backward")
        self._interaction.join_backward()
        self._dense.run_backward(top_layers(spec))
        self._dense.run_cross_backward(cross_layers(spec))
        self._interaction.run_backward()
        gradients = self._sparse.return_gradients()
        is_overlapped = self._stack.overlaps_with_compute(Overlap.EMBEDDING_EXCHANGE)
        is_hidden = gradients is not None and is_overlapped and not self._has_lone_bottom
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

    def _zero_gradients(self, sizes: list[int]) -> None:
        """Clear gradients of *sizes* numbers, unless GEMMs overwrite them."""
        if self._stack.fuses(Fusion.GRADIENT_COPY):
            return
        is_plain = self._stack.optimizer_kernels is OptimizerKernels.PLAIN
        cleared = sizes if is_plain else [sum(sizes)]
        zeros = [elementwise("zero", size, DType.FP32, reads=0) for size in cleared]
        name = self._spec.training.optimizer.upper()
        operator = f"Optimizer.zero_grad#{name}.zero_grad"
        self._writer.run(operator, zeros, label="optimizer/zero gradients")

    def _step(self, sizes: list[int]) -> None:
        """Write the optimizer's step over tensors of *sizes* numbers, as one operator."""
        stack, training = self._stack, self._spec.training
        if self._reduction is not None and not stack.fuses(Fusion.GRADIENT_COPY):
            label = "gradients/copy from bucket"
            for size in sizes:
                kernel = elementwise("copy", size, DType.FP32)
                self._writer.run("copy_bucket_to_grad", [kernel], label=label)
        name = training.optimizer
        is_cast = STATES[name] > 0 and stack.has(FrameworkBehaviour.CASTS_WEIGHTS)
        calls = iter_optimizer_calls(
            name,
            stack.optimizer_kernels,
            [sizes],
            gradient_dtype=self._gradient_dtype,
            weight_dtype=training.precision if is_cast else DType.FP32,
        )
        kernels = [kernel for _, of_call in calls for kernel in of_call]
        self._writer.run(f"Optimizer.step#{name.upper()}.step", kernels, label="optimizer/step")
