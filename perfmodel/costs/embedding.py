"""Embedding lookups: one fused kernel for all tables of a rank.

First reads of a row come from device memory, repeats from the cache as far as
the touched rows fit in it. The launch floor is paid once, not per table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.costs.estimates import Bound, Estimates, build_estimates
from perfmodel.costs.roofline import FLOOR_NS, soft_maximum, traffic_ns
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.ops import EmbeddingOp, Pass
from topologies import Device

SECTOR_BYTES = 32
INDEX_BYTES = 8
CACHE_BANDWIDTH_RATIO = 2.5
"""Cache bandwidth over memory bandwidth where the datasheet does not say."""


class EmbeddingModel:
    """Prices fused lookups and their backward pass with the update."""

    family = "embedding"

    def price(self, ops: Sequence[EmbeddingOp], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device*; *stack* does not matter."""
        del stack
        traffic = np.array([_traffic_bytes(op, device) for op in ops], dtype=np.float64)
        memory_bytes, cache_bytes = traffic.reshape(-1, 2).T
        memory = float(device.memory_bandwidth_bytes_per_s)
        cache = float(device.l2_bandwidth_bytes_per_s or CACHE_BANDWIDTH_RATIO * memory)
        memory_ns = traffic_ns(memory_bytes, 0.8 * memory)
        cache_ns = traffic_ns(cache_bytes, 0.8 * cache)
        return build_estimates(
            FLOOR_NS + soft_maximum(memory_ns, cache_ns),
            relative_sigma=0.25,
            provenance=Provenance.ANALYTIC,
            bound=np.where(memory_ns > cache_ns, Bound.MEMORY, Bound.CACHE),
        )


def _traffic_bytes(op: EmbeddingOp, device: Device) -> tuple[float, float]:
    """Bytes from device memory and bytes through the cache."""
    lookup = op.lookup
    touched = sum(
        lookup.distinct_rows(table) * _row_bytes(table.width * table.dtype.size_bytes)
        for table in lookup.tables
    )
    reread_ratio = 1.0 - min(1.0, device.l2_bytes / touched) if touched > 0 else 0.0
    memory = cache = 0.0
    for table in lookup.tables:
        row = _row_bytes(table.width * table.dtype.size_bytes)
        draws, distinct = lookup.lookup_count(table), lookup.distinct_rows(table)
        pooled = lookup.batch_size * row + draws * INDEX_BYTES
        repeats = max(draws - distinct, 0.0)
        read = (distinct + repeats * reread_ratio) * row
        if op.direction is Pass.BACKWARD:
            # Gradients are gathered per draw, rows read and written once each, indices sorted.
            memory += 2 * distinct * row + pooled + repeats * reread_ratio * row
            memory += 4 * draws * INDEX_BYTES
            cache += draws * row + 2 * distinct * row
        else:
            memory += read + pooled
            cache += draws * row + pooled
    return memory, cache


def _row_bytes(size_bytes: int) -> int:
    return -(-size_bytes // SECTOR_BYTES) * SECTOR_BYTES
