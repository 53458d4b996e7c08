"""Chains: norms and activations as one fused kernel, or as small kernels without that fusion.

Pieces follow the operators of the usual Python code: gelu by its tanh formula,
rotary positions by rotating halves, RMS norm in fp32, a loss over fp32 logits.
Passes over a few numbers per token are left out.

Layer norm is one kernel in every framework; a stack that fuses norms only uses a
better one. Where all pointwise chains are fused, the norm also adds the residual
before it: one more tensor to read and one to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.kernels import FP32_BYTES, cast, elementwise
from perfmodel.workloads.transformer.linears import LinearSteps
from perfmodel.workloads.transformer.spec import Norm
from perfmodel.workloads.transformer.steps import Joining, Step, pointwise


def norm_steps(linears: LinearSteps, label: str, *, is_backward: bool = False) -> list[Step]:
    """A norm over the tokens that one rank sees."""
    model, run = linears.run.spec.model, linears.run
    elements = linears.split_tokens * model.hidden
    if model.norm is Norm.RMS and not run.fuses(Fusion.NORM):
        pieces = RMS_NORM_BACKWARD if is_backward else RMS_NORM
        first, *rest = chain_steps(pieces, label, elements=elements, dtype=run.dtype)
        return [replace(first, joins=(Joining.GRADIENT,)), *rest]
    # The backward pass reads the input and the gradient, once more for the parameters.
    reads, writes = (3, 1) if is_backward else (1, 1)
    if run.fuses(Fusion.ELEMENTWISE):
        reads, writes = reads + 1, writes if is_backward else writes + 1
    dtype, word, operator = run.residual_dtype, model.norm.value, model.norm.value
    if is_backward:
        word = f"{word}_backward"
        operator = "NativeLayerNormBackward" if model.norm is Norm.LAYER else "RmsNormBackward"
    kernel = elementwise(word, elements, dtype, reads=reads, writes=writes, row_length=model.hidden)
    steps = [Step(operator, label, (kernel,), joins=(Joining.GRADIENT,))]
    if dtype is not run.dtype and not run.fuses(Fusion.ELEMENTWISE):
        # Between a norm in fp32 and GEMMs in a shorter format.
        formats = (run.dtype, dtype) if is_backward else (dtype, run.dtype)
        steps.append(
            Step("ToCopyBackward" if is_backward else "to", label, (cast(elements, *formats),))
        )
    return steps


def activation_steps(
    linears: LinearSteps, elements: int, label: str, *, is_backward: bool
) -> list[Step]:
    """A feed-forward network's activation that writes *elements* numbers."""
    is_gated, dtype = linears.run.spec.model.gated_ffn, linears.dtype
    if not linears.run.fuses(Fusion.SWIGLU if is_gated else Fusion.GELU):
        forward, backward = (SWIGLU, SWIGLU_BACKWARD) if is_gated else (GELU, GELU_BACKWARD)
        pieces = backward if is_backward else forward
        return chain_steps(pieces, label, elements=elements, dtype=dtype)
    kernel, inputs = ("swiglu", 2) if is_gated else ("gelu", 1)
    reads, writes = (inputs + 1, inputs) if is_backward else (inputs, 1)
    operator = f"{kernel.capitalize()}Backward" if is_backward else kernel
    return [pointwise(operator, label, kernel, elements, dtype, reads=reads, writes=writes)]


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel of a chain: tensors read and written in the model's format, and in fp32.

    By default it reads one tensor and writes one, both in the model's format.

    *operator* is what the host issues, *kernel* the word that its traffic is priced by.
    """

    operator: str
    kernel: str
    reads: float = 1.0
    writes: float = 1.0
    wide_reads: float = 0.0
    wide_writes: float = 0.0


def _wide(operator: str, kernel: str, reads: float = 1.0, writes: float = 1.0) -> Piece:
    """A kernel whose tensors are all in fp32."""
    return Piece(operator, kernel, 0.0, 0.0, reads, writes)


def chain_steps(pieces: Sequence[Piece], label: str, *, elements: int, dtype: DType) -> list[Step]:
    """One step per piece over tensors of *elements* numbers; fp32 needs no casts."""
    size = dtype.size_bytes
    return [
        Step(
            one.operator,
            label,
            (
                MemoryBound(
                    one.kernel,
                    round(elements * (one.reads * size + one.wide_reads * FP32_BYTES)),
                    round(elements * (one.writes * size + one.wide_writes * FP32_BYTES)),
                    dtype,
                ),
            ),
        )
        for one in pieces
        if not (dtype is DType.FP32 and one.kernel == "cast")
    ]


_WIDENED = Piece("to", "cast", 1, 0, 0, 1)
_NARROWED = Piece("to", "cast", 0, 1, 1, 0)
_NARROWED_GRADIENT = replace(_NARROWED, operator="ToCopyBackward")

GELU = (
    Piece("pow", "pow"),
    Piece("mul", "scale"),
    Piece("add", "add", 2),
    Piece("mul", "scale"),
    Piece("tanh", "tanh"),
    Piece("add", "scale"),
    Piece("mul", "scale"),
    Piece("mul", "mul", 2),
)
"""x / 2 (1 + tanh(c (x + a x^3)))."""

GELU_BACKWARD = (
    Piece("MulBackward", "mul", 2),
    Piece("MulBackward", "mul", 2),
    Piece("TanhBackward", "mul", 2),
    Piece("MulBackward", "scale"),
    Piece("MulBackward", "scale"),
    Piece("PowBackward", "pow"),
    Piece("PowBackward", "mul", 2),
    Piece("add", "add", 2),
    Piece("MulBackward", "scale"),
    Piece("add", "add", 2),
)

SWIGLU = (Piece("silu", "silu"), Piece("mul", "mul", 2))
SWIGLU_BACKWARD = (
    Piece("MulBackward", "mul", 2),
    Piece("MulBackward", "mul", 2),
    Piece("SiluBackward", "silu", 2),
    Piece("CatBackward", "concat", 2, 2),
)
"""Gate and up are halves of one GEMM, so their gradients are joined."""

ROTARY = (
    Piece("neg", "scale", 0.5, 0.5),
    Piece("cat", "concat"),
    Piece("mul", "mul"),
    Piece("mul", "mul"),
    Piece("add", "add", 2),
)
ROTARY_BACKWARD = (
    Piece("MulBackward", "mul"),
    Piece("MulBackward", "mul"),
    Piece("SliceBackward", "slice", 0.5),
    Piece("SliceBackward", "slice", 0.5),
    Piece("NegBackward", "scale", 0.5, 0.5),
    Piece("add", "add", 2),
    Piece("add", "add", 2),
)

RMS_NORM = (
    _WIDENED,
    _wide("pow", "pow"),
    _wide("mean", "reduction", writes=0),
    _wide("mul", "mul"),
    _NARROWED,
    Piece("mul", "mul"),
)
RMS_NORM_BACKWARD = (
    Piece("MulBackward", "mul"),
    Piece("MulBackward", "mul", 2),
    Piece("sum", "reduction", writes=0),
    _WIDENED,
    _wide("MulBackward", "mul", 2),
    _wide("sum", "reduction", writes=0),
    _wide("MulBackward", "mul"),
    _wide("PowBackward", "scale"),
    _wide("add", "add", 2),
    _NARROWED,
)

LOSS = (
    _WIDENED,
    _wide("log_softmax", "log_softmax"),
)
LOSS_BACKWARD = (
    _wide("NllLossBackward", "zero", 0),
    _wide("LogSoftmaxBackward", "log_softmax_backward", 2),
    _NARROWED_GRADIENT,
)

COMPILED_LOSS = (
    Piece("max", "reduction", writes=0),
    Piece("sum", "reduction", writes=0),
)
COMPILED_LOSS_BACKWARD = (Piece("LogSoftmaxBackward", "log_softmax_backward"),)
"""Where chains are fused but the loss has no kernel: one pass per reduction, none in fp32."""

SPLIT_LOSS_HEAD = (
    _WIDENED,
    _wide("max", "reduction", writes=0),
)
SPLIT_LOSS_TAIL = (
    _wide("sub", "sub"),
    _wide("exp", "tanh"),
    _wide("sum", "reduction", writes=0),
    _wide("div", "div"),
)
SPLIT_LOSS_BACKWARD = (
    _wide("MulBackward", "mul"),
    _NARROWED_GRADIENT,
)
"""A loss whose vocabulary is split over ranks: its pieces before and after the largest logit."""
