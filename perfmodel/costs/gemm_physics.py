"""GEMM physics: tiles assigned to multiprocessors, fed from cache and memory.

A GEMM is cut into tiles, which each multiprocessor processes in sequence. The library takes the
fastest tile shape and split of k, so the time is the minimum over them. It never falls with more
m, n or k; steps come from whole tiles and whole waves. One step down is real: GEMMs of fewer than
2**21 multiply-adds run in a simple kernel that does not split k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.stacks.capabilities import Residency

K_STEP = 32.0
"""Elements of k that a tile consumes at a time."""
SUM_BYTES = 8.0
"""Bytes moved per element and part to add up a split GEMM: one fp32 written, one read."""
TINY_WORK = 2.0**21
"""Below so many multiply-adds libraries use one simple kernel, which never splits k."""


@compiled
def fastest_candidate_ns(
    products: FloatColumn, tiles: FloatColumn, splits: FloatColumn, machine: FloatColumn
) -> FloatColumn:
    """The shortest time of each GEMM over *tiles* and *splits*: the hot loop.

    *products* are rows batch, m, n, k, bytes per element, memory time; *tiles* are columns rows,
    columns, multiply and load time per element of k; *machine* is multiprocessors, tail ratio,
    loss of k, time of a cache byte, loss under load and when it sets in, cost of a split, and the
    time of one element of k in the kernel for tiny GEMMs.
    """
    sms, tail, loss_k, cache_byte_ns, loss, loss_after, split_ns, tiny_k_ns = machine
    best = np.empty(products.shape[1])
    for row in range(products.shape[1]):
        batch, m, n, k, width, memory_ns = products[:, row]
        shortest = math.inf
        memory_fourth = (memory_ns * memory_ns) ** 2
        for rows, columns, multiply_ns, load_ns in tiles:
            per_k_ns = math.sqrt(math.sqrt(multiply_ns**4 + (load_ns * width) ** 4))
            count = math.ceil(m / rows) * math.ceil(n / columns) * batch
            tile_cache_ns = (rows + columns) * width * cache_byte_ns
            for split in splits:
                length = math.ceil(k / (split * K_STEP)) * K_STEP
                waves = count * split / sms
                whole = max(1.0, tail * math.ceil(waves) + (1.0 - tail) * waves)
                compute_ns = whole * per_k_ns * (length + loss_k)
                cache_ns = count * split * length * tile_cache_ns
                if compute_ns >= shortest or cache_ns >= shortest:
                    continue
                # Fourth-power soft maximum: near the ridge neither limit is fully reached.
                busy_ns = math.sqrt(
                    math.sqrt(
                        (compute_ns * compute_ns) ** 2 + (cache_ns * cache_ns) ** 2 + memory_fourth
                    )
                )
                busy_ns *= 1.0 + loss * busy_ns / (busy_ns + loss_after)
                if split > 1.0:
                    summed_bytes = split * batch * m * n * SUM_BYTES
                    busy_ns += split_ns + summed_bytes * cache_byte_ns
                shortest = min(shortest, busy_ns)
        if batch * m * n * k < TINY_WORK and min(m, n) > 1.0:
            shortest = max(shortest, k * tiny_k_ns)
        best[row] = shortest
    return best


TILES = (
    (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128),
    (64, 64), (128, 32), (32, 128), (64, 32), (32, 64), (64, 16), (16, 64),
)  # fmt: skip
"""Tile shapes (rows, columns) that libraries have kernels for."""

SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
"""Into how many parts k may be split, each part a tile."""

CACHE_BYTES_PER_CLOCK = 64.0
"""What one multiprocessor can read from the cache per clock, by datasheet."""

LARGEST_INTENSITY = 256 * 128 / (256 + 128)
ROTATED_COPIES = 5

ACTIVATION_BYTES = 2.0
"""Bytes of an activation before its cast and of an output: operands narrower than half precision
still produce half precision."""


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """Fitted constants of one device and kind of arithmetic; ratios are of the datasheet.

    *timing_ns* is what a benchmark's own timing adds to a kernel; training does not have it.
    *tail_ratio* is how far the last wave counts as a whole one. *loss_k* is the length of k that
    a tile's start and end cost; *loss_intensity* how fast efficiency falls with smaller tiles;
    *tiny_k_ns* what an element of k costs in the kernel for tiny GEMMs; *smallest_tile* the
    elements of the library's smallest tile. Tables of quantised layers also time the cast of the
    activation: *cast_floor_ns*, then its bytes at *cast_ratio* of memory bandwidth, of which
    *cast_cached_ratio* remains where the cache holds them; 0 where nothing is cast.
    """

    floor_ns: float
    timing_ns: float
    compute_ratio: float
    loss_k: float
    loss_intensity: float
    tail_ratio: float
    load_bytes_per_clock: float
    cache_ratio: float
    memory_ratio: float
    sustained_loss: float
    sustained_after_ns: float
    split_ns: float
    resident_ratio: float
    resident_sharpness: float
    activation_resident_ratio: float
    tiny_k_ns: float = 0.0
    smallest_tile: float = 0.0
    cast_floor_ns: float = 0.0
    cast_ratio: float = 0.0
    cast_cached_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What the datasheet states for one device and kind of arithmetic."""

    sm_count: int
    clock_hz: float
    peak_flops: float
    memory_bytes_per_s: float
    l2_bytes: float

    @property
    def cache_bytes_per_s(self) -> float:
        """Bandwidth between the cache and all multiprocessors."""
        return CACHE_BYTES_PER_CLOCK * self.sm_count * self.clock_hz

    @property
    def flops_per_clock(self) -> float:
        """What one multiprocessor computes per clock."""
        return self.peak_flops / (self.sm_count * self.clock_hz)


