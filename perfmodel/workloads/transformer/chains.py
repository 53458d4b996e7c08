"""Chains: what one fused kernel does, as the small kernels of a stack without that fusion.

Pieces follow the operators of the usual Python code: gelu by its tanh formula,
rotary positions by rotating halves, RMS norm in fp32, a loss over fp32 logits.
Passes over a few numbers a token are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.stack import Fusion
from perfmodel.workloads.kernels import cast
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.schedule import Joining, Step
from perfmodel.workloads.transformer.spec import Norm

# Layer norm is one kernel in every framework; a stack that fuses norms only
# takes a better one. Where all pointwise chains are fused, the norm also adds
# the residual before it: one tensor more to read and one to write.


def norm_steps(products: ProductSteps, label: str, *, is_backward: bool = False) -> list[Step]:
    """A norm over the tokens that one rank sees."""
    model, run = products.spec.model, products.run
    elements = products.split_tokens * model.hidden
    if model.norm is Norm.RMS and not run.fuses(Fusion.NORM):
        pieces = RMS_NORM_BACKWARD if is_backward else RMS_NORM
        first, *rest = chain_steps(pieces, label, elements=elements, dtype=products.dtype)
        return [Step(first.operator, label, first.kernels, joins=(Joining.GRADIENT,)), *rest]
    # The backward pass reads the input and the gradient, once more for the parameters.
    reads, writes = (3, 1) if is_backward else (1, 1)
    if run.fuses(Fusion.ELEMENTWISE):
        reads, writes = reads + 1, writes if is_backward else writes + 1
    size_bytes = elements * run.residual_dtype.size_bytes
    kernel = MemoryBound(
        f"{model.norm.value}_backward" if is_backward else model.norm.value,
        read_bytes=reads * size_bytes,
        write_bytes=writes * size_bytes,
        dtype=run.residual_dtype,
        row_length=model.hidden,
    )
    name = "NativeLayerNormBackward" if model.norm is Norm.LAYER else "RmsNormBackward"
    operator = name if is_backward else model.norm.value
    steps = [Step(operator, label, (kernel,), joins=(Joining.GRADIENT,))]
    return steps + _norm_cast(products, elements, label, is_backward=is_backward)


def _norm_cast(
    products: ProductSteps, elements: int, label: str, *, is_backward: bool
) -> list[Step]:
    """The cast between a norm in fp32 and products in a shorter format, where nothing fuses it."""
    run = products.run
    if run.residual_dtype is products.dtype or run.fuses(Fusion.ELEMENTWISE):
        return []
    formats = (run.residual_dtype, products.dtype)
    kernel = cast(elements, *(reversed(formats) if is_backward else formats))
    return [Step("ToCopyBackward" if is_backward else "to", label, (kernel,))]


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel of a chain: tensors read and written in the model's format, and in fp32.

    *operator* is what the host issues, *kernel* the word its traffic is priced by.
    """

    operator: str
    kernel: str
    reads: float = 0.0
    writes: float = 0.0
    wide_reads: float = 0.0
    wide_writes: float = 0.0

    def op(self, elements: int, dtype: DType) -> MemoryBound:
        """The kernel over tensors of *elements* numbers."""
        size, wide = dtype.size_bytes, DType.FP32.size_bytes
        return MemoryBound(
            self.kernel,
            read_bytes=round(elements * (self.reads * size + self.wide_reads * wide)),
            write_bytes=round(elements * (self.writes * size + self.wide_writes * wide)),
            dtype=dtype,
        )


def chain_steps(pieces: Sequence[Piece], label: str, *, elements: int, dtype: DType) -> list[Step]:
    """A step for each of *pieces*: one operator, one kernel; fp32 needs no casts."""
    return [
        Step(piece.operator, label, (piece.op(elements, dtype),))
        for piece in pieces
        if not (dtype is DType.FP32 and piece.kernel == "cast")
    ]


GELU = (
    Piece("pow", "pow", 1, 1),
    Piece("mul", "scale", 1, 1),
    Piece("add", "add", 2, 1),
    Piece("mul", "scale", 1, 1),
    Piece("tanh", "tanh", 1, 1),
    Piece("add", "scale", 1, 1),
    Piece("mul", "scale", 1, 1),
    Piece("mul", "mul", 2, 1),
)
"""x / 2 (1 + tanh(c (x + a x^3)))."""

GELU_BACKWARD = (
    Piece("MulBackward", "mul", 2, 1),
    Piece("MulBackward", "mul", 2, 1),
    Piece("TanhBackward", "mul", 2, 1),
    Piece("MulBackward", "scale", 1, 1),
    Piece("MulBackward", "scale", 1, 1),
    Piece("PowBackward", "pow", 1, 1),
    Piece("PowBackward", "mul", 2, 1),
    Piece("add", "add", 2, 1),
    Piece("MulBackward", "scale", 1, 1),
    Piece("add", "add", 2, 1),
)

