"""StackSwitches: what of a software stack changes the kernels and waits of a Transformer.

What is not fused runs as separate kernels, each with its own traffic and its
own operator on the host. What is not overlapped makes compute wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.stacks.stack import Fusion, OptimizerKernels, Overlap, SoftwareStack

_INCLUDED = {
    Fusion.BIAS: (Fusion.BIAS_ACTIVATION, Fusion.ELEMENTWISE),
    Fusion.GELU: (Fusion.BIAS_ACTIVATION, Fusion.ELEMENTWISE),
    Fusion.NORM: (Fusion.ELEMENTWISE,),
    Fusion.DROPOUT_RESIDUAL: (Fusion.ELEMENTWISE,),
    Fusion.SWIGLU: (Fusion.ELEMENTWISE,),
    Fusion.ROTARY: (Fusion.ELEMENTWISE,),
    Fusion.SOFTMAX_MASK: (Fusion.ELEMENTWISE,),
}
"""Fusions that a wider one brings along."""

_UNFUSED = "unfused"


@dataclass(frozen=True, slots=True)
class StackSwitches:
    """Fusions, overlaps and optimizer kernels of a stack.

    With *unfuses_attention* attention is products with passes over the scores
    between them, on every device.
    """

    fusions: frozenset[Fusion]
    overlaps: frozenset[Overlap]
    optimizer_kernels: OptimizerKernels
    unfuses_attention: bool = False

    def fuses(self, fusion: Fusion) -> bool:
        """Whether *fusion*, or a wider one that includes it, is on."""
        return not self.fusions.isdisjoint((fusion, *_INCLUDED.get(fusion, ())))

    def overlaps_with_compute(self, overlap: Overlap) -> bool:
        """Whether *overlap* runs beside compute."""
        return overlap in self.overlaps


def switches_of(stack: SoftwareStack) -> StackSwitches:
    """What *stack* switches on.

    Where nothing is launched (on a CPU) attention is measured as one call, so it stays one.
    """
    is_launched = stack.host.launch_ns > 0
    return StackSwitches(
        fusions=stack.fusions,
        overlaps=stack.overlaps,
        optimizer_kernels=stack.optimizer_kernels,
        unfuses_attention=is_launched and set(stack.attention_kernels.values()) == {_UNFUSED},
    )