@dataclass(frozen=True, slots=True, eq=False)
class GemmShapes:
    """GEMMs as columns; *width_bytes* is the size of one element."""

    batch: FloatColumn
    m: FloatColumn
    n: FloatColumn
    k: FloatColumn
    width_bytes: FloatColumn

    def __len__(self) -> int:
        return len(self.m)

    def rows(self, chosen: NDArray[np.intp]) -> GemmShapes:
        """The GEMMs numbered *chosen*."""
        return GemmShapes(*(getattr(self, one.name)[chosen] for one in fields(self)))

    @property
    def activation_bytes(self) -> FloatColumn:
        """Bytes of the left operand."""
        return self.batch * self.m * self.k * self.width_bytes

    @property
    def weight_bytes(self) -> FloatColumn:
        """Bytes of the right operand."""
        return self.batch * self.n * self.k * self.width_bytes

    @property
    def output_bytes(self) -> FloatColumn:
        """Bytes of the output."""
        return self.batch * self.m * self.n * np.maximum(self.width_bytes, ACTIVATION_BYTES)

    @property
    def cast_bytes(self) -> FloatColumn:
        """Bytes that casting the left operand reads and writes."""
        return self.batch * self.m * self.k * (ACTIVATION_BYTES + self.width_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class GemmTimes:
    """Predicted kernels, their memory traffic, and what a benchmark timed besides.

    *timing_ns* is the benchmark's own timing and the cast before a quantised GEMM; in training
    both are other tasks.
    """

    kernel_ns: FloatColumn
    memory_ns: FloatColumn
    weight_miss_ratio: FloatColumn
    timing_ns: FloatColumn

    @property
    def duration_ns(self) -> FloatColumn:
        """The time that the benchmark reports."""
        return self.kernel_ns + self.timing_ns


def predict_gemm_times(
    shapes: GemmShapes, machine: MachineRates, constants: GemmConstants, residency: Residency
) -> GemmTimes:
    """Predict every GEMM of *shapes*.

    Leaves out: which kernel the library has for a layout, and bias or
    activation in the epilogue.
    """
    miss = weight_miss_ratio(shapes, machine, constants, residency)
    activations = shapes.activation_bytes
    room = constants.activation_resident_ratio * machine.l2_bytes
    activation_miss = 1.0 / (1.0 + (room / activations) ** 4)
    memory_bytes = shapes.weight_bytes * miss + activations * activation_miss + shapes.output_bytes
    memory_ns = memory_bytes * (NS_PER_S / (machine.memory_bytes_per_s * constants.memory_ratio))
    busy_ns = _busy_ns(shapes, memory_ns, machine, constants)
    timing_ns = np.zeros(len(shapes))
    if residency is not Residency.COLD:
        timing_ns = constants.timing_ns + predict_cast_ns(shapes, machine, constants)
    return GemmTimes(constants.floor_ns + busy_ns, memory_ns, miss, timing_ns)


def predict_cast_ns(
    shapes: GemmShapes, machine: MachineRates, constants: GemmConstants
) -> FloatColumn:
    """How long quantised layers take to cast their left operands."""
    if constants.cast_ratio == 0.0:
        return np.zeros(len(shapes))
    moved = shapes.cast_bytes
    room = constants.activation_resident_ratio * machine.l2_bytes
    missed = 1.0 / (1.0 + (room / moved) ** 4)
    share = constants.cast_cached_ratio + (1.0 - constants.cast_cached_ratio) * missed
    byte_ns = NS_PER_S / (machine.memory_bytes_per_s * constants.cast_ratio)
    return np.asarray(constants.cast_floor_ns + moved * share * byte_ns)


def predict_arithmetic_ns(
    shapes: GemmShapes, machine: MachineRates, constants: GemmConstants
) -> FloatColumn:
    """How long every GEMM of *shapes* would take with infinitely fast memory."""
    busy_ns = _busy_ns(shapes, np.zeros(len(shapes)), machine, constants)
    return constants.floor_ns + busy_ns


def _busy_ns(
    shapes: GemmShapes, memory_ns: FloatColumn, machine: MachineRates, constants: GemmConstants
) -> FloatColumn:
    busy_ns: FloatColumn = fastest_candidate_ns(
        np.stack([shapes.batch, shapes.m, shapes.n, shapes.k, shapes.width_bytes, memory_ns]),
        _candidates(machine, constants),
        np.array(SPLITS, dtype=np.float64),
        np.array(
            [
                machine.sm_count,
                constants.tail_ratio,
                constants.loss_k,
                NS_PER_S / (machine.cache_bytes_per_s * constants.cache_ratio),
                constants.sustained_loss,
                constants.sustained_after_ns,
                constants.split_ns,
                constants.tiny_k_ns,
            ]
        ),
    )
    return busy_ns


def weight_miss_ratio(
    shapes: GemmShapes, machine: MachineRates, constants: GemmConstants, residency: Residency
) -> FloatColumn:
    """Share of the weights that comes from memory rather than from the cache."""
    weights = shapes.weight_bytes
    if residency is Residency.COLD:
        return np.ones_like(weights)
    copies: FloatColumn = np.ones_like(weights)
    if residency is Residency.ROTATING:
        # Slightly below, so that a size that divides the cache exactly counts as dividing it.
        needed = np.ceil(machine.l2_bytes / weights * 0.9999)
        copies = np.clip(needed, 1, ROTATED_COPIES)
    footprint = copies * weights + shapes.activation_bytes + shapes.output_bytes
    room = constants.resident_ratio * machine.l2_bytes
    miss: FloatColumn = 1.0 / (1.0 + (room / footprint) ** constants.resident_sharpness)
    return miss


def _candidates(machine: MachineRates, constants: GemmConstants) -> FloatColumn:
    """Per tile: rows, columns, and per element of k the time to multiply and to load a byte."""
    rows, columns = np.array(
        [tile for tile in TILES if tile[0] * tile[1] >= constants.smallest_tile], dtype=np.float64
    ).T
    intensity = rows * columns / (rows + columns)
    loss = constants.loss_intensity
    efficiency = intensity / (intensity + loss) * (1 + loss / LARGEST_INTENSITY)
    rate_per_sm = machine.peak_flops * constants.compute_ratio * efficiency / machine.sm_count
    multiply_ns = 2 * rows * columns * NS_PER_S / rate_per_sm
    load_rate = constants.load_bytes_per_clock * machine.clock_hz
    load_ns = (rows + columns) * (NS_PER_S / load_rate)
    return np.stack([rows, columns, multiply_ns, load_ns], axis=1)
