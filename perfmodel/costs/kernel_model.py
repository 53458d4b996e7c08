"""KernelModel: the role that every cost model of one kind of op plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from perfmodel.costs.estimates import Estimates
from perfmodel.costs.stacks import SoftwareStack
from topologies import Device


class KernelModel(Protocol):
    """Prices many ops of one type at once.

    Ops of one *family* err together: a sample of a job multiplies all of them
    by one factor.
    """

    @property
    def family(self) -> str:
        """The name of the family, the same in every run."""
        ...

    def price(self, ops: Sequence[Any], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*, in order."""
        ...
