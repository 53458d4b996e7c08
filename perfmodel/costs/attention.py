"""Attention: fused (flash) or unfused, forward and backward.

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
from perfmodel.graph.ops import Attention, Pass
from topologies import Device

EFFICIENCY = 0.55


class AttentionModel:
    """Prices attention."""

    family = "attention"

    def price(self, ops: Sequence[Attention], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""
        rows = [_work(op, device, stack) for op in ops]
        compute_ns, memory_ns = np.array(rows, dtype=np.float64).reshape(-1, 2).T
        return build_estimates(
            FLOOR_NS + soft_maximum(compute_ns, memory_ns),
            relative_sigma=0.3,
            provenance=Provenance.ANALYTIC,
            bound=name_bound(compute_ns, memory_ns, FLOOR_NS),
        )


def _work(op: Attention, device: Device, stack: SoftwareStack) -> tuple[float, float]:
    kernel = stack.attention_kernel(device.architecture.value) if op.kernel == "auto" else op.kernel
    pairs = op.batch * op.heads * op.query_length * op.key_length
    useful = 0.5 if op.is_causal and kernel != "unfused" else 1.0
    passes = 3.0 if op.direction is Pass.BACKWARD else 1.0
    rate = float(device.peak_flops.get(op.dtype, device.vector_flops))
    compute_ns = passes * 4 * pairs * useful * op.head_dim * NS_PER_S / (rate * EFFICIENCY)
    elements = (
        op.batch * op.head_dim * (2 * op.heads * op.query_length + 2 * op.kv_heads * op.key_length)
    )
    if kernel == "unfused":
        # Scores and probabilities are written and read again: mask, softmax, dropout.
        elements += 6 * pairs
    memory_ns = traffic_ns(
        np.array([passes * elements * op.dtype.size_bytes], dtype=np.float64),
        0.85 * device.memory_bandwidth_bytes_per_s,
    )
    return compute_ns * stack.slowdown(device.architecture.value), float(memory_ns[0])
