"""Host work: what a host thread spends on an operator, from the stack's table.

Host times belong to the software stack, not to the GPU. An operator the stack
does not know costs its default and is tagged assumed; it is never free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.stacks import Execution, SoftwareStack
from perfmodel.graph.ops import HostWork
from topologies import Device


class HostModel:
    """Prices host work by table."""

    family = "host"

    def price(self, ops: Sequence[HostWork], device: Device, stack: SoftwareStack) -> Estimates:
        """Look *ops* up in *stack*; *device* does not matter."""
        del device
        times = [stack.host.time(op.operator, op.part) for op in ops]
        is_captured = stack.execution is Execution.CUDA_GRAPH
        known = Provenance.ANALYTIC if is_captured else Provenance.MEASURED
        provenance = [
            Provenance.ASSUMED if time.is_assumed and not is_captured else known for time in times
        ]
        return build_estimates(
            np.array([time.duration_ns for time in times], dtype=np.float64),
            relative_sigma=max(stack.relative_sigma, 0.05),
            provenance=np.array(provenance, dtype=np.int8),
            bound=Bound.HOST,
        )
