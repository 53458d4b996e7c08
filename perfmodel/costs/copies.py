"""Copies: bytes between host and device memory, or within a device.

A pageable copy goes through a pinned staging buffer, so it reaches about half
the bandwidth of the bus.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import Copy, CopyRoute
from topologies import Device

COPY_FLOOR_NS = 2_000.0


PAGEABLE_RATIO = 0.5
DEVICE_EFFICIENCY = 0.85


class CopyModel:
    """Prices copies: a floor plus bytes over the bandwidth of the slower memory or bus."""

    family = "copy"

    def price(self, ops: Sequence[Copy], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; *stack* does not matter."""
        del stack
        sizes = np.array([op.size_bytes for op in ops], dtype=np.float64)
        bandwidth = np.array([_bandwidth_bytes_per_s(op, device) for op in ops])
        return build_estimates(
            COPY_FLOOR_NS + sizes * NS_PER_S / bandwidth,
            relative_sigma=0.2,
            provenance=Provenance.ANALYTIC,
            bound=np.where(sizes * NS_PER_S / bandwidth > COPY_FLOOR_NS, Bound.LINK, Bound.LATENCY),
        )


def _bandwidth_bytes_per_s(op: Copy, device: Device) -> float:
    if op.route is CopyRoute.DEVICE_TO_DEVICE:
        # A copy inside a device reads and writes every byte.
        return DEVICE_EFFICIENCY * device.memory_bandwidth_bytes_per_s / 2
    ratio = 1.0 if op.is_pinned else PAGEABLE_RATIO
    return ratio * device.pcie_bandwidth_bytes_per_s
