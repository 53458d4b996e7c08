"""Attention physics: query tiles assigned to multiprocessors, each passing over its keys.

Multiplying and exponentiating alternate on a tile, so their times add. A kernel ends when the mean
load and the longest tile are done; causal tiles differ in length, hence a soft maximum of the two.
Serving benchmarks also write keys and values to a cache, which training does not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import NS_PER_S
from perfmodel.costs.estimates import FloatColumn
from perfmodel.costs.gemm_physics import MachineRates

KEY_TILE = 64
HEAD_TILE = 32
"""Kernels are compiled for head sizes in steps of this and pad sizes in between."""
NARROW_HEAD = 96
"""Up to this head size a kernel uses longer query tiles than beyond."""
FORWARD_PRODUCTS = 4.0
"""Operations per query-key pair and element of the head: two GEMMs, multiply and add."""
CACHE_PASSES = 2.0
"""Writing the cache reads the new keys and values once and writes them once."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Fitted constants of one device and kernel; ratios are of the datasheet.

    *pair_clocks* is what a multiprocessor spends on one query-key pair besides
    multiplying: the exponential, the maximum, the scaling; *tile_clocks* what a tile of
    *query_tile* queries (*wide_query_tile* for wide heads) costs regardless of its
    keys. *tail_ratio* is how far the last wave of tiles counts as a whole one.
    *traffic_bytes_per_clock* is how fast a multiprocessor takes in queries and puts out
    results, before and after the multiplying: its own rate, since H100 and H200, which
    differ only in memory, take the same time. Keys and values arrive while it
    multiplies. *cache_ratio* is the share of memory bandwidth that the cache is written
    at, 0 where none was written.
    """

    floor_ns: float
    compute_ratio: float
    pair_clocks: float
    query_tile: float
    wide_query_tile: float
    tile_clocks: float
    tail_ratio: float
    balance: float
    traffic_bytes_per_clock: float
    sustained_loss: float
    sustained_after_ns: float
    cache_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class BackwardConstants:
    """Backward as so many forwards, and so many passes over what forward must move.

    Five GEMMs instead of two make it 2.5 forwards and a bit; the passes are the
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
    def padded_head_dim(self) -> FloatColumn:
        """The head size a kernel works with."""
        return HEAD_TILE * np.ceil(self.head_dim / HEAD_TILE)

    def tile_count(self, query_tile: float) -> FloatColumn:
        """Tiles of *query_tile* queries, all heads and samples."""
        return self.batch * self.heads * np.ceil(self.queries / query_tile)

    def key_tiles(self, query_tile: float) -> FloatColumn:
        """Key tiles that one tile of *query_tile* queries passes over, on average."""
        tiles = np.ceil(self.keys / KEY_TILE)
        query_tiles = np.ceil(self.queries / query_tile)
        earlier = np.maximum(tiles - np.ceil(self.queries / KEY_TILE), 0.0)
        # The last query sees all keys, each earlier tile fewer by its number of queries.
        fewer = query_tile / KEY_TILE * (query_tiles - 1) / 2
        visible = np.minimum(earlier + fewer + (tiles - earlier) / query_tiles, tiles)
        return np.where(self.is_causal, visible, tiles)

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
    busy_ns: FloatColumn
    memory_ns: FloatColumn


