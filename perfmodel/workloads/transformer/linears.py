"""Linears: fully connected layers of a tensor-parallel rank, forward and backward, as steps.

A column-parallel GEMM (split by outputs) needs the whole input: with sequence
parallelism the input is gathered and its gradient scattered; without, the
gradient is all-reduced during the GEMM for the weight. A row-parallel GEMM
(split by inputs) gives partial sums that are reduced at once.

GEMMs in a quantised format cast activations and gradients first; gathers carry
that format. The GEMM for the weight reads both along the tokens, so both need a
second, transposed copy. Frozen weights have no GEMM for their gradient; a
additional low-rank pair of GEMMs is trained instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.collective import CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Op
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.eager import Joining, Step, communication
from perfmodel.workloads.kernels import Linear, cast, elementwise, row_sum
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.run import TransformerRun
from perfmodel.workloads.transformer.shapes import has_adapter
from perfmodel.workloads.transformer.spec import TrainingSection
from perfmodel.workloads.transformer.words import TensorOverlap

_OVERLAPPING = "LinearWithGradAccumulationAndAsyncCommunicationBackward"
_GATHER = CollectiveKind.ALL_GATHER
_PIECES = 4
"""Pieces of a collective that overlaps the GEMM it feeds or follows: only one is exposed."""


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """Makes the steps of GEMMs over *tokens* tokens of a micro-batch.

    GEMMs of an end of the model (*is_end*), such as the logits, are never quantised and have no
    adapters.
    """

    run: TransformerRun
    tokens: int
    is_end: bool = False

    @property
    def layout(self) -> Layout:
        """The parallel layout."""
        return self.run.layout

    @property
    def training(self) -> TrainingSection:
        """How the model is trained."""
        return self.run.spec.training

    @property
    def dtype(self) -> DType:
        """The format that activations are stored in."""
        return self.run.dtype

    @property
    def gemm_dtype(self) -> DType:
        """The format that GEMMs are computed in."""
        return self.dtype if self.is_end else self.training.gemm_dtype

    @property
    def is_quantised(self) -> bool:
        """Whether operands are cast for GEMMs only."""
        return self.gemm_dtype.is_quantised

    @property
    def is_frozen(self) -> bool:
        """Whether weights are not trained."""
        return self.training.adapters_only

    @property
    def split_tokens(self) -> int:
        """Tokens that norms and residuals of one rank see."""
        return self.tokens // self.run.split_ranks

    def column_parallel(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a GEMM split by outputs."""
        is_gathered = self.layout.is_sequence_parallel
        steps = self._forward(linear, label, is_cast=is_gathered)
        if not is_gathered:
            return steps
        return [
            *self._early_cast(linear.inputs, f"{label} input cast"),
            *self._gathered(linear.inputs, f"{label} input", steps),
        ]

    def row_parallel(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a GEMM split by inputs, and the reduction of its partial sums.

        With full overlap all but a piece of the reduction runs during the GEMM.
        """
        steps = self._forward(linear, label)
        name = f"{label} output"
        if self.layout.tp == 1:
            return steps
        if self.run.tensor_overlap is not TensorOverlap.FULL:
            return [*steps, self._exchange(self.reducing, linear.outputs, name)]
        rest = self._exchange(self.reducing, linear.outputs, name, Joining.PIECES, _PIECES - 1)
        last = self._exchange(self.reducing, linear.outputs, name, pieces=1)
        return [rest, _closing(steps[0]), *steps[1:], last]

    def column_parallel_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a GEMM split by outputs."""
        if self.layout.tp == 1:
            return self._backward(linear, label)
        name, inputs, gradient = f"{label} backward", linear.inputs, f"{label} input gradient"
        is_overlapped = self.run.tensor_overlap is not TensorOverlap.NONE
        joinings = (Joining.INPUT, Joining.GRADIENT)
        of_input, of_gradient = joinings if is_overlapped else (Joining.AT_ONCE,) * 2
        casts = self.cast(self.tokens * linear.outputs)
        gemm = linear.input_gemm(self.tokens, self.gemm_dtype)
        steps = [
            Step(_OVERLAPPING, name, (*casts, gemm)),
            self._exchange(self.reducing, inputs, gradient, of_gradient),
        ]
        if not self.is_frozen:
            transposed: tuple[Op, ...] = ()
            if self.layout.is_sequence_parallel:
                # Only this rank's part of the input was kept, so it is gathered again.
                again = self._exchange(_GATHER, inputs, f"{label} input again", of_input)
                steps.insert(0, replace(again, is_weight=True))
                transposed = self._transpose(self.tokens * inputs)
            kernels = (*transposed, *self.weight_kernels(linear))
            of_weight = Step(_OVERLAPPING, name, kernels, joins=(Joining.INPUT,))
            added = self.accumulate(linear.parameters, name)
            steps += [replace(step, is_weight=True) for step in (of_weight, *added)]
        return [*steps, *self._adapter_backward(linear, label)]

    def row_parallel_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a GEMM split by inputs."""
        if not self.layout.is_sequence_parallel:
            return self._backward(linear, label)
        name = f"{label} output gradient"
        return [
            *self._early_cast(linear.outputs, f"{name} cast"),
            *self._gathered(linear.outputs, name, self._backward(linear, label, is_cast=True)),
        ]

    def replicated(self, linear: Linear, label: str) -> list[Step]:
        """Forward of a GEMM whose weight is whole on every rank, over the rank's own tokens."""
        return replace(self, tokens=self.split_tokens)._forward(linear, label)

    def replicated_backward(self, linear: Linear, label: str) -> list[Step]:
        """Backward of a GEMM whose weight is whole on every rank."""
        return replace(self, tokens=self.split_tokens)._backward(linear, label)

    def forward_kernels(self, linear: Linear) -> tuple[Op, ...]:
        """The GEMM of the forward pass, and the bias where it is added separately."""
        gemm = linear.forward_gemm(self.tokens, self.gemm_dtype)
        if not linear.bias or self.run.stack.fuses(Fusion.BIAS):
            return (gemm,)
        return (gemm, elementwise("bias_add", self.tokens * linear.outputs, self.dtype))

    def weight_kernels(self, linear: Linear) -> tuple[Op, ...]:
        """The GEMM for the gradient of the weight, and the sum for that of the bias."""
        if self.is_frozen:
            return ()
        gemm = linear.weight_gemm(self.tokens, self.gemm_dtype)
        gemm = replace(gemm, added_bytes=self.added_bytes(linear.weight))
        if not linear.bias:
            return (gemm,)
        return (gemm, row_sum(self.tokens, linear.bias, self.dtype))

    def weight_casts(self, linear: Linear, label: str) -> list[Step]:
        """The cast of a stored weight to the format of GEMMs, if that is another one."""
        if self.is_quantised:
            stored, copies = self.training.weight_dtype, 1 if self.is_frozen else 2
            kernel = cast(linear.weight, stored, self.gemm_dtype, copies=copies)
        elif self.training.is_autocast:
            kernel = cast(linear.weight, DType.FP32, self.dtype)
        else:
            return []
        return [Step("to", f"{label} weight cast", (kernel,))]

    def accumulate(
        self, parameters: int, label: str, *, is_trained: bool = False, is_product: bool = True
    ) -> list[Step]:
        """The steps that add a new gradient to that of earlier micro-batches.

        A GEMM may have added its product already; other gradients are added by a kernel.
        """
        if self.is_frozen and not is_trained:
            return []
        training = self.training
        if self._adds_gradients and is_product:
            return [Step("AccumulateGrad", label, (), parameters=parameters)]
        dtype, fresh = training.gradient_dtype, self.dtype
        is_wider = dtype is not fresh
        is_scattered = self.run.spec.parallel.sharding.divides_weights and self.layout.pp == 1
        kernels: list[Op] = []
        if training.is_autocast or (is_scattered and is_wider):
            # The gradient is cast to the weight's format before it is added, or to the format
            # that it is reduced in.
            kernels.append(cast(parameters, fresh, dtype))
            fresh, is_wider = dtype, False
        # A gradient that is scattered at once is added to a rank's share only, which is small.
        if not is_scattered and (self.layout.micro_batches > 1 or is_wider):
            size = dtype.size_bytes
            read_bytes = parameters * (fresh.size_bytes + size)
            kernels.append(MemoryBound("residual_add", read_bytes, parameters * size, dtype))
        return [Step("AccumulateGrad", label, tuple(kernels), parameters=parameters)]

    def added_bytes(self, weights: int) -> int:
        """What a GEMM moves to add its gradient to that of earlier micro-batches, if it does so."""
        return 2 * weights * self.training.gradient_dtype.size_bytes * self._adds_gradients

    @property
    def _adds_gradients(self) -> bool:
        """Whether the GEMM for a weight's gradient adds it to that of earlier micro-batches."""
        return self.run.stack.fuses(Fusion.GRADIENT_SUM) and not self.training.is_autocast

    def cast(self, elements: int) -> tuple[Op, ...]:
        """The cast before a quantised GEMM, with the copy that the GEMM for the weight needs."""
        if not self.is_quantised:
            return ()
        copies = 1 if self.is_frozen else 2
        return (cast(elements, self.dtype, self.gemm_dtype, copies=copies),)

    @property
    def reducing(self) -> CollectiveKind:
        """The collective that adds up partial sums of the tensor group."""
        if self.layout.is_sequence_parallel:
            return CollectiveKind.REDUCE_SCATTER
        return CollectiveKind.ALL_REDUCE

    def _forward(self, linear: Linear, label: str, *, is_cast: bool = False) -> list[Step]:
        casts = () if is_cast else self.cast(self.tokens * linear.inputs)
        name = f"{label} forward"
        steps = [Step("linear", name, (*casts, *self.forward_kernels(linear)))]
        if self._has_adapter(label):
            down, up = self._adapters(linear)
            added = elementwise("residual_add", self.tokens * linear.outputs, self.dtype, reads=2)
            gemms = (one.forward_gemm(self.tokens, self.dtype) for one in (down, up))
            steps.append(Step("linear", name, (*gemms, added)))
        return steps

    def _backward(self, linear: Linear, label: str, *, is_cast: bool = False) -> list[Step]:
        name, elements = f"{label} backward", self.tokens * linear.outputs
        casts = () if is_cast else self.cast(elements)
        transposed = self._transpose(elements) if is_cast else ()
        gemm = linear.input_gemm(self.tokens, self.gemm_dtype)
        of_weight = (*transposed, *self.weight_kernels(linear))
        added = self.accumulate(linear.parameters, name)
        return [
            self.backward_step("AddmmBackward", name, (*casts, gemm), of_weight),
            *(replace(step, is_weight=True) for step in added),
            *self._adapter_backward(linear, label),
        ]

    def backward_step(
        self, operator: str, label: str, of_input: tuple[Op, ...], of_weight: tuple[Op, ...]
    ) -> Step:
        """A step with the kernels for the gradient of an input, then those of a weight."""
        return Step(operator, label, (*of_input, *of_weight), weight_kernels=len(of_weight))

    def _has_adapter(self, label: str) -> bool:
        return not self.is_end and has_adapter(self.training, label)

    def _adapters(self, linear: Linear) -> tuple[Linear, Linear]:
        rank = self.training.adapter_rank
        return Linear(linear.inputs, rank), Linear(rank, linear.outputs)

    def _adapter_backward(self, linear: Linear, label: str) -> list[Step]:
        if not self._has_adapter(label):
            return []
        name, (down, up) = f"{label} backward", self._adapters(linear)
        gemms = (
            gemm(self.tokens, self.dtype)
            for one in (up, down)
            for gemm in (one.input_gemm, one.weight_gemm)
        )
        added = elementwise("residual_add", self.tokens * linear.inputs, self.dtype, reads=2)
        return [
            Step("AddmmBackward", name, (*gemms, added)),
            *self.accumulate(down.weight + up.weight, name, is_trained=True),
        ]

    def _early_cast(self, width: int, label: str) -> list[Step]:
        """The cast of a rank's own tokens before they are gathered."""
        if not self.is_quantised:
            return []
        return [Step("to", label, (cast(self.split_tokens * width, self.dtype, self.gemm_dtype),))]

    def _transpose(self, elements: int) -> tuple[Op, ...]:
        """The transposed copy of a tensor that was gathered in a quantised format."""
        if not self.is_quantised or self.is_frozen:
            return ()
        size_bytes = self.gemm_dtype.bytes_of(elements)
        return (MemoryBound("transpose", size_bytes, size_bytes, self.gemm_dtype),)

    def _gathered(self, width: int, label: str, steps: list[Step]) -> list[Step]:
        """*steps* of a GEMM after the gather of its operand, or during all but a piece of it."""
        if self.run.tensor_overlap is not TensorOverlap.FULL:
            return [self._exchange(_GATHER, width, label), *steps]
        first = self._exchange(_GATHER, width, label, pieces=1)
        rest = self._exchange(_GATHER, width, label, Joining.PIECES, _PIECES - 1)
        return [first, rest, _closing(steps[0]), *steps[1:]]

    def _exchange(
        self,
        kind: CollectiveKind,
        width: int,
        label: str,
        joining: Joining = Joining.AT_ONCE,
        pieces: int = _PIECES,
    ) -> Step:
        dtype = self.gemm_dtype if self.is_quantised and kind is _GATHER else self.dtype
        size_bytes = dtype.bytes_of(self.tokens * width) * pieces // _PIECES
        return communication(kind, label, size_bytes, dtype, joining=joining)


def _closing(step: Step) -> Step:
    """*step*; everything after it follows the pieces that run during it."""
    return replace(step, closes=(Joining.PIECES,))
