"""Fixed: tasks whose duration is known already keep it, and how it is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import Fixed
from topologies import Device


class FixedModel:
    """Hands durations through."""

    family = "fixed"

    def price(self, ops: Sequence[Fixed], device: Device, stack: SoftwareStack) -> Estimates:
        """The stated durations of *ops*."""
        del device, stack
        return build_estimates(
            np.array([op.duration_ns for op in ops], dtype=np.float64),
            relative_sigma=0.0,
            provenance=np.array([op.provenance for op in ops], dtype=np.int8),
            bound=Bound.UNKNOWN,
        )
