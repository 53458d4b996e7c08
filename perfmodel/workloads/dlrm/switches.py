"""DlrmSwitches: what of a software stack changes the kernels and waits of a recommendation model.

What is not fused runs as separate kernels, each with its own traffic and its
own operator on the host. What is not overlapped makes compute wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.stacks.stack import (
    Fusion,
    Habit,
    OptimizerKernels,
    Overlap,
    SoftwareStack,
    TableHandling,
)

_SORTED = "fbgemm"


@dataclass(frozen=True, slots=True)
class DlrmSwitches:
    """Fusions, overlaps, habits, optimizer kernels and table handling of a stack."""

    fusions: frozenset[Fusion]
    overlaps: frozenset[Overlap]
    habits: frozenset[Habit]
    optimizer_kernels: OptimizerKernels
    tables: TableHandling

    def fuses(self, fusion: Fusion) -> bool:
        """Whether *fusion* is on."""
        return fusion in self.fusions

    def overlaps_with_compute(self, overlap: Overlap) -> bool:
        """Whether *overlap* runs beside compute."""
        return overlap in self.overlaps

    def has(self, habit: Habit) -> bool:
        """Whether the script has *habit*."""
        return habit in self.habits

    @property
    def sums_bias_gradients(self) -> bool:
        """Whether the gradient of a bias is summed in a kernel of its own."""
        return self.fusions.isdisjoint((Fusion.BIAS_ACTIVATION, Fusion.ELEMENTWISE))

    def lookup_kernel(self, optimizer: str) -> str:
        """The lookup that is taken; an optimizer with state needs sorted gradients."""
        return self.tables.lookup_kernel if optimizer == "sgd" else _SORTED


def switches_of(stack: SoftwareStack) -> DlrmSwitches:
    """What *stack* switches on."""
    return DlrmSwitches(
        fusions=stack.fusions,
        overlaps=stack.overlaps,
        habits=stack.habits,
        optimizer_kernels=stack.optimizer_kernels,
        tables=stack.tables,
    )
