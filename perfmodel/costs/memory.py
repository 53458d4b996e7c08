"""Memory-bound kernels: time is the traffic they make on a size-dependent bandwidth curve.

Reads and writes are the op's own; the curve says how well the operator uses
the memory. An operator word nobody knows gets the plain curve and is tagged
assumed; no kernel is ever free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.calibration_files import Entry, entries_for, match_entry
from perfmodel.costs.estimates import (
    Bound,
    CodeColumn,
    Estimates,
    FloatColumn,
    build_estimates,
    price_by_kind,
    rows_of_kinds,
)
from perfmodel.graph.ops import MemoryBound
from perfmodel.stacks.stack import Fusion, Residency, SoftwareStack
from topologies import Device

# A word nobody measured under its own name takes the curve of the operator it
# resembles; a word nobody knows takes the plain curve and is tagged assumed.


PLAIN = "add"

RESEMBLES = {
    "add": "add", "residual_add": "add", "add_": "add", "sub": "add", "mul": "mul", "div": "div",
    "pow": "pow", "relu": "relu", "gelu": "gelu", "silu": "gelu", "tanh": "tanh",
    "sigmoid": "tanh", "swiglu": "mul", "geglu": "mul", "bias_gelu": "gelu", "bias_add": "add",
    "scale": "mul_scalar", "cast": "relu", "copy": "relu", "fill": "relu", "zero": "relu",
    "zero_": "relu", "dropout": "mul", "dropout_residual": "add", "bias_dropout_add": "add",
    "transpose": "relu", "concat": "relu", "cat": "relu", "split": "relu", "slice": "relu",
    "gather": "relu", "rotary": "mul", "rope": "mul", "mask": "mul", "scale_mask": "mul",
    "accumulate": "add", "gradient_accumulation": "add", "interaction": "relu", "index": "relu",
    "mse_loss": "add", "binary_cross_entropy": "add", "sum": "relu", "reduction": "relu",
    "gradient_norm": "relu", "l2_norm": "relu", "gradient_clip": "mul_scalar",
    "sgd": "add", "momentum": "add", "adagrad": "add", "adam": "add", "adamw": "add",
    "lamb": "add", "master_weights": "add",
    "layer_norm": "layer_norm", "rms_norm": "layer_norm", "batch_norm": "layer_norm",
    "softmax": "softmax", "log_softmax": "softmax", "scale_mask_softmax": "softmax",
    "cross_entropy": "softmax", "embedding": "relu", "conv": "relu",
}  # fmt: skip
"""Word -> measured operator. `_forward` and `_backward` behind a word do not change its curve."""

SUFFIXES = ("_forward", "_backward", "_fused", "_foreach", "_plain", "_fwd", "_bwd")


def measured_word(operator: str) -> str | None:
    """The measured operator that stands for *operator*, or None if nobody knows the word."""
    word = operator.rsplit("::", 1)[-1]
    if "/" in word or word.endswith("_scalar"):
        return word
    while True:
        if word in RESEMBLES:
            return RESEMBLES[word]
        suffix = next((one for one in SUFFIXES if word.endswith(one)), None)
        if suffix is None:
            return None
        word = word.removesuffix(suffix)


def stand_ins(word: str) -> tuple[str, ...]:
    """*word*, then the measured operators that may stand in for it, best first.

    The two norms make the same passes, so one implementation's curve of the one
    serves for the other.
    """
    if word.startswith("layer_norm/"):
        return word, word.replace("layer_norm/", "rms_norm/")
    if word.startswith("rms_norm/"):
        return word, word.replace("rms_norm/", "layer_norm/")
    return (word,)


def implementation_word(operator: str, stack: SoftwareStack) -> str:
    """The implementation that *stack* runs for *operator*, where we know several."""
    word = operator.rsplit("::", 1)[-1]
    kind = next((name for name in ("layer_norm", "rms_norm") if word.startswith(name)), None)
    if kind is None or "/" in word or not stack.fuses(Fusion.NORM):
        return operator
    direction = "backward" if word.endswith(("_backward", "_bwd")) else "forward"
    return f"rms_norm/cudnn/{direction}"


UNKNOWN_SIGMA = 0.4
RESEMBLING_SIGMA = 0.12


@dataclass(frozen=True, slots=True)
class _Known:
    """A curve for one operator, and how well it is known."""

    curve: TrafficCurve
    row_factors: Sequence[Sequence[float]]
    relative_sigma: float
    provenance: Provenance


class MemoryModel:
    """Prices kernels that are bound by their traffic."""

    family = "memory"

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self._entries = entries

    def price(self, ops: Sequence[MemoryBound], device: Device, stack: SoftwareStack) -> Estimates:
        """Predict *ops* on *device* under *stack*."""

        def price(operator: str, chosen: Sequence[MemoryBound]) -> Estimates:
            known = self._known(implementation_word(operator, stack), device)
            return _price(chosen, known, device, stack)

        return price_by_kind(ops, rows_of_kinds(op.operator for op in ops), price)

    def _known(self, operator: str, device: Device) -> _Known:
        entries = entries_for("memory", device) if self._entries is None else tuple(self._entries)
        word = measured_word(operator)
        found = (match_entry(entries, device, name) for name in stand_ins(word or PLAIN))
        match = next((one for one in found if one is not None), None)
        if match is None:
            match = match_entry(entries, device, PLAIN)
            word = None
        if match is None or (word is None and not match.is_own):
            curve = datasheet_curve(l2_bytes=device.l2_bytes, cache_speed=_cache_speed(device))
            return _Known(curve, (), UNKNOWN_SIGMA, Provenance.ASSUMED)
        entry = match.entry
        is_same = entry.variant == operator
        borrowed = match.borrowed_sigma if is_same else match.borrowed_sigma + RESEMBLING_SIGMA
        provenance = Provenance.INTERPOLATED if match.is_own else Provenance.EXTRAPOLATED
        return _Known(
            curve=_curve(entry),
            row_factors=entry.curves.get("row_factors", ()),
            relative_sigma=UNKNOWN_SIGMA if word is None else entry.relative_sigma + borrowed,
            provenance=Provenance.ASSUMED if word is None else provenance,
        )


def _price(
    ops: Sequence[MemoryBound], known: _Known, device: Device, stack: SoftwareStack
) -> Estimates:
    rows = [(op.read_bytes + op.write_bytes, op.flops, op.row_length) for op in ops]
    size, flops, row_length = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    flops = flops + size * stack.kernel_operations.get(ops[0].operator, 0.0)
    curve = known.curve
    memory_ns = curve.busy_ns(size, float(device.memory_bandwidth_bytes_per_s))
    memory_ns = memory_ns * interpolate_row_factor(row_length, known.row_factors)
    compute_ns = flops * NS_PER_S / float(device.vector_flops)
    timing_ns = 0.0 if stack.residency is Residency.COLD else curve.timing_ns
    bound = name_bound(compute_ns, memory_ns, curve.floor_ns)
    is_cached = (bound == Bound.MEMORY) & (size < 0.5 * device.l2_bytes)
    return build_estimates(
        timing_ns + curve.floor_ns + soft_maximum(memory_ns, compute_ns),
        relative_sigma=known.relative_sigma,
        provenance=known.provenance,
        bound=np.where(is_cached, Bound.CACHE, bound),
    )


def _curve(entry: Entry) -> TrafficCurve:
    knots, slopes = np.array(entry.curves["slopes"], dtype=np.float64).T
    return TrafficCurve(
        floor_ns=entry.constants["floor_ns"],
        timing_ns=entry.constants["timing_ns"],
        knots_bytes=tuple(float(knot) for knot in knots),
        slopes=tuple(float(slope) for slope in slopes),
    )


def _cache_speed(device: Device) -> float:
    if device.l2_bandwidth_bytes_per_s is None:
        return CACHE_SPEED
    return float(device.l2_bandwidth_bytes_per_s / device.memory_bandwidth_bytes_per_s)


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
