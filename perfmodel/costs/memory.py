"""Memory-bound kernels: time is the traffic they make over a size-dependent bandwidth.

An operator word nobody modelled gets the same estimate and is tagged assumed;
no kernel is ever free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Estimates, build_estimates
from perfmodel.costs.roofline import FLOOR_NS, name_bound, soft_maximum, traffic_ns, vector_flops
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import MemoryBound
from topologies import Device

KNOWN_OPERATORS = frozenset(
    {"add", "relu", "gelu", "layer_norm", "rms_norm", "softmax", "dropout", "cast", "adam"}
)


class MemoryModel:
    """Prices kernels that are bound by their traffic."""

    family = "memory"

    def price(self, ops: Sequence[MemoryBound], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; *stack* does not matter."""
        del stack
        size = np.array([op.read_bytes + op.write_bytes for op in ops], dtype=np.float64)
        flops = np.array([op.flops for op in ops], dtype=np.float64)
        is_known = np.array([op.operator in KNOWN_OPERATORS for op in ops], dtype=bool)
        memory_ns = traffic_ns(size, 0.88 * device.memory_bandwidth_bytes_per_s)
        compute_ns = flops * NS_PER_S / vector_flops(device)
        return build_estimates(
            FLOOR_NS + soft_maximum(memory_ns, compute_ns),
            relative_sigma=np.where(is_known, 0.15, 0.4),
            provenance=np.where(is_known, Provenance.ANALYTIC, Provenance.ASSUMED),
            bound=name_bound(compute_ns, memory_ns, FLOOR_NS),
        )