def predict_forward_times(
    shapes: AttentionShapes, machine: MachineRates, constants: AttentionConstants
) -> AttentionTimes:
    """Predict the forward pass of every call of *shapes* by a fused kernel.

    Every part grows with batch, length, heads and head size or stays, hence so does the whole.

    Leaves out: dropout, biases, and splitting of keys over multiprocessors for
    single queries.
    """
    narrow = _busy(shapes, np.minimum(shapes.padded_head_dim, NARROW_HEAD), machine, constants)
    busy_ns = narrow
    if np.any(shapes.head_dim > NARROW_HEAD):
        wide_tile = replace(constants, query_tile=constants.wide_query_tile)
        wide = _busy(shapes, shapes.padded_head_dim, machine, wide_tile)
        # Shorter tiles fill a last wave better, but a wider head is never less work.
        busy_ns = np.where(shapes.head_dim > NARROW_HEAD, np.maximum(narrow, wide), narrow)
    rate = machine.sm_count * machine.clock_hz * constants.traffic_bytes_per_clock
    memory_ns = shapes.row_bytes * (NS_PER_S / rate)
    if constants.cache_ratio != 0.0:
        cache_rate = machine.memory_bytes_per_s * constants.cache_ratio
        memory_ns = memory_ns + CACHE_PASSES * shapes.key_value_bytes * (NS_PER_S / cache_rate)
    total_ns = busy_ns + memory_ns
    total_ns = total_ns * (
        1.0 + constants.sustained_loss * total_ns / (total_ns + constants.sustained_after_ns)
    )
    return AttentionTimes(
        duration_ns=constants.floor_ns + total_ns,
        busy_ns=busy_ns,
        memory_ns=memory_ns,
    )


def _busy(
    shapes: AttentionShapes,
    head_dim: FloatColumn,
    machine: MachineRates,
    constants: AttentionConstants,
) -> FloatColumn:
    """How long multiprocessors multiply and exponentiate, with heads of *head_dim*."""
    tile = constants.query_tile
    clock_ns = NS_PER_S / machine.clock_hz
    rate_per_sm = machine.peak_flops * constants.compute_ratio / machine.sm_count
    pair_ns = FORWARD_PRODUCTS * head_dim * (NS_PER_S / rate_per_sm)
    block_ns = (pair_ns + constants.pair_clocks * clock_ns) * tile * KEY_TILE
    tile_ns = constants.tile_clocks * clock_ns
    waves = shapes.tile_count(tile) / machine.sm_count
    waves = waves + constants.tail_ratio * (np.ceil(waves) - waves)
    mean_ns = waves * (shapes.key_tiles(tile) * block_ns + tile_ns)
    longest_ns = np.ceil(shapes.keys / KEY_TILE) * block_ns + tile_ns
    larger = np.maximum(mean_ns, longest_ns)
    smaller = np.minimum(mean_ns, longest_ns)
    power = constants.balance
    return larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power)


def predict_backward_ns(
    shapes: AttentionShapes,
    machine: MachineRates,
    constants: BackwardConstants,
    *,
    forward_ns: FloatColumn,
) -> FloatColumn:
    """Predict the backward pass of calls whose forward takes *forward_ns*.

    One ratio holds for all lengths and kernels: from published forward rates of three kernels
    on H100 with heads of 128 it gives the published backward rates to 6 %. With heads of
    64 it is 4 to 22 % too long: there the exponential, which dominates forward, weighs less
    in backward.
    Source: Shah et al., FlashAttention-3, arXiv 2407.08608, figures 5 and 6.
    """
    # Gradients of keys and values are made for every query head and then added up.
    expanded_bytes = shapes.key_value_bytes * (shapes.heads / shapes.kv_heads)
    moved_bytes = shapes.row_bytes + expanded_bytes
    traffic_ns = moved_bytes * (NS_PER_S / machine.memory_bytes_per_s)
    return constants.backward_forwards * forward_ns + constants.backward_passes * traffic_ns


def attention_features(
    shapes: AttentionShapes, machine: MachineRates, times: AttentionTimes
) -> NDArray[np.float64]:
    """Calls x features: the inputs of the learned correction.

    The first is the predicted time. Every feature grows with batch, length, heads and head size or
    stays, so a correction that never falls with any of them keeps the order of work.
    """
    columns = [
        times.duration_ns,
        times.busy_ns,
        shapes.row_bytes,
        shapes.key_value_bytes,
        shapes.queries,
        shapes.batch,
        shapes.heads,
        shapes.kv_heads,
        shapes.head_dim,
        *(
            np.ceil(shapes.tile_count(tile) / machine.sm_count) * np.ceil(shapes.keys / KEY_TILE)
            for tile in (64, 128, 192)
        ),
    ]
    logarithms: NDArray[np.float64] = np.log(np.stack(columns, axis=1))
    return logarithms
