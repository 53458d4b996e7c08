"""Memory-bound kernels: time is traffic on a size-dependent bandwidth curve.

A kernel first costs its floor, then the cache's bandwidth, then memory's: each next byte costs at
least as much as the one before. The curve is therefore convex, rising and piecewise linear, so
more bytes never take less time. An operator that was not measured uses the curve of the one it
resembles; an unknown one uses the plain curve and is tagged assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.base.documents import load_yaml
from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import match_entry
from perfmodel.costs.estimates import (
    Bound,
    CalibratedModel,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.capabilities import Fusion, Residency
from perfmodel.stacks.optimizers import load_optimizers
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

PLAIN = "add"
RECORDED_WORDS = ("fused_pointwise", "fused_persistent_reduction", "fused_reduction")
"""Kernels of compiled code, measured in recordings of training."""
SUFFIXES = ("_forward", "_backward", "_fused", "_foreach", "_plain", "_fwd", "_bwd")
"""What does not change the curve of an operator."""
UNKNOWN_SIGMA = 0.4
RESEMBLING_SIGMA = 0.12
FLOOR_NS = 2_000.0
"""Shortest time between two small kernels on one stream of a current GPU."""
DEFAULT_EFFICIENCY = 0.85
CACHE_SHARE = 0.4
"""Share of the cache in which a kernel still finds its operands."""
CACHE_SPEED = 2.5
"""Bandwidth of the cache over that of memory where the datasheet does not state it."""
SOFTNESS = 4.0
"""Exponent of the soft maximum: larger is harder."""


@cache
def resembling() -> dict[str, str]:
    """The measured operator of those of `memory_words.yaml`; optimizers move bytes as `add`."""
    content = load_yaml(Path(__file__).with_name("memory_words.yaml"))
    known = {word: measured for measured, words in content.items() for word in words}
    return {**dict.fromkeys(load_optimizers(), "add"), **known}


def measured_word(operator: str) -> str | None:
    """The measured operator with the curve of *operator*, or None if there is none."""
    word = operator.rsplit("::", 1)[-1]
    if "/" in word or word.endswith("_scalar"):
        return word
    known = resembling()
    while word not in known:
        suffix = next((one for one in SUFFIXES if word.endswith(one)), None)
        if suffix is None:
            return None
        word = word.removesuffix(suffix)
    return known[word]


def implementation_word(operator: str, stack: SoftwareStack) -> str:
    """The implementation that *stack* runs for *operator*, where several were measured."""
    word = operator.rsplit("::", 1)[-1]
    is_norm = word.startswith(("layer_norm", "rms_norm"))
    if not is_norm or "/" in word or not stack.fuses(Fusion.NORM):
        return operator
    direction = "backward" if word.endswith(("_backward", "_bwd")) else "forward"
    return f"rms_norm/cudnn/{direction}"


@dataclass(frozen=True, slots=True)
class TrafficCurve:
    """Time over bytes: *floor_ns*, then slopes that add up from each knot on.

    Slopes are in units of one byte at datasheet bandwidth, so they are inverse efficiencies that
    carry over between devices. *timing_ns* is what the benchmark's own timing adds. *row_factors*
    are factors by the length of a reduced row.
    """

    floor_ns: float
    timing_ns: float
    knots_bytes: tuple[float, ...]
    slopes: tuple[float, ...]
    row_factors: Sequence[Sequence[float]] = ()
    relative_sigma: float = UNKNOWN_SIGMA
    provenance: Provenance = Provenance.ASSUMED

    def busy_ns(self, size_bytes: FloatColumn, bandwidth_bytes_per_s: float) -> FloatColumn:
        """Time beyond the floor for *size_bytes*."""
        byte_ns = NS_PER_S / bandwidth_bytes_per_s
        total = np.zeros_like(size_bytes)
        for knot, slope in zip(self.knots_bytes, self.slopes, strict=True):
            total += slope * byte_ns * np.maximum(size_bytes - knot, 0.0)
        return total


class MemoryModel(CalibratedModel):
    """Prices kernels that are bound by their traffic."""

    family = kind = "memory"

    def price(self, ops: Sequence[MemoryBound], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""

        def price(operator: str, chosen: Sequence[MemoryBound]) -> Estimates:
            curve = self._curve(implementation_word(operator, stack), device)
            rows = [(op.read_bytes + op.write_bytes, op.flops, op.row_length) for op in chosen]
            size, flops, row_length = np.array(rows, dtype=np.float64).reshape(-1, 3).T
            flops = flops + size * stack.kernel_operations.get(operator, 0.0)
            memory_ns = curve.busy_ns(size, float(device.memory_bandwidth_bytes_per_s))
            memory_ns = memory_ns * interpolate_row_factor(row_length, curve.row_factors)
            compute_ns = flops * NS_PER_S / float(device.vector_flops)
            limits = [compute_ns, memory_ns, np.full_like(size, curve.floor_ns)]
            bounds = np.array([Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY], dtype=np.int8)
            bound = bounds[np.argmax(limits, axis=0)]
            is_cached = (bound == Bound.MEMORY) & (size < 0.5 * device.l2_bytes)
            timing_ns = 0.0 if stack.residency is Residency.COLD else curve.timing_ns
            return build_estimates(
                timing_ns + curve.floor_ns + soft_maximum(memory_ns, compute_ns),
                relative_sigma=curve.relative_sigma,
                provenance=curve.provenance,
                bound=np.where(is_cached, Bound.CACHE, bound),
            )

        return price_by_kind(ops, rows_of_kinds(op.operator for op in ops), price)

    def _curve(self, operator: str, device: Device) -> TrafficCurve:
        entries, word = self.entries(device), measured_word(operator)
        names = [word or PLAIN]
        # The two norms make the same passes, so an implementation's curve of one serves both.
        for norm, other in (("layer_norm/", "rms_norm/"), ("rms_norm/", "layer_norm/")):
            if names[0].startswith(norm):
                names.append(names[0].replace(norm, other))
                break
        found = (match_entry(entries, device, name) for name in names)
        match = next((one for one in found if one is not None), None)
        if match is None:
            match, word = match_entry(entries, device, PLAIN), None
        if match is None or (word is None and not match.is_own):
            return _datasheet_curve(device)
        entry = match.entry
        knots, slopes = np.array(entry.curves["slopes"], dtype=np.float64).T.tolist()
        sigma = match.borrowed_sigma
        if entry.variant != operator:
            sigma += RESEMBLING_SIGMA
        known = Provenance.INTERPOLATED if match.is_own else Provenance.EXTRAPOLATED
        return TrafficCurve(
            floor_ns=entry.constants["floor_ns"],
            timing_ns=entry.constants["timing_ns"],
            knots_bytes=tuple(knots),
            slopes=tuple(slopes),
            row_factors=entry.curves.get("row_factors", ()),
            relative_sigma=UNKNOWN_SIGMA if word is None else entry.relative_sigma + sigma,
            provenance=Provenance.ASSUMED if word is None else known,
        )


def _datasheet_curve(device: Device) -> TrafficCurve:
    """The curve of a device without measurements: cache first, then memory."""
    cache_speed = CACHE_SPEED
    if device.l2_bandwidth_bytes_per_s is not None:
        cache_speed = float(device.l2_bandwidth_bytes_per_s / device.memory_bandwidth_bytes_per_s)
    fast = 1.0 / (DEFAULT_EFFICIENCY * max(cache_speed, 1.0))
    slow = 1.0 / DEFAULT_EFFICIENCY
    knots_bytes = (0.0, CACHE_SHARE * device.l2_bytes)
    return TrafficCurve(FLOOR_NS, 0.0, knots_bytes, slopes=(fast, slow - fast))


def soft_maximum(*terms: FloatColumn) -> FloatColumn:
    """The SOFTNESS-norm of *terms*: near the ridge neither of two limits is fully reached."""
    largest = np.maximum.reduce(terms)
    safe = np.where(largest > 0, largest, 1.0)
    total = np.zeros_like(safe)
    for term in terms:
        total += (term / safe) ** SOFTNESS
    result: FloatColumn = largest * total ** (1.0 / SOFTNESS)
    return result


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
