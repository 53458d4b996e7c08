"""GEMM: batches of matrix products on tensor cores or vector units.

First form: a roofline with a launch floor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Estimates, build_estimates
from perfmodel.costs.roofline import FLOOR_NS, name_bound, soft_maximum, traffic_ns
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import Gemm
from topologies import Device

EFFICIENCY = 0.7


class GemmModel:
    """Prices matrix products."""

    family = "gemm"

    def price(self, ops: Sequence[Gemm], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""
        shape = np.array([(op.batch, op.m, op.n, op.k) for op in ops], dtype=np.float64)
        batch, m, n, k = shape.reshape(-1, 4).T
        rate = np.array([_rate_flops(op, device) for op in ops], dtype=np.float64)
        width = np.array([op.dtype.size_bytes for op in ops], dtype=np.float64)
        compute_ns = 2 * batch * m * n * k * NS_PER_S / (rate * EFFICIENCY)
        memory_ns = traffic_ns(
            width * batch * (m * n + m * k + n * k), device.memory_bandwidth_bytes_per_s * 0.85
        )
        compute_ns = compute_ns * stack.slowdown(device.architecture)
        return build_estimates(
            FLOOR_NS + soft_maximum(compute_ns, memory_ns),
            relative_sigma=0.25,
            provenance=Provenance.ANALYTIC,
            bound=name_bound(compute_ns, memory_ns, FLOOR_NS),
        )


def _rate_flops(op: Gemm, device: Device) -> float:
    return float(device.peak_flops.get(op.dtype, device.vector_flops))
