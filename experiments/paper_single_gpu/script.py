"""The script of the study: one iteration, operator by operator, as eager PyTorch of 2021 ran it.

Differs from the library's writer of DLRMs in what that script does and current ones do not: every
copy to or from the GPU blocks the host (inputs, the indices of the triangle, labels, the loss), a
layer copies its bias before the product, gradients are added to zeros, and zeroing and SGD launch
one kernel a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from embeddings.lookup import Lookup
from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Copy, CopyRoute, EmbeddingOp, Gemm, MemoryBound, Op, Pass
from perfmodel.workloads.dlrm.dense import DenseLayer, bottom_layers, dense_layers, top_layers
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.kernels import (
    elementwise,
    forward_gemm,
    input_gemm,
    row_sum,
    weight_gemm,
)

FP32 = DType.FP32
INDEX_BACKWARD_BYTES = 355
"""Traffic an element of the triangle's gradient stands for.

Fitted: the kernel takes 0.436 ns an element at two sizes of the recorded V100 iterations (36 and
351 elements a sample, 2,048 samples), far from any bandwidth: neighbours lie a sample apart.
"""


def build_script_job(spec: DlrmSpec) -> JobGraph:
    """One iteration of *spec* on one GPU."""
    job = JobBuilder()
    program = job.new_program()
    writer = EagerWriter(program)
    _Script(writer, spec).write()
    job.add_rank(job.add_program(writer.finish()))
    return job.build(JobFacts(name=spec.name, source="script of the single-GPU study"))


class _Script:
    def __init__(self, writer: EagerWriter, spec: DlrmSpec) -> None:
        self._writer, self._spec, self._batch = writer, spec, spec.batch
        self._vectors = len(spec.embedding.rows) + 1
        self._width = spec.dense.bottom_mlp[-1]
        tables = spec.embedding.tables()
        self._lookup = Lookup(tables, spec.batch, spec.embedding.optimizer, "table_batched")
        self._tensors = [size for layer in dense_layers(spec) for size in layer.tensors]

    def write(self) -> None:
        writer = self._writer
        for size in self._input_sizes():
            self._copy(size, "input")
        self._forward_layers(bottom_layers(self._spec))
        self._run("LookupFunction", [EmbeddingOp(self._lookup)], "embedding forward")
        self._interact()
        self._forward_layers(top_layers(self._spec))
        self._copy(self._batch * 4, "labels")
        loss = [elementwise("mse_loss", self._batch, FP32, reads=2), self._small("reduce_sum")]
        self._run("mse_loss", loss, "loss forward")
        self._copy(4, "loss", CopyRoute.DEVICE_TO_HOST)
        zeros = [MemoryBound("zero", 0, size * 4, FP32) for size in self._tensors]
        self._run("Optimizer.zero_grad#SGD.zero_grad", zeros, "zero gradients")
        self._run("ones_like", [self._small("fill")], "loss backward")
        writer.hand_over(writer.autograd, label="backward")
        self._backward()
        writer.hand_over(writer.main, label="optimizer")
        steps = [elementwise("sgd", size, FP32, reads=2) for size in self._tensors]
        self._run("Optimizer.step#SGD.step", steps, "optimizer step")

    def _input_sizes(self) -> list[int]:
        tables = self._spec.embedding.tables()
        indices = round(self._batch * sum(table.pooling_factor for table in tables))
        offsets = self._batch * len(tables) + 1
        width = self._spec.embedding.index_dtype.size_bytes
        return [indices * width, offsets * width, self._batch * self._spec.dense.features * 4]

    def _copy(
        self, size_bytes: int, label: str, route: CopyRoute = CopyRoute.HOST_TO_DEVICE
    ) -> None:
        task = self._writer.run("to", [Copy(route, size_bytes)], label=f"{label} copy")
        self._writer.block([task], label=f"{label} copy")

    def _forward_layers(self, layers: Sequence[DenseLayer]) -> None:
        for layer in layers:
            size = self._batch * layer.outputs
            bias = MemoryBound("copy", layer.outputs * 4, size * 4, FP32)
            gemm = forward_gemm(self._batch, layer.inputs, layer.outputs, FP32)
            self._run("linear", [bias, gemm], f"{layer.label} forward")
            self._run(
                layer.activation,
                [elementwise(layer.activation, size, FP32)],
                f"{layer.label} forward",
            )

    def _interact(self) -> None:
        vectors, width, batch = self._vectors, self._width, self._batch
        for _ in range(2):
            self._writer.note("view")
        self._run("cat", [elementwise("concat", batch * vectors * width, FP32)], "concat forward")
        self._writer.note("transpose")
        self._run("bmm", [Gemm(vectors, vectors, width, FP32, batch=batch)], "products forward")
        for operator in ("tril_indices", "slice"):
            self._writer.note(operator)
        # Indices of the triangle are made on the host; each copy of one waits for the GPU.
        for _ in range(2):
            self._copy(self._triangle * 8, "triangle indices")
        self._run("index", [self._triangle_kernel("index", 1)], "triangle forward")
        output = batch * self._spec.top_inputs
        self._run("cat", [elementwise("concat", output, FP32)], "output forward")

    @property
    def _triangle(self) -> int:
        return self._vectors * (self._vectors - 1) // 2

    def _triangle_kernel(self, word: str, reads: int) -> MemoryBound:
        size = self._batch * self._triangle * 4
        return MemoryBound(word, reads * self._batch * self._vectors**2 * 4, size, FP32)

    def _backward(self) -> None:
        loss = elementwise("mse_loss", self._batch, FP32, reads=2)
        self._run("MseLossBackward", [self._small("zero"), loss], "loss backward")
        self._backward_layers(top_layers(self._spec))
        for _ in range(2):
            self._writer.note("slice")
        self._interact_backward()
        backward = EmbeddingOp(self._lookup, Pass.BACKWARD)
        self._run("LookupFunctionBackward", [backward], "embedding backward")
        self._backward_layers(bottom_layers(self._spec))

    def _interact_backward(self) -> None:
        vectors, width, batch = self._vectors, self._width, self._batch
        square = batch * vectors * vectors
        picked = batch * self._triangle
        small = [self._small("fill") for _ in range(8)]
        gradient = MemoryBound("index", picked * INDEX_BACKWARD_BYTES, 0, FP32)
        copied = elementwise("copy", picked, FP32)
        zero = MemoryBound("zero", 0, square * 4, FP32)
        self._run("IndexBackward", [zero, *small, copied, gradient], "triangle backward")
        self._run("SliceBackward", [zero, elementwise("copy", square, FP32)], "slice backward")
        right = Gemm(width, vectors, vectors, FP32, batch=batch)
        left = Gemm(vectors, width, vectors, FP32, batch=batch)
        self._run("BmmBackward", [right, left], "products backward")
        self._writer.note("TransposeBackward")
        add = elementwise("add", batch * vectors * width, FP32, reads=2)
        self._run("add", [add], "products backward")
        for operator in ("slice", "slice", "ViewBackward", "ViewBackward"):
            self._writer.note(operator)
        self._run("add", [elementwise("add", batch * width, FP32, reads=2)], "dense backward")

    def _backward_layers(self, layers: Sequence[DenseLayer]) -> None:
        for layer in reversed(layers):
            label = f"{layer.label} backward"
            size = self._batch * layer.outputs
            word = f"{layer.activation}_backward"
            kernel = elementwise(word, size, FP32, reads=2)
            self._run(f"{layer.activation.capitalize()}Backward", [kernel], label)
            shape = (self._batch, layer.inputs, layer.outputs, FP32)
            gemms = [input_gemm(*shape)] if layer.needs_input_gradient else []
            self._run("AddmmBackward", [*gemms, weight_gemm(*shape)], label)
            self._run("sum", [row_sum(self._batch, layer.outputs, FP32)], label)
            self._writer.note("view")
            for place, tensor in enumerate(reversed(layer.tensors)):
                if place:
                    self._writer.note("TBackward")
                self._run("AccumulateGrad", [elementwise("add", tensor, FP32, reads=2)], label)

    def _small(self, word: str) -> MemoryBound:
        return elementwise(word, self._batch, FP32)

    def _run(self, operator: str, kernels: Sequence[Op], label: str) -> None:
        self._writer.run(operator, kernels, label=label)
