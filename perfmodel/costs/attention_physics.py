"""Attention physics: query tiles dealt to multiprocessors, each passing over its keys.

Multiplying and exponentiating take turns on a tile, so their times add. The
job ends when the mean load is done and the longest tile is done; causal tiles
differ in length, which the soft maximum of the two stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_physics import MachineRates

QUERY_TILE = 128
KEY_TILE = 128
FORWARD_PRODUCTS = 4.0
"""Operations per query-key pair and element of the head: two products, multiply and add."""
BACKWARD_PRODUCTS = 10.0
"""Five products: scores again, and gradients of values, scores, queries and keys."""
BACKWARD_TRAFFIC = 2.0
"""Backward reads and writes about twice what forward does: operands and their gradients."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """What is fitted for one device and kernel; ratios are of the datasheet.

    *pair_clocks* is what a multiprocessor spends on one query-key pair besides
    multiplying: the exponential, the maximum, the scaling. *traffic_bytes_per_clock*
    is how fast it takes in queries and puts out results before and after the
    multiplying: a rate of the multiprocessor, since H100 and H200, which differ only
    in memory, take the same time.
    """

    floor_ns: float
    compute_ratio: float
    pair_clocks: float
    balance: float
    traffic_bytes_per_clock: float
    sustained_loss: float
    sustained_after_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class AttentionShapes:
    """Attention calls as columns; *width_bytes* is the size of one element."""

    batch: FloatColumn
    queries: FloatColumn
    keys: FloatColumn
    heads: FloatColumn
    kv_heads: FloatColumn
    head_dim: FloatColumn
    width_bytes: FloatColumn
    is_causal: NDArray[np.bool_]
    is_backward: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.batch)

    def rows(self, chosen: NDArray[np.intp]) -> AttentionShapes:
        """The calls numbered *chosen*."""
        return AttentionShapes(
            batch=self.batch[chosen],
            queries=self.queries[chosen],
            keys=self.keys[chosen],
            heads=self.heads[chosen],
            kv_heads=self.kv_heads[chosen],
            head_dim=self.head_dim[chosen],
            width_bytes=self.width_bytes[chosen],
            is_causal=self.is_causal[chosen],
            is_backward=self.is_backward[chosen],
        )

    @property
    def key_tiles(self) -> FloatColumn:
        """Key tiles that one query tile passes over, on average."""
        tiles = np.ceil(self.keys / KEY_TILE)
        query_tiles = np.ceil(self.queries / QUERY_TILE)
        # The last query sees all keys; the tile on the diagonal is computed whole.
        visible = tiles - (np.minimum(query_tiles, tiles) - 1) / 2
        return np.where(self.is_causal, visible, tiles)

    @property
    def tile_count(self) -> FloatColumn:
        """Query tiles of all heads and samples."""
        return self.batch * self.heads * np.ceil(self.queries / QUERY_TILE)

    @property
    def traffic_bytes(self) -> FloatColumn:
        """Queries read, outputs written, keys and values read once."""
        elements = 2 * self.head_dim * (self.heads * self.queries + self.kv_heads * self.keys)
        passes = np.where(self.is_backward, BACKWARD_TRAFFIC, 1.0)
        return passes * self.batch * elements * self.width_bytes


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTimes:
    """Predicted durations and the part that is traffic with memory."""

    duration_ns: FloatColumn
    memory_ns: FloatColumn


def predict_attention_times(
    shapes: AttentionShapes, machine: MachineRates, constants: AttentionConstants
) -> AttentionTimes:
    """Predict every call of *shapes* by a fused kernel.

    Leaves out: dropout, biases, and splitting of keys over multiprocessors for
    single queries.
    """
    products = np.where(shapes.is_backward, BACKWARD_PRODUCTS, FORWARD_PRODUCTS)
    rate_per_sm = machine.peak_flops * constants.compute_ratio / machine.sm_count
    pair_ns = products * shapes.head_dim * (NS_PER_S / rate_per_sm)
    pair_ns = pair_ns + constants.pair_clocks * (NS_PER_S / machine.clock_hz)
    block_ns = pair_ns * QUERY_TILE * KEY_TILE
    mean_ns = shapes.tile_count * shapes.key_tiles * block_ns / machine.sm_count
    longest_ns = np.ceil(shapes.keys / KEY_TILE) * block_ns
    larger = np.maximum(mean_ns, longest_ns)
    smaller = np.minimum(mean_ns, longest_ns)
    power = constants.balance
    busy_ns = larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power)
    rate = machine.sm_count * machine.clock_hz * constants.traffic_bytes_per_clock
    memory_ns = shapes.traffic_bytes * (NS_PER_S / rate)
    total_ns = busy_ns + memory_ns
    total_ns = total_ns * (
        1.0 + constants.sustained_loss * total_ns / (total_ns + constants.sustained_after_ns)
    )
    return AttentionTimes(constants.floor_ns + total_ns, memory_ns)


def attention_features(
    shapes: AttentionShapes, machine: MachineRates, times: AttentionTimes
) -> NDArray[np.float64]:
    """Calls x features: what the learned correction may look at."""
    waves = shapes.tile_count / machine.sm_count
    return np.stack(
        [
            np.log2(shapes.queries),
            np.log2(shapes.keys),
            np.log2(shapes.batch),
            np.log2(shapes.heads),
            np.log2(shapes.heads / shapes.kv_heads),
            np.log2(shapes.head_dim),
            np.log2(times.duration_ns),
            np.log2(times.memory_ns) - np.log2(times.duration_ns),
            np.clip(np.log2(waves), -8, 8),
            waves / np.ceil(waves),
            shapes.queries / (QUERY_TILE * np.ceil(shapes.queries / QUERY_TILE)),
            shapes.head_dim / (32 * np.ceil(shapes.head_dim / 32)),
        ],
        axis=1,
    )
