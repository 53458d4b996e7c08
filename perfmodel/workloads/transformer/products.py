"""Products: fully connected layers of a tensor-parallel rank, forward and backward, as steps.

A product split by outputs needs the whole input: with sequence parallelism it
is gathered, and its gradient scattered; without, its gradient is all-reduced
beside the product for the weight. A product split by inputs gives partial
sums that are reduced at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import (
    bias_add,
    elementwise,
    forward_gemm,
    input_gemm,
    row_sum,
    weight_gemm,
)
from perfmodel.workloads.transformer.placement import Layout
from perfmodel.workloads.transformer.schedule import Joining, Step
from perfmodel.workloads.transformer.shapes import Linear
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.switches import StackSwitches

_OVERLAPPING = "LinearWithGradAccumulationAndAsyncCommunicationBackward"


@dataclass(frozen=True, slots=True)
class ProductSteps:
    """Makes the steps of products over *tokens* tokens of a micro-batch."""

    spec: TransformerSpec
    layout: Layout
    switches: StackSwitches
    tokens: int

    @property
    def dtype(self) -> DType:
        """What products are computed in."""
        return self.spec.training.precision

    @property
    def split_tokens(self) -> int:
        """Tokens that norms and residuals of one rank see."""
        return self.tokens // self.layout.tp if self.layout.is_sequence_parallel else self.tokens

    def wide(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a product split by outputs."""
        steps = [Step("linear", f"{label} forward", self._forward_kernels(linear))]
        if self.layout.is_sequence_parallel:
            kind = CollectiveKind.ALL_GATHER
            steps.insert(0, self._exchange(kind, linear.inputs, f"{label} input"))
        return steps

    def narrow(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a product split by inputs, and the reduction of its partial sums."""
        steps = [Step("linear", f"{label} forward", self._forward_kernels(linear))]
        if self.layout.tp > 1:
            steps.append(self._exchange(self._reducing, linear.outputs, f"{label} output"))
        return steps

    def wide_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a product split by outputs."""
        if self.layout.tp == 1:
            return self._plain_backward(linear, label)
        name = f"{label} backward"
        shape = (self.tokens, linear.inputs, linear.outputs, self.dtype)
        steps = [Step(_OVERLAPPING, name, (input_gemm(*shape),))]
        if self.layout.is_sequence_parallel:
            # Only this rank's part of the input was kept, so it is gathered again.
            kind, again = CollectiveKind.ALL_GATHER, f"{label} input again"
            steps.insert(0, self._exchange(kind, linear.inputs, again, Joining.INPUT))
        gradient = f"{label} input gradient"
        steps.append(self._exchange(self._reducing, linear.inputs, gradient, Joining.GRADIENT))
        weight = self._weight_kernels(linear)
        steps.append(Step(_OVERLAPPING, name, weight, joins=(Joining.INPUT,)))
        return [*steps, self.accumulate(linear.parameters, name)]

    def narrow_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a product split by inputs."""
        steps = self._plain_backward(linear, label)
        if self.layout.is_sequence_parallel:
            kind = CollectiveKind.ALL_GATHER
            steps.insert(0, self._exchange(kind, linear.outputs, f"{label} output gradient"))
        return steps

    def dense(self, linear: Linear, label: str, *, is_backward: bool) -> Step:
        """A product that every rank computes whole; its gradients are counted elsewhere."""
        if not is_backward:
            return Step("linear", label, self._forward_kernels(linear))
        gemm = input_gemm(self.tokens, linear.inputs, linear.outputs, self.dtype)
        return Step("AddmmBackward", label, (gemm, *self._weight_kernels(linear)))

    def accumulate(self, parameters: int, label: str) -> Step:
        """The step that adds a fresh gradient to what earlier micro-batches left."""
        training = self.spec.training
        size = training.gradient_dtype.size_bytes
        is_moved = self.layout.micro_batches == 1 and training.gradient_dtype is self.dtype
        kernel = MemoryBound(
            "residual_add",
            read_bytes=parameters * (self.dtype.size_bytes + size),
            write_bytes=parameters * size,
            dtype=training.gradient_dtype,
        )
        kernels = () if is_moved else (kernel,)
        return Step("AccumulateGrad", label, kernels, parameters=parameters)

    def pointwise(
        self, kernel: str, label: str, *, elements: int, operator: str = "", reads: int = 1
    ) -> Step:
        """An elementwise kernel that writes *elements* numbers."""
        op = elementwise(kernel, elements, self.dtype, reads=reads)
        return Step(operator or kernel, label, (op,))

    @property
    def _reducing(self) -> CollectiveKind:
        if self.layout.is_sequence_parallel:
            return CollectiveKind.REDUCE_SCATTER
        return CollectiveKind.ALL_REDUCE

    def _plain_backward(self, linear: Linear, label: str) -> list[Step]:
        name = f"{label} backward"
        shape = (self.tokens, linear.inputs, linear.outputs, self.dtype)
        kernels = (input_gemm(*shape), *self._weight_kernels(linear))
        return [
            Step("AddmmBackward", name, kernels),
            self.accumulate(linear.parameters, name),
        ]

    def _forward_kernels(self, linear: Linear) -> tuple[Op, ...]:
        gemm = forward_gemm(self.tokens, linear.inputs, linear.outputs, self.dtype)
        if not linear.bias or self.switches.fuses(Fusion.BIAS):
            return (gemm,)
        return (gemm, bias_add(self.tokens, linear.outputs, self.dtype))

    def _weight_kernels(self, linear: Linear) -> tuple[Op, ...]:
        weight = weight_gemm(self.tokens, linear.inputs, linear.outputs, self.dtype)
        if not linear.bias:
            return (weight,)
        return (weight, row_sum(self.tokens, linear.bias, self.dtype))

    def _exchange(
        self,
        kind: CollectiveKind,
        width: int,
        label: str,
        joining: Joining = Joining.AT_ONCE,
    ) -> Step:
        size_bytes = self.tokens * width * self.dtype.size_bytes
        collective = Collective(kind, size_bytes=size_bytes, dtype=self.dtype)
        name = f"{label} {kind.value}"
        return Step(kind.value, name, collective=collective, joining=joining)
