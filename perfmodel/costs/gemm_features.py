"""What is known of GEMMs before they are priced: shapes, rates of the chip, and features.

Features are the inputs of the learned corrections. For the ordered one every feature grows with m,
n, k and batch, so a network with positive weights does too. The share of the weights that the cache
still holds is the exception: it may count either way, but only benchmarks have it. In training it
is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.compiling import compiled
from perfmodel.base.dtypes import BITS_PER_BYTE, DType
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.corrections import OrderedCorrection
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_physics import GemmShapes, GemmTimes, MachineRates
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device

SIZE_FEATURES = slice(1, 5)
"""Where the logarithms of m, n, k and batch are."""
ROW_STEPS = np.array([8, 16, 32, 48, 64, 96, 128, 192, 256], dtype=np.float64)
COLUMN_STEPS = np.array([64, 128, 256], dtype=np.float64)
WAVE_TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
     (128, 32), (32, 128), (192, 128), (16, 64), (64, 16), (32, 32)],
    dtype=np.float64,
)  # fmt: skip
LARGE_TILES = 8
"""So many of the tiles above also count their whole waves independently of k."""
FILLED_ROWS = (16, 128)
FILLED_TILES = ((128, 128), (256, 128), (64, 128), (128, 256))
HELD_FEATURES = 5
SMALL_NS = 100.0
"""Below this a part of the time does not matter; keeps logarithms finite."""
TILE_START_K = 128.0
"""About the length of k that the start and end of a tile cost."""


_WIDER = {
    DType.FP8_BLOCK: (DType.FP8,),
    DType.MXFP8: (DType.FP8,),
    DType.MXFP4: (DType.NVFP4,),
    DType.INT8: (DType.BF16, DType.FP16),
    DType.BF16: (DType.FP32,),
    DType.TF32: (DType.FP32,),
}
"""Formats that GEMMs run as where the chip states no rate for their own."""


def gemm_shapes(ops: Sequence[Gemm]) -> GemmShapes:
    """*ops*, all of one dtype, as columns."""
    count = len(ops)
    return GemmShapes(
        batch=np.fromiter((op.batch for op in ops), np.float64, count),
        m=np.fromiter((op.m for op in ops), np.float64, count),
        n=np.fromiter((op.n for op in ops), np.float64, count),
        k=np.fromiter((op.k for op in ops), np.float64, count),
        width_bytes=np.full(count, ops[0].dtype.size_bits / BITS_PER_BYTE if ops else 0.0),
    )


def is_on_vector_units(stored: DType, device: Device, stack: SoftwareStack) -> bool:
    """Whether GEMMs of numbers *stored* so run outside tensor cores on *device*."""
    kind = rated_format(device, stack.matmul_dtypes.get(stored, stored))
    # A stated FP32 rate is that of vector units; on some boards tensor cores are no faster.
    return kind in (None, DType.FP32) or device.peak_flops[kind] <= device.vector_flops


def machine_rates(device: Device, dtype: DType) -> MachineRates:
    """What the datasheet of *device* states for GEMMs of *dtype*.

    A dtype without its own rate runs as the next wider one that has one, without tensor cores at
    the vector rate.
    """
    kind = rated_format(device, dtype)
    rate = device.vector_flops if kind is None else device.peak_flops[kind]
    return MachineRates(
        sm_count=device.sm_count,
        clock_hz=device.clock_hz,
        peak_flops=float(rate),
        memory_bytes_per_s=float(device.memory_bandwidth_bytes_per_s),
        l2_bytes=float(device.l2_bytes),
    )


def rated_format(device: Device, dtype: DType) -> DType | None:
    """The format with a stated rate that GEMMs of *dtype* run as."""
    kinds = (dtype, *_WIDER.get(dtype, ()))
    return next((kind for kind in kinds if kind in device.peak_flops), None)


def gemm_features(shapes: GemmShapes, machine: MachineRates, times: GemmTimes) -> FloatColumn:
    """GEMMs x features; the first is the logarithm of the time that the physics predicts."""
    missed = shapes.weight_bytes * times.weight_miss_ratio / machine.l2_bytes
    table: FloatColumn = _features(
        np.stack(
            [shapes.m, shapes.n, shapes.k, shapes.batch, times.kernel_ns, times.memory_ns, missed,
             1.0 - times.weight_miss_ratio]
        ),
        NS_PER_S / machine.peak_flops,
        float(machine.sm_count),
    )  # fmt: skip
    return table


def has_fitted_sizes(features: FloatColumn, correction: OrderedCorrection) -> NDArray[np.bool_]:
    """Whether m, n, k and batch are in the range of the fit."""
    sizes = features[:, SIZE_FEATURES]
    low, high = correction.low[SIZE_FEATURES], correction.high[SIZE_FEATURES]
    return np.asarray(np.all((sizes >= low - 1e-3) & (sizes <= high + 1e-3), axis=1))


def gemm_step_features(shapes: GemmShapes, machine: MachineRates, times: GemmTimes) -> FloatColumn:
    """GEMMs x features that may rise or fall with the work: shape, balance, filling."""
    log_time = np.log2(times.kernel_ns)
    work_ns = 2 * shapes.batch * shapes.m * shapes.n * shapes.k * (NS_PER_S / machine.peak_flops)
    columns = [
        np.log2(shapes.m),
        np.log2(shapes.n),
        np.log2(shapes.k),
        log_time,
        np.log2(work_ns) - log_time,
        np.log2(times.memory_ns + 1.0) - log_time,
        times.weight_miss_ratio,
    ]
    columns += [shapes.m / (rows * np.ceil(shapes.m / rows)) for rows in FILLED_ROWS]
    for rows, across in FILLED_TILES:
        waves = np.ceil(shapes.m / rows) * np.ceil(shapes.n / across) * shapes.batch
        waves = waves / machine.sm_count
        columns.append(waves / np.ceil(waves))
    return np.stack(columns, axis=1)


@compiled
def _features(products: FloatColumn, flop_ns: float, sms: float) -> FloatColumn:
    count = products.shape[1]
    width = 10 + len(ROW_STEPS) + len(COLUMN_STEPS) + 2 * len(WAVE_TILES) + LARGE_TILES
    table = np.empty((count, width + 2 * HELD_FEATURES))
    for row in range(count):
        m, n, k, batch, duration_ns, memory_ns, missed, held = products[:, row]
        log_m, log_n, log_k, log_batch = math.log2(m), math.log2(n), math.log2(k), math.log2(batch)
        line = table[row]
        line[0] = math.log(duration_ns)
        line[1], line[2], line[3], line[4] = log_m, log_n, log_k, log_batch
        line[5], line[6] = min(log_m, 7.0), min(log_n, 7.0)
        line[7] = math.log2(memory_ns + SMALL_NS)
        line[8] = math.log2(2.0 * batch * m * n * k * flop_ns + SMALL_NS)
        line[9] = math.log2(missed + 1e-3)
        place = 10
        for step in ROW_STEPS:
            line[place] = math.log2(math.ceil(m / step))
            place += 1
        for step in COLUMN_STEPS:
            line[place] = math.log2(math.ceil(n / step))
            place += 1
        log_length = math.log2(k + TILE_START_K)
        for number in range(len(WAVE_TILES)):
            rows, columns = WAVE_TILES[number]
            waves = math.ceil(m / rows) * math.ceil(n / columns) * batch / sms
            log_whole = math.log2(math.ceil(waves))
            line[place] = math.log2(waves)
            line[place + 1] = log_whole + log_length
            place += 2
            if number < LARGE_TILES:
                line[place] = log_whole
                place += 1
        _write_held(line, width, held, (log_m, log_n, log_k, line[0]))
    return table


@compiled
def _write_held(
    line: FloatColumn, place: int, held: float, logs: tuple[float, float, float, float]
) -> None:
    """What the cache holds, by itself and times each of *logs*, each with both signs."""
    log_m, log_n, log_k, log_ns = logs
    line[place] = held
    line[place + 1] = held * (log_m - 5.0)
    line[place + 2] = held * (log_n - 10.0)
    line[place + 3] = held * (log_k - 10.0)
    line[place + 4] = held * (log_ns - 9.0)
    for number in range(HELD_FEATURES):
        line[place + HELD_FEATURES + number] = -line[place + number]