SWIGLU = (Piece("silu", "silu", 1, 1), Piece("mul", "mul", 2, 1))
SWIGLU_BACKWARD = (
    Piece("MulBackward", "mul", 2, 1),
    Piece("MulBackward", "mul", 2, 1),
    Piece("SiluBackward", "silu", 2, 1),
    Piece("CatBackward", "concat", 2, 2),
)
"""Gate and up are halves of one product, so their gradients are joined."""

ROTARY = (
    Piece("neg", "scale", 0.5, 0.5),
    Piece("cat", "concat", 1, 1),
    Piece("mul", "mul", 1, 1),
    Piece("mul", "mul", 1, 1),
    Piece("add", "add", 2, 1),
)
ROTARY_BACKWARD = (
    Piece("MulBackward", "mul", 1, 1),
    Piece("MulBackward", "mul", 1, 1),
    Piece("SliceBackward", "slice", 0.5, 1),
    Piece("SliceBackward", "slice", 0.5, 1),
    Piece("NegBackward", "scale", 0.5, 0.5),
    Piece("add", "add", 2, 1),
    Piece("add", "add", 2, 1),
)

RMS_NORM = (
    Piece("to", "cast", reads=1, wide_writes=1),
    Piece("pow", "pow", wide_reads=1, wide_writes=1),
    Piece("mean", "reduction", wide_reads=1),
    Piece("mul", "mul", wide_reads=1, wide_writes=1),
    Piece("to", "cast", wide_reads=1, writes=1),
    Piece("mul", "mul", 1, 1),
)
RMS_NORM_BACKWARD = (
    Piece("MulBackward", "mul", 1, 1),
    Piece("MulBackward", "mul", 2, 1),
    Piece("sum", "reduction", 1),
    Piece("to", "cast", reads=1, wide_writes=1),
    Piece("MulBackward", "mul", wide_reads=2, wide_writes=1),
    Piece("sum", "reduction", wide_reads=1),
    Piece("MulBackward", "mul", wide_reads=1, wide_writes=1),
    Piece("PowBackward", "scale", wide_reads=1, wide_writes=1),
    Piece("add", "add", wide_reads=2, wide_writes=1),
    Piece("to", "cast", wide_reads=1, writes=1),
)

LOSS = (
    Piece("to", "cast", reads=1, wide_writes=1),
    Piece("log_softmax", "log_softmax", wide_reads=1, wide_writes=1),
)
LOSS_BACKWARD = (
    Piece("NllLossBackward", "zero", wide_writes=1),
    Piece("LogSoftmaxBackward", "log_softmax_backward", wide_reads=2, wide_writes=1),
    Piece("ToCopyBackward", "cast", wide_reads=1, writes=1),
)

COMPILED_LOSS = (
    Piece("max", "reduction", reads=1),
    Piece("sum", "reduction", reads=1),
)
COMPILED_LOSS_BACKWARD = (Piece("LogSoftmaxBackward", "log_softmax_backward", reads=1, writes=1),)
"""Where chains are fused but no kernel knows the loss: a pass for each reduction, none in fp32."""

SPLIT_LOSS_HEAD = (
    Piece("to", "cast", reads=1, wide_writes=1),
    Piece("max", "reduction", wide_reads=1),
)
SPLIT_LOSS_TAIL = (
    Piece("sub", "sub", wide_reads=1, wide_writes=1),
    Piece("exp", "tanh", wide_reads=1, wide_writes=1),
    Piece("sum", "reduction", wide_reads=1),
    Piece("div", "div", wide_reads=1, wide_writes=1),
)
SPLIT_LOSS_BACKWARD = (
    Piece("MulBackward", "mul", wide_reads=1, wide_writes=1),
    Piece("ToCopyBackward", "cast", wide_reads=1, writes=1),
)
"""A loss whose vocabulary is split over ranks: its pieces before and after the largest logit."""


def activation_pieces(*, is_gated: bool, is_backward: bool) -> tuple[Piece, ...]:
    """The chain of a gated activation or of gelu."""
    if is_gated:
        return SWIGLU_BACKWARD if is_backward else SWIGLU
    return GELU_BACKWARD if is_backward else GELU


def activation_steps(
    products: ProductSteps, elements: int, label: str, *, is_backward: bool
) -> list[Step]:
    """A feed-forward network's activation that writes *elements* numbers."""
    is_gated = products.spec.model.gated_ffn
    if not products.run.fuses(Fusion.SWIGLU if is_gated else Fusion.GELU):
        pieces = activation_pieces(is_gated=is_gated, is_backward=is_backward)
        return chain_steps(pieces, label, elements=elements, dtype=products.dtype)
    kernel, operator, inputs = ("swiglu", "swiglu", 2) if is_gated else ("gelu", "gelu", 1)
    reads, writes = (inputs + 1, inputs) if is_backward else (inputs, 1)
    size_bytes = elements * products.dtype.size_bytes
    op = MemoryBound(kernel, reads * size_bytes, writes * size_bytes, products.dtype)
    if is_backward:
        operator = "SwigluBackward" if is_gated else "GeluBackward"
    return [Step(operator, label, (op,))]
