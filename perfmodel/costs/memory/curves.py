"""Memory curves: how long traffic takes, as a convex curve of its size.

A kernel first costs its floor, then the cache's bandwidth, then memory's: each
next byte costs at least as much as the one before. A convex, rising,
piecewise linear curve says just that, so more bytes never take less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Bound, CodeColumn, FloatColumn
from topologies import Device

# A soft maximum instead of a hard one, because near the ridge neither limit is
# fully reached.


SOFTNESS = 4.0
"""Exponent of the soft maximum: larger is harder."""

FLOOR_NS = 2_000.0
"""Shortest time between two small kernels on one stream of a current GPU."""


def soft_maximum(*terms: FloatColumn) -> FloatColumn:
    """The SOFTNESS-norm of *terms*: at least the largest, at most a little more."""
    largest = np.maximum.reduce(terms)
    safe = np.where(largest > 0, largest, 1.0)
    total = np.zeros_like(safe)
    for term in terms:
        total += (term / safe) ** SOFTNESS
    result: FloatColumn = largest * total ** (1.0 / SOFTNESS)
    return result


def traffic_ns(size_bytes: FloatColumn, bandwidth_bytes_per_s: float) -> FloatColumn:
    """How long *size_bytes* occupy a memory of *bandwidth_bytes_per_s*."""
    return size_bytes * (NS_PER_S / bandwidth_bytes_per_s)


def name_bound(
    compute_ns: FloatColumn, memory_ns: FloatColumn, floor_ns: FloatColumn | float
) -> CodeColumn:
    """Which of three limits is the largest, row by row."""
    terms = np.stack([compute_ns, memory_ns, np.broadcast_to(floor_ns, compute_ns.shape)])
    codes = np.array([Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY], dtype=np.int8)
    named: CodeColumn = codes[np.argmax(terms, axis=0)]
    return named


def vector_flops(device: Device) -> float:
    """Operations a second outside tensor cores."""
    return float(device.vector_flops)


DEFAULT_FLOOR_NS = 2_000.0
DEFAULT_EFFICIENCY = 0.85
CACHE_SHARE = 0.4
"""Share of the cache that the traffic of a kernel finds still holding its operands."""
CACHE_SPEED = 2.5
"""Bandwidth of the cache over that of memory where the datasheet does not say."""


@dataclass(frozen=True, slots=True)
class TrafficCurve:
    """Time over bytes: *floor_ns*, then slopes that add up from each knot on.

    Slopes are in units of one byte at datasheet bandwidth, so they are
    inverse efficiencies and travel between devices. *timing_ns* is what the
    benchmark's own timing adds.
    """

    floor_ns: float
    timing_ns: float
    knots_bytes: tuple[float, ...]
    slopes: tuple[float, ...]

    def busy_ns(self, size_bytes: FloatColumn, bandwidth_bytes_per_s: float) -> FloatColumn:
        """Time beyond the floor for *size_bytes*."""
        byte_ns = NS_PER_S / bandwidth_bytes_per_s
        total = np.zeros_like(size_bytes)
        for knot, slope in zip(self.knots_bytes, self.slopes, strict=True):
            total += slope * byte_ns * np.maximum(size_bytes - knot, 0.0)
        return total


def datasheet_curve(*, l2_bytes: float, cache_speed: float) -> TrafficCurve:
    """The curve of a device that nobody measured: cache first, then memory."""
    fast = 1.0 / (DEFAULT_EFFICIENCY * max(cache_speed, 1.0))
    slow = 1.0 / DEFAULT_EFFICIENCY
    return TrafficCurve(
        floor_ns=DEFAULT_FLOOR_NS,
        timing_ns=0.0,
        knots_bytes=(0.0, CACHE_SHARE * l2_bytes),
        slopes=(fast, slow - fast),
    )


def interpolate_row_factor(
    row_length: FloatColumn, curve: Sequence[Sequence[float]]
) -> FloatColumn:
    """What a reduction over rows costs beyond its traffic, by the length of a row.

    Linear in the logarithm between measured lengths, constant beyond them.
    """
    if not curve:
        return np.ones_like(row_length)
    lengths, factors = np.array(curve, dtype=np.float64).T
    where = np.log2(np.maximum(row_length, 1.0))
    return np.asarray(np.interp(where, np.log2(lengths), factors), dtype=np.float64)
