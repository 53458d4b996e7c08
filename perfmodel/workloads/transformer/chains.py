"""Chains: norms and activations as one fused kernel, or as small kernels without that fusion.

The pieces of a chain (`chains.yaml`) follow the operators of the usual Python code: gelu by its
tanh formula, rotary positions by rotating halves, RMS norm in fp32, a loss over fp32 logits.
Passes over a few numbers per token are left out.

Layer norm is one kernel in every framework; a stack that fuses norms only uses a
better one. Where all pointwise chains are fused, the norm also adds the residual
before it: one more tensor to read and one to write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from perfmodel.base.documents import load_yaml
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
        chain = "rms_norm_backward" if is_backward else "rms_norm"
        first, *rest = chain_steps(chain, label, elements=elements, dtype=run.dtype)
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
    kernel, inputs = ("swiglu", 2) if is_gated else ("gelu", 1)
    if not linears.run.fuses(Fusion.SWIGLU if is_gated else Fusion.GELU):
        chain = f"{kernel}_backward" if is_backward else kernel
        return chain_steps(chain, label, elements=elements, dtype=dtype)
    reads, writes = (inputs + 1, inputs) if is_backward else (inputs, 1)
    operator = f"{kernel.capitalize()}Backward" if is_backward else kernel
    return [pointwise(operator, label, kernel, elements, dtype, reads=reads, writes=writes)]


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel of a chain: tensors read and written in the model's format, and in fp32.

    *operator* is what the host issues, *kernel* the word that its traffic is priced by.
    """

    operator: str
    kernel: str
    reads: float = 1.0
    writes: float = 1.0
    wide_reads: float = 0.0
    wide_writes: float = 0.0


@cache
def load_chains() -> dict[str, tuple[Piece, ...]]:
    """The chains of `chains.yaml` by name."""
    content = load_yaml(Path(__file__).with_name("chains.yaml"))
    return {name: tuple(Piece(*row) for row in rows) for name, rows in content.items()}


def chain_steps(chain: str, label: str, *, elements: int, dtype: DType) -> list[Step]:
    """One step per piece of *chain* over tensors of *elements* numbers; fp32 needs no casts."""
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
        for one in load_chains()[chain]
        if not (dtype is DType.FP32 and one.kernel == "cast")
    ]
