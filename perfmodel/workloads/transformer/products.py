"""Products: fully connected layers of a tensor-parallel rank, forward and backward, as steps.

A product split by outputs needs the whole input: with sequence parallelism it
is gathered, and its gradient scattered; without, its gradient is all-reduced
beside the product for the weight. A product split by inputs gives partial
sums that are reduced at once.

Products in a quantised format cast activations and gradients first; what is
gathered travels in that format. The product for the weight reads both along
the tokens, so both need a second copy, turned. Frozen products have no product
for their weight; a narrow pair of products beside them is trained instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.schedule import Joining, Step
from perfmodel.workloads.transformer.shapes import Linear, has_adapter
from perfmodel.workloads.transformer.spec import TensorOverlap, TransformerSpec

_OVERLAPPING = "LinearWithGradAccumulationAndAsyncCommunicationBackward"
_PIECES = 4
"""Pieces of a collective that runs beside the product it feeds or follows: only one shows."""


@dataclass(frozen=True, slots=True)
class ProductSteps:
    """Makes the steps of products over *tokens* tokens of a micro-batch.

    Products of an end (*is_end*), such as the logits, are never quantised and have no adapters.
    """

    run: TransformerRun
    tokens: int
    is_end: bool = False

    @property
    def spec(self) -> TransformerSpec:
        """The workload."""
        return self.run.spec

    @property
    def layout(self) -> Layout:
        """How it is spread."""
        return self.run.layout

    @property
    def dtype(self) -> DType:
        """What activations are stored in."""
        return self.spec.training.precision

    @property
    def product_dtype(self) -> DType:
        """What products are computed in."""
        return self.dtype if self.is_end else self.spec.training.product_dtype

    @property
    def is_quantised(self) -> bool:
        """Whether operands are cast just to be multiplied."""
        return self.product_dtype.is_quantised

    @property
    def is_frozen(self) -> bool:
        """Whether weights are not trained."""
        return self.spec.training.adapters_only

    @property
    def split_tokens(self) -> int:
        """Tokens that norms and residuals of one rank see."""
        return self.tokens // self.layout.tp if self.layout.is_sequence_parallel else self.tokens

    def wide(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a product split by outputs."""
        product = self._forward(linear, label)
        if not self.layout.is_sequence_parallel:
            return product
        return [
            *self._early_cast(linear.inputs, f"{label} input cast"),
            *self._gathered(linear.inputs, f"{label} input", product),
        ]

    def narrow(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a product split by inputs, and the reduction of its partial sums."""
        product = self._forward(linear, label, is_whole=True)
        if self.layout.tp == 1:
            return product
        return self._reduced(linear.outputs, f"{label} output", product)

    def wide_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a product split by outputs."""
        if self.layout.tp == 1:
            return self._plain_backward(linear, label)
        name, is_gathered = f"{label} backward", self.layout.is_sequence_parallel
        shape = (self.tokens, linear.inputs, linear.outputs, self.product_dtype)
        is_beside = self.run.tensor_overlap is not TensorOverlap.NONE
        kernels = (*self._cast(self.tokens * linear.outputs), input_gemm(*shape))
        steps = [Step(_OVERLAPPING, name, kernels)]
        if is_gathered and not self.is_frozen:
            # Only this rank's part of the input was kept, so it is gathered again.
            joining, again = Joining.INPUT if is_beside else Joining.AT_ONCE, f"{label} input again"
            steps.insert(0, self._exchange(_GATHER, linear.inputs, again, joining))
        joining = Joining.GRADIENT if is_beside else Joining.AT_ONCE
        gradient = f"{label} input gradient"
        steps.append(self._exchange(self._reducing, linear.inputs, gradient, joining))
        weights = self._weight_steps(linear, name, is_gathered=is_gathered)
        return [*steps, *weights, *self._adapter_backward(linear, label)]

    def narrow_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a product split by inputs."""
        if not self.layout.is_sequence_parallel:
            return self._plain_backward(linear, label)
        product = self._plain_backward(linear, label, is_cast=True)
        return [
            *self._early_cast(linear.outputs, f"{label} output gradient cast"),
            *self._gathered(linear.outputs, f"{label} output gradient", product),
        ]

    def local(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a product whose weight is whole on every rank, over the rank's own tokens."""
        return replace(self, tokens=self.split_tokens)._forward(linear, label, is_whole=True)

    def local_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a product whose weight is whole on every rank."""
        return replace(self, tokens=self.split_tokens)._plain_backward(linear, label)

    def dense(self, linear: Linear, label: str, *, is_backward: bool) -> Step:
        """A product that every rank computes whole; its gradients are counted elsewhere."""
        if not is_backward:
            return Step("linear", label, self._forward_kernels(linear))
        gemm = input_gemm(self.tokens, linear.inputs, linear.outputs, self.product_dtype)
        return Step("AddmmBackward", label, (gemm, *self._weight_kernels(linear)))

    def weight_casts(self, linear: Linear, label: str) -> list[Step]:
        """What turns a stored weight into the format of products, if that is another one."""
        elements = linear.inputs * linear.outputs
        if self.is_quantised:
            stored = self.spec.training.weight_dtype
            cast = self._cast_kernel(elements, copies=1 if self.is_frozen else 2, source=stored)
        elif self.spec.training.is_autocast:
            cast = _moved("cast", elements * DType.FP32.size_bytes, elements, self.dtype)
        else:
            return []
        return [Step("to", f"{label} weight cast", (cast,))]

    def accumulate(self, parameters: int, label: str, *, is_trained: bool = False) -> list[Step]:
        """The steps that add a fresh gradient to what earlier micro-batches left."""
        if self.is_frozen and not is_trained:
            return []
        training = self.spec.training
        if self.run.fuses(Fusion.GRADIENT_SUM) and not training.is_autocast:
            return [Step("AccumulateGrad", label, (), parameters=parameters)]
        size, fresh = training.gradient_dtype.size_bytes, self.dtype.size_bytes
        is_single = self.layout.micro_batches == 1
        is_scattered = self.spec.parallel.sharding.divides_weights and self.layout.pp == 1
        kernels: list[Op] = []
        if training.is_autocast or (is_scattered and training.gradient_dtype is not self.dtype):
            # The gradient is cast to the weight's format before it is added, or to the format
            # that it is reduced in.
            kernels.append(_moved("cast", parameters * fresh, parameters, training.gradient_dtype))
            fresh = size
        is_wider = training.gradient_dtype is not self.dtype and not kernels
        # What is scattered at once is added to a rank's share only, which is small.
        if not is_scattered and (not is_single or is_wider):
            add = MemoryBound(
                "residual_add",
                read_bytes=parameters * (fresh + size),
                write_bytes=parameters * size,
                dtype=training.gradient_dtype,
            )
            kernels.append(add)
        return [Step("AccumulateGrad", label, tuple(kernels), parameters=parameters)]

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

    def _forward(self, linear: Linear, label: str, *, is_whole: bool = False) -> list[Step]:
        is_cast_here = is_whole or not self.layout.is_sequence_parallel
        casts = self._cast(self.tokens * linear.inputs) if is_cast_here else ()
        name = f"{label} forward"
        steps = [Step("linear", name, (*casts, *self._forward_kernels(linear)))]
        if self._has_adapter(label):
            steps.append(Step("linear", name, self._adapter_kernels(linear)))
        return steps

    def _plain_backward(self, linear: Linear, label: str, *, is_cast: bool = False) -> list[Step]:
        name = f"{label} backward"
        shape = (self.tokens, linear.inputs, linear.outputs, self.product_dtype)
        casts = () if is_cast else self._cast(self.tokens * linear.outputs)
        turned = self._turn(self.tokens * linear.outputs) if is_cast else ()
        kernels = (*casts, input_gemm(*shape), *turned, *self._weight_kernels(linear))
        return [
            Step("AddmmBackward", name, kernels),
            *self.accumulate(linear.parameters, name),
            *self._adapter_backward(linear, label),
        ]

    def _weight_steps(self, linear: Linear, name: str, *, is_gathered: bool) -> list[Step]:
        if self.is_frozen:
            return []
        turned = self._turn(self.tokens * linear.inputs) if is_gathered else ()
        kernels = (*turned, *self._weight_kernels(linear))
        step = Step(_OVERLAPPING, name, kernels, joins=(Joining.INPUT,))
        return [step, *self.accumulate(linear.parameters, name)]

    def _forward_kernels(self, linear: Linear) -> tuple[Op, ...]:
        gemm = forward_gemm(self.tokens, linear.inputs, linear.outputs, self.product_dtype)
        if not linear.bias or self.run.fuses(Fusion.BIAS):
            return (gemm,)
        return (gemm, bias_add(self.tokens, linear.outputs, self.dtype))

    def _weight_kernels(self, linear: Linear) -> tuple[Op, ...]:
        if self.is_frozen:
            return ()
        weight = weight_gemm(self.tokens, linear.inputs, linear.outputs, self.product_dtype)
        if not linear.bias:
            return (weight,)
        return (weight, row_sum(self.tokens, linear.bias, self.dtype))

    def _has_adapter(self, label: str) -> bool:
        return not self.is_end and has_adapter(self.spec.training, label)

    def _adapter_kernels(self, linear: Linear) -> tuple[Op, ...]:
        rank, tokens = self.spec.training.adapter_rank, self.tokens
        return (
            forward_gemm(tokens, linear.inputs, rank, self.dtype),
            forward_gemm(tokens, rank, linear.outputs, self.dtype),
            elementwise("residual_add", tokens * linear.outputs, self.dtype, reads=2),
        )

    def _adapter_backward(self, linear: Linear, label: str) -> list[Step]:
        if not self._has_adapter(label):
            return []
        name = f"{label} backward"
        rank, tokens = self.spec.training.adapter_rank, self.tokens
        kernels = (
            input_gemm(tokens, rank, linear.outputs, self.dtype),
            weight_gemm(tokens, rank, linear.outputs, self.dtype),
            input_gemm(tokens, linear.inputs, rank, self.dtype),
            weight_gemm(tokens, linear.inputs, rank, self.dtype),
            elementwise("residual_add", tokens * linear.inputs, self.dtype, reads=2),
        )
        parameters = linear.adapter_parameters(rank)
        return [
            Step("AddmmBackward", name, kernels),
            *self.accumulate(parameters, name, is_trained=True),
        ]

    def cast(self, elements: int) -> tuple[Op, ...]:
        """The cast of *elements* numbers before a product, where its format is another one."""
        return self._cast(elements)

    def _cast(self, elements: int) -> tuple[Op, ...]:
        """The cast before a product, with the turned copy that the weight's product needs."""
        if not self.is_quantised:
            return ()
        return (self._cast_kernel(elements, copies=1 if self.is_frozen else 2),)

    def _early_cast(self, width: int, label: str) -> list[Step]:
        """The cast of a rank's own tokens before they are gathered."""
        if not self.is_quantised:
            return []
        return [Step("to", label, (self._cast_kernel(self.split_tokens * width, copies=1),))]

    def _turn(self, elements: int) -> tuple[Op, ...]:
        """The turned copy of what was gathered in a quantised format."""
        if not self.is_quantised or self.is_frozen:
            return ()
        size_bytes = self.product_dtype.bytes_of(elements)
        return (MemoryBound("transpose", size_bytes, size_bytes, self.product_dtype),)

    def _cast_kernel(
        self, elements: int, *, copies: int, source: DType | None = None
    ) -> MemoryBound:
        target = self.product_dtype
        read_bytes = elements * (source or self.dtype).size_bytes
        return MemoryBound("cast", read_bytes, copies * target.bytes_of(elements), target)

    def _gathered(self, width: int, label: str, product: list[Step]) -> list[Step]:
        """*product* behind the gather of its operand, or beside all but a piece of it."""
        if self.run.tensor_overlap is not TensorOverlap.FULL:
            return [self._exchange(_GATHER, width, label), *product]
        first = self._exchange(_GATHER, width, label, pieces=1)
        rest = self._exchange(_GATHER, width, label, Joining.PIECES, pieces=_PIECES - 1)
        return [first, rest, _closing(product[0]), *product[1:]]

    def _reduced(self, width: int, label: str, product: list[Step]) -> list[Step]:
        """*product* before the reduction of its output, or beside all but a piece of it."""
        if self.run.tensor_overlap is not TensorOverlap.FULL:
            return [*product, self._exchange(self._reducing, width, label)]
        rest = self._exchange(self._reducing, width, label, Joining.PIECES, pieces=_PIECES - 1)
        last = self._exchange(self._reducing, width, label, pieces=1)
        return [rest, _closing(product[0]), *product[1:], last]

    def _exchange(
        self,
        kind: CollectiveKind,
        width: int,
        label: str,
        joining: Joining = Joining.AT_ONCE,
        *,
        pieces: int = _PIECES,
    ) -> Step:
        elements = self.tokens * width
        dtype, size_bytes = self.dtype, elements * self.dtype.size_bytes
        if self.is_quantised and kind is _GATHER:
            dtype, size_bytes = self.product_dtype, self.product_dtype.bytes_of(elements)
        collective = Collective(kind, size_bytes=size_bytes * pieces // _PIECES, dtype=dtype)
        name = f"{label} {kind.value}"
        return Step(kind.value, name, collective=collective, joining=joining)


_GATHER = CollectiveKind.ALL_GATHER


def _closing(step: Step) -> Step:
    """*step*, with everything after it behind the pieces that run beside it."""
    return replace(step, closes=(Joining.PIECES,))


def _moved(word: str, read_bytes: int, elements: int, dtype: DType) -> MemoryBound:
    return MemoryBound(word, read_bytes, elements * dtype.size_bytes, dtype)
