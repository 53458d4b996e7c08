"""RankWriter: one rank's iteration of a recommendation model, from input to optimizer.

Autograd runs what was recorded last first: the exchange of embedding
gradients starts, the bottom layers run meanwhile, then the tables are updated.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import ProgramBuilder
from perfmodel.graph.ops import Copy, CopyRoute, MemoryBound
from perfmodel.graph.program import Dependency, Program
from perfmodel.stacks.capabilities import FrameworkBehaviour, OptimizerKernels, Overlap
from perfmodel.stacks.optimizers import load_optimizers
from perfmodel.workloads.dlrm import sequence
from perfmodel.workloads.dlrm.dense import (
    backward_steps,
    bottom_layers,
    cross_backward_steps,
    cross_forward_steps,
    cross_layers,
    dense_layers,
    forward_steps,
    top_layers,
)
from perfmodel.workloads.dlrm.interaction import InteractionSteps
from perfmodel.workloads.dlrm.run import DlrmRun
from perfmodel.workloads.dlrm.sparse import SparsePart, SparseWriter
from perfmodel.workloads.eager import EagerWriter, Step, StepWriter, feed_batch
from perfmodel.workloads.kernels import (
    FP32_BYTES,
    elementwise,
    iter_optimizer_calls,
    row_sum,
)
from perfmodel.workloads.reduction import GradientReduction, reduces_once

REDUCTION_SLOT = 1


class DlrmRankWriter:
    """Writes the program of the ranks of *run* that hold *part*."""

    def __init__(self, program: ProgramBuilder, run: DlrmRun, part: SparsePart) -> None:
        self._run, self._spec, self._part = run, run.spec, part
        self._writer = writer = EagerWriter(program, run.stack, run.ranks_per_host)
        overlaps = run.stack.overlaps_with_compute
        stream = index_stream = reduction = None
        if run.rank_count > 1:
            # One process group has one stream, so exchanges and reductions queue in the order
            # in which they are issued.
            stream = reducing = writer.add_lane("communication stream")
            if overlaps(Overlap.EXCHANGE_AND_REDUCTION):
                reducing = writer.add_lane("reduction stream")
            # Gradients in one piece have no smaller first bucket.
            reduction = GradientReduction(
                writer,
                reducing,
                REDUCTION_SLOT,
                run.gradient_dtype,
                self._spec.training.bucket_size,
                is_deferred=not overlaps(Overlap.GRADIENT_REDUCTION),
                closed=int(reduces_once(run.stack)),
            )
            if overlaps(Overlap.INDEX_EXCHANGE):
                index_stream = writer.add_lane("index stream")
        self._reduction = reduction
        self._steps = StepWriter(writer)
        self._sparse = SparseWriter(writer, run, part, stream, index_stream, reduction)
        self._interaction = InteractionSteps(run)

    def write(self) -> Program:
        """The program."""
        writer, layers = self._writer, dense_layers(self._spec)
        self._feed()
        self._forward()
        if self._spec.training.forward_only:
            return writer.finish(reads_loss=self._spec.sync_each_iteration)
        self._loss()
        if not self._part.bottom_samples:
            layers = layers[len(bottom_layers(self._spec)) :]
        copied = [table.rows * table.width for table in self._sparse.copied_tables]
        sizes = [size for layer in layers for size in layer.tensors] + copied
        self._zero_gradients(sizes)
        writer.switch(writer.autograd, label="backward hand-over")
        self._backward()
        writer.switch(writer.main, label="optimizer hand-over")
        self._step(sizes)
        return writer.finish(reads_loss=self._spec.sync_each_iteration)

    def _write(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._steps.write(step)
            if step.parameters and self._reduction is not None:
                self._reduction.add(step.parameters)

    def _feed(self) -> None:
        """Copy indices, offsets, dense features and labels to the GPU."""
        spec, section, samples = self._spec, self._spec.input, self._run.samples
        tables = spec.embedding.tables()
        index_bytes = spec.embedding.index_dtype.size_bytes
        lookups = round(samples * sum(table.pooling_factor for table in tables))
        indices, offsets = lookups * index_bytes, (samples * len(tables) + 1) * index_bytes
        features, labels = samples * spec.dense.features * FP32_BYTES, samples * FP32_BYTES
        if self._run.has_blocking_copies:
            feed_batch(self._writer, section, (indices, offsets, features), is_blocking=True)
            return
        if not self._run.stack.overlaps_with_compute(Overlap.INPUT):
            section = section.model_copy(update={"prefetch": False})
        feed_batch(self._writer, section, (indices, features, labels))

    def _forward(self) -> None:
        run, writer, sparse = self._run, self._writer, self._sparse
        is_ahead = self._spec.training.distribute_ahead
        if not is_ahead:
            writer.hold(writer.compute, sparse.distribute_indices())
        # Without an exchange to hide, looking up first gains nothing, and scripts do not do it.
        is_first = self._part.exchanges is not None and not run.has_lone_bottom
        if not is_first:
            self._run_bottom_forward()
        lookup, exchange = sparse.look_up()
        if is_ahead:
            indices = sparse.distribute_indices()
            if indices is not None and lookup is not None:
                writer.program.add_dependency(lookup, Dependency(indices, distance=1))
        if not run.overlaps_exchange:
            sparse.join(exchange)
        if is_first:
            self._run_bottom_forward()
        if run.overlaps_exchange:
            sparse.join(exchange)
        if self._spec.sequence is None:
            self._write(self._interaction.forward())
            self._write(cross_forward_steps(run, cross_layers(self._spec)))
        else:
            self._write(sequence.forward(run, self._spec.sequence))
        self._write(forward_steps(run, top_layers(self._spec), run.outputs))
        self._write(self._interaction.join_forward())

    def _run_bottom_forward(self) -> None:
        if samples := self._part.bottom_samples:
            self._write(forward_steps(self._run, bottom_layers(self._spec), samples))

    def _loss(self) -> None:
        """From the output to the loss; a host that copies in between waits for each copy."""
        samples, is_blocking = self._run.outputs, self._run.has_blocking_copies
        labels = Copy(CopyRoute.HOST_TO_DEVICE, samples * FP32_BYTES)
        loss = Copy(CopyRoute.DEVICE_TO_HOST, FP32_BYTES)
        kernels = [elementwise("bce_loss", samples, DType.FP32, reads=2)]
        if not self._run.fuses_pointwise:
            kernels.append(row_sum(samples, 1, DType.FP32))
        before = [Step("to", "loss/labels to device", (labels,), is_blocking=True)]
        after = [Step("to", "loss/read on the host", (loss,), is_blocking=True)]
        self._write(before if is_blocking else ())
        self._write([Step("binary_cross_entropy", "loss forward", tuple(kernels))])
        self._write(after if is_blocking else ())

    def _backward(self) -> None:
        run, spec, reduction, label = self._run, self._spec, self._reduction, "loss backward"
        kernels = [elementwise("bce_loss", run.outputs, DType.FP32, reads=2)]
        if not run.fuses_pointwise:
            one = MemoryBound("fill", 0, FP32_BYTES, DType.FP32)
            self._write([Step("ones_like", label, (one,))])
            kernels.insert(0, elementwise("zero", run.outputs, DType.FP32, reads=0))
        self._write([Step("BinaryCrossEntropyBackward", label, tuple(kernels))])
        self._write(self._interaction.join_backward())
        self._write(backward_steps(run, top_layers(spec), run.outputs))
        if spec.sequence is None:
            self._write(cross_backward_steps(run, cross_layers(spec)))
            self._write(self._interaction.backward())
        else:
            self._write(sequence.backward(run, spec.sequence))
        gradients = self._sparse.return_gradients()
        is_lone = run.has_lone_bottom
        is_hidden = gradients is not None and run.overlaps_exchange and not is_lone
        if not is_hidden:
            self._sparse.update(gradients)
        if samples := self._part.bottom_samples:
            self._write(backward_steps(run, bottom_layers(spec), samples, is_reduced=not is_lone))
        self._sparse.reduce_copied()
        if reduction is not None:
            reduction.flush()
        if is_hidden:
            self._sparse.update(gradients)
        if reduction is not None:
            reduction.finish()

    def _zero_gradients(self, sizes: list[int]) -> None:
        """Clear gradients of *sizes* numbers, unless GEMMs overwrite them."""
        if not self._run.copies_gradients:
            return
        is_plain = self._run.stack.optimizer_kernels is OptimizerKernels.PLAIN
        cleared = sizes if is_plain else [sum(sizes)]
        zeros = [elementwise("zero", size, DType.FP32, reads=0) for size in cleared]
        name = self._spec.training.optimizer.upper()
        operator = f"Optimizer.zero_grad#{name}.zero_grad"
        self._writer.run(operator, zeros, label="optimizer/zero gradients")

    def _step(self, sizes: list[int]) -> None:
        """Write the optimizer's step over tensors of *sizes* numbers, as one operator."""
        run, training = self._run, self._spec.training
        if self._reduction is not None and run.copies_gradients:
            label = "gradients/copy from bucket"
            for size in sizes:
                kernel = elementwise("copy", size, DType.FP32)
                self._writer.run("copy_bucket_to_grad", [kernel], label=label)
        name = training.optimizer
        has_state = load_optimizers()[name].states > 0
        is_cast = has_state and run.stack.has(FrameworkBehaviour.CASTS_WEIGHTS)
        calls = iter_optimizer_calls(
            name,
            run.stack.optimizer_kernels,
            [sizes],
            gradient_dtype=run.gradient_dtype,
            weight_dtype=training.precision if is_cast else DType.FP32,
        )
        kernels = [kernel for _, of_call in calls for kernel in of_call]
        self._writer.run(f"Optimizer.step#{name.upper()}.step", kernels, label="optimizer/step")
