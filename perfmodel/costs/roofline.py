"""Roofline: arithmetic and traffic that overlap, and the floor under every kernel.

A soft maximum instead of a hard one, because near the ridge neither limit is
fully reached.
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import Bound, CodeColumn, FloatColumn
from topologies import Device

SOFTNESS = 4.0
"""Exponent of the soft maximum: larger is harder."""

FLOOR_NS = 2_000.0
"""Shortest time between two small kernels on one stream of a current GPU."""

HALF_BANDWIDTH_NS = 1_500.0
"""Time that a kernel's first bytes are on their way, so small ones never reach full bandwidth."""


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
