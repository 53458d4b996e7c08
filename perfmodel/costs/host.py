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
from perfmodel.graph.ops import HostSpan, HostWork
from topologies import Device


class HostModel:
    """Prices host work by table."""

    family = "host"

    def price(
        self, ops: Sequence[HostWork | HostSpan], device: Device, stack: SoftwareStack
    ) -> Estimates:
        """Look *ops* up in *stack*; *device* does not matter. A span is the sum of its parts."""
        del device
        is_captured = stack.execution is Execution.CUDA_GRAPH
        known = Provenance.ANALYTIC if is_captured else Provenance.MEASURED
        duration_ns = np.empty(len(ops), dtype=np.float64)
        provenance = np.empty(len(ops), dtype=np.int8)
        for row, op in enumerate(ops):
            parts = op.parts if isinstance(op, HostSpan) else (op,)
            times = [stack.host.time(part.operator, part.part) for part in parts]
            duration_ns[row] = sum(time.duration_ns for time in times)
            assumed_ns = sum(time.duration_ns for time in times if time.is_assumed)
            # A span is as well known as the larger part of its time.
            is_assumed = assumed_ns > duration_ns[row] / 2 and not is_captured
            provenance[row] = Provenance.ASSUMED if is_assumed else known
        return build_estimates(
            duration_ns,
            relative_sigma=max(stack.relative_sigma, 0.05),
            provenance=provenance,
            bound=Bound.HOST,
        )
