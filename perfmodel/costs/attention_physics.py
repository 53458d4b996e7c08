"""Attention physics: query tiles dealt to multiprocessors, each passing over its keys.

Multiplying and exponentiating take turns on a tile, so their times add. The
job ends when the mean load is done and the longest tile is done; causal tiles
differ in length, which the soft maximum of the two stands for. Serving
benchmarks also write keys and values to a cache, which training does not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_physics import MachineRates

QUERY_TILE = 128
KEY_TILE = 128
HEAD_TILE = 32
"""Kernels are compiled for head sizes in steps of this and pad what lies between."""
FORWARD_PRODUCTS = 4.0
"""Operations per query-key pair and element of the head: two products, multiply and add."""
CACHE_PASSES = 2.0
"""Writing the cache reads the new keys and values once and writes them once."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """What is fitted for one device and kernel; ratios are of the datasheet.

    *pair_clocks* is what a multiprocessor spends on one query-key pair besides
    multiplying: the exponential, the maximum, the scaling; *tile_clocks* what a
    query tile costs whatever its length. *traffic_bytes_per_clock* is how fast it
    takes in queries and puts out results, before and after the multiplying: a rate of
    the multiprocessor, since H100 and H200, which differ only in memory, take the same
    time. Keys and values arrive while it multiplies. *cache_ratio* is the
    share of memory bandwidth that the cache is written at, 0 where none was written.
    """

    floor_ns: float
    compute_ratio: float
    pair_clocks: float
    tile_clocks: float
    balance: float
    traffic_bytes_per_clock: float
    sustained_loss: float
    sustained_after_ns: float
    cache_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class BackwardConstants:
    """Backward as so many forwards, and so many passes over what forward must move.

    Five products instead of two make it 2.5 forwards and a bit; the passes are the
    separate kernels that prepare and convert gradients at the speed of memory.
    """

    backward_forwards: float
    backward_passes: float


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
        return AttentionShapes(*(getattr(self, one.name)[chosen] for one in fields(self)))

    @property
    def query_tiles(self) -> FloatColumn:
        """Query tiles of one head."""
        return np.ceil(self.queries / QUERY_TILE)

    @property
    def key_tiles(self) -> FloatColumn:
        """Key tiles that one query tile passes over, on average."""
        tiles = np.ceil(self.keys / KEY_TILE)
        # The last query sees all keys; the tile on the diagonal is computed whole.
        visible = tiles - (np.minimum(self.query_tiles, tiles) - 1) / 2
        return np.where(self.is_causal, visible, tiles)

    @property
    def tile_count(self) -> FloatColumn:
        """Query tiles of all heads and samples."""
        return self.batch * self.heads * self.query_tiles

    @property
    def padded_head_dim(self) -> FloatColumn:
        """The head size a kernel works with."""
        return HEAD_TILE * np.ceil(self.head_dim / HEAD_TILE)

    @property
    def key_value_bytes(self) -> FloatColumn:
        """Keys and values."""
        return 2 * self.batch * self.kv_heads * self.keys * self.head_dim * self.width_bytes

    @property
    def row_bytes(self) -> FloatColumn:
        """Queries and outputs."""
        return 2 * self.batch * self.heads * self.queries * self.head_dim * self.width_bytes


@dataclass(frozen=True, slots=True, eq=False)
class AttentionTimes:
    """Predicted forward durations and the parts they are made of."""

    duration_ns: FloatColumn
    mean_ns: FloatColumn
    longest_ns: FloatColumn
    busy_ns: FloatColumn
    memory_ns: FloatColumn


def predict_forward_times(
    shapes: AttentionShapes, machine: MachineRates, constants: AttentionConstants
) -> AttentionTimes:
    """Predict the forward pass of every call of *shapes* by a fused kernel.

    Every part grows with batch, length, heads and head size, hence so does the whole.

    Leaves out: dropout, biases, and splitting of keys over multiprocessors for
    single queries.
    """
    clock_ns = NS_PER_S / machine.clock_hz
    rate_per_sm = machine.peak_flops * constants.compute_ratio / machine.sm_count
    pair_ns = FORWARD_PRODUCTS * shapes.padded_head_dim * (NS_PER_S / rate_per_sm)
    block_ns = (pair_ns + constants.pair_clocks * clock_ns) * QUERY_TILE * KEY_TILE
    tile_ns = constants.tile_clocks * clock_ns
    mean_ns = shapes.tile_count * (shapes.key_tiles * block_ns + tile_ns) / machine.sm_count
    longest_ns = np.ceil(shapes.keys / KEY_TILE) * block_ns + tile_ns
    larger = np.maximum(mean_ns, longest_ns)
    smaller = np.minimum(mean_ns, longest_ns)
    power = constants.balance
    busy_ns = larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power)
    rate = machine.sm_count * machine.clock_hz * constants.traffic_bytes_per_clock
    memory_ns = shapes.row_bytes * (NS_PER_S / rate) + _cache_ns(shapes, machine, constants)
    total_ns = busy_ns + memory_ns
    total_ns = total_ns * (
        1.0 + constants.sustained_loss * total_ns / (total_ns + constants.sustained_after_ns)
    )
    return AttentionTimes(
        duration_ns=constants.floor_ns + total_ns,
        mean_ns=mean_ns,
        longest_ns=longest_ns,
        busy_ns=busy_ns,
        memory_ns=memory_ns,
    )


def predict_backward_ns(
    shapes: AttentionShapes,
    machine: MachineRates,
    constants: BackwardConstants,
    *,
    forward_ns: FloatColumn,
) -> FloatColumn:
    """Predict the backward pass of calls whose forward takes *forward_ns*.

    Over head sizes, lengths and kernels the two keep one relation: published figures
    of three kernels on H100 agree with it to 5 % from length 1024 up, 10 % at 512.
    Source: Shah et al., FlashAttention-3, arXiv 2407.08608, figures 5 and 6.
    """
    # Gradients of keys and values are made for every query head and then added up.
    groups = shapes.heads / shapes.kv_heads
    moved_bytes = shapes.row_bytes + groups * shapes.key_value_bytes
    traffic_ns = moved_bytes * (NS_PER_S / machine.memory_bytes_per_s)
    return constants.backward_forwards * forward_ns + constants.backward_passes * traffic_ns


def _cache_ns(
    shapes: AttentionShapes, machine: MachineRates, constants: AttentionConstants
) -> FloatColumn:
    if constants.cache_ratio == 0.0:
        return np.zeros(len(shapes))
    rate = machine.memory_bytes_per_s * constants.cache_ratio
    return CACHE_PASSES * shapes.key_value_bytes * (NS_PER_S / rate)


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
            shapes.queries / (QUERY_TILE * shapes.query_tiles),
            shapes.head_dim / shapes.padded_head_dim,
        ],
        axis=1,
    )
