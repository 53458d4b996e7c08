"""Chains: norms, activations, rotary positions and losses, fused or as separate kernels.

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
from typing import TYPE_CHECKING

from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import MemoryBound, Pass
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.eager import Joining, Step, pointwise
from perfmodel.workloads.kernels import FP32_BYTES, cast, elementwise
from perfmodel.workloads.transformer.words import Norm

if TYPE_CHECKING:
    from perfmodel.workloads.transformer.linears import LinearSteps


@dataclass(frozen=True, slots=True)
class ChainKernel:
    """A kernel of a chain: tensors read and written in the model's format, and in fp32.

    *operator* is what the host issues, *kernel* the word that its traffic is priced by.
    """

    operator: str
    kernel: str
    reads: float = 1.0
    writes: float = 1.0
    wide_reads: float = 0.0
    wide_writes: float = 0.0


@cache
def load_chains() -> dict[str, tuple[ChainKernel, ...]]:
    """The chains of `chains.yaml` by name."""
    content = load_yaml(Path(__file__).with_name("chains.yaml"))
    return {name: tuple(ChainKernel(*row) for row in rows) for name, rows in content.items()}


def chain_steps(name: str, label: str, elements: int, dtype: DType) -> list[Step]:
    """One step per piece of a chain over tensors of *elements* numbers; fp32 needs no casts."""
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
        for one in load_chains()[name]
        if not (dtype is DType.FP32 and one.kernel == "cast")
    ]


def chain_name(word: str, direction: Pass) -> str:
    """The name of a chain or kernel in *direction*."""
    return word if direction is Pass.FORWARD else f"{word}_backward"


def norm_steps(linears: LinearSteps, where: str, direction: Pass) -> list[Step]:
    """A norm over the tokens that one rank sees."""
    model, run, label = linears.run.spec.model, linears.run, f"{where}/norm {direction.value}"
    elements, name = linears.split_tokens * model.hidden, chain_name(model.norm.value, direction)
    if model.norm is Norm.RMS and not run.stack.fuses(Fusion.NORM):
        first, *rest = chain_steps(name, label, elements, run.dtype)
        return [replace(first, joins=(Joining.GRADIENT,)), *rest]
    operator, is_cast, dtype = model.norm.value, "to", run.residual_dtype
    reads, writes, formats = 1, 1 + run.fuses_pointwise, (dtype, run.dtype)
    if direction is Pass.BACKWARD:
        # Reads the input and the gradient, once more for the parameters.
        reads, writes, formats = 3, 1, (run.dtype, dtype)
        is_layer = model.norm is Norm.LAYER
        operator = "NativeLayerNormBackward" if is_layer else "RmsNormBackward"
        is_cast = "ToCopyBackward"
    reads += run.fuses_pointwise
    kernel = elementwise(name, elements, dtype, reads=reads, writes=writes, row_length=model.hidden)
    steps = [Step(operator, label, (kernel,), joins=(Joining.GRADIENT,))]
    if dtype is not run.dtype and not run.fuses_pointwise:
        # Between a norm in fp32 and GEMMs in a shorter format.
        steps.append(Step(is_cast, label, (cast(elements, *formats),)))
    return steps


def activation_steps(linears: LinearSteps, elements: int, what: str, direction: Pass) -> list[Step]:
    """A feed-forward network's activation that writes *elements* numbers."""
    kernel, inputs = ("swiglu", 2) if linears.run.spec.model.gated_ffn else ("gelu", 1)
    label, dtype = f"{what} {direction.value}", linears.dtype
    clamps: list[Step] = []
    if linears.run.spec.model.clamped_ffn and not linears.run.fuses_expert_bias:
        clamps = chain_steps(chain_name("clamp", direction), label, elements, dtype)
    if not linears.run.fuses_activation:
        steps = chain_steps(chain_name(kernel, direction), label, elements, dtype)
    elif direction is Pass.FORWARD:
        steps = [pointwise(kernel, label, kernel, elements, dtype, reads=inputs)]
    else:
        operator, reads = f"{kernel.capitalize()}Backward", inputs + 1
        steps = [pointwise(operator, label, kernel, elements, dtype, reads=reads, writes=inputs)]
    return [*clamps, *steps] if direction is Pass.FORWARD else [*steps, *clamps]
