"""Norms as steps: one kernel, or RMS norm in pieces where a stack has no kernel for it.

Layer norm is one kernel in every framework; a stack that fuses norms only
takes a better one. Where all pointwise chains are fused, the norm also adds
the residual before it: one tensor more to read and one to write.
"""

from __future__ import annotations

from perfmodel.costs.stacks import Fusion
from perfmodel.graph.ops import MemoryBound
from perfmodel.workloads.transformer import chains
from perfmodel.workloads.transformer.products import ProductSteps
from perfmodel.workloads.transformer.spec import Norm
from perfmodel.workloads.transformer.steps import Joining, Step


def norm_steps(products: ProductSteps, label: str, *, is_backward: bool = False) -> list[Step]:
    """A norm over the tokens that one rank sees."""
    model, switches = products.spec.model, products.switches
    elements = products.split_tokens * model.hidden
    if model.norm is Norm.RMS and not switches.fuses(Fusion.NORM):
        pieces = chains.RMS_NORM_BACKWARD if is_backward else chains.RMS_NORM
        first, *rest = chains.chain_steps(pieces, label, elements=elements, dtype=products.dtype)
        return [Step(first.operator, label, first.kernels, joins=(Joining.GRADIENT,)), *rest]
    # The backward pass reads the input and the gradient, once more for the parameters.
    reads, writes = (3, 1) if is_backward else (1, 1)
    if switches.fuses(Fusion.ELEMENTWISE):
        reads, writes = reads + 1, writes if is_backward else writes + 1
    size_bytes = elements * products.dtype.size_bytes
    kernel = MemoryBound(
        f"{model.norm.value}_backward" if is_backward else model.norm.value,
        read_bytes=reads * size_bytes,
        write_bytes=writes * size_bytes,
        dtype=products.dtype,
        row_length=model.hidden,
    )
    name = "NativeLayerNormBackward" if model.norm is Norm.LAYER else "RmsNormBackward"
    operator = name if is_backward else model.norm.value
    return [Step(operator, label, (kernel,), joins=(Joining.GRADIENT,))]
