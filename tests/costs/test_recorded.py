"""Physics of kernels over grids of shapes, as recorded; constants are made up."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from embeddings.distribution import Zipf
from embeddings.table import EmbeddingTable
from perfmodel.base.dtypes import DType
from perfmodel.costs.attention_physics import (
    AttentionConstants,
    AttentionShapes,
    BackwardConstants,
    attention_features,
    predict_backward_ns,
    predict_forward_times,
)
from perfmodel.costs.embedding import LookupPricer
from perfmodel.costs.embedding_constants import EmbeddingConstants
from perfmodel.costs.embedding_terms import Term, TermsSetting, add_terms, tables_terms
from perfmodel.costs.gemm_features import gemm_features, machine_rates
from perfmodel.costs.gemm_physics import (
    GemmConstants,
    GemmShapes,
    predict_arithmetic_ns,
    predict_gemm_times,
)
from perfmodel.costs.memory import TrafficCurve, interpolate_row_factor, soft_maximum
from perfmodel.graph.ops import Pass
from perfmodel.stacks.capabilities import Residency
from tests import recorded
from topologies import load_device

DEVICES = ("a100_sxm_80gb", "h100_sxm", "v100_sxm2_16gb")
GEMM = GemmConstants(
    floor_ns=2_000.0, timing_ns=500.0, compute_ratio=0.8, loss_k=30.0, loss_intensity=0.02,
    tail_ratio=0.6, load_bytes_per_clock=60.0, cache_ratio=0.7, memory_ratio=0.85,
    sustained_loss=0.1, sustained_after_ns=400_000.0, split_ns=1_500.0, resident_ratio=0.6,
    resident_sharpness=3.0, activation_resident_ratio=0.5, tiny_k_ns=40.0, smallest_tile=32.0,
    cast_floor_ns=900.0, cast_ratio=0.5, cast_cached_ratio=0.3,
)  # fmt: skip
ATTENTION = AttentionConstants(
    floor_ns=4_000.0, compute_ratio=0.7, pair_clocks=0.01, query_tile=128.0, wide_query_tile=64.0,
    tile_clocks=300.0, tail_ratio=0.5, balance=0.4, traffic_bytes_per_clock=40.0,
    sustained_loss=0.1, sustained_after_ns=300_000.0, cache_ratio=0.6,
)  # fmt: skip

LOOKUPS = EmbeddingConstants(
    floor_ns=3_000.0, memory_ratio=0.7, cache_ratio=0.6, plain_cache_ratio=0.8, sort_ratio=0.3,
    updates_per_clock=900.0, row_updates_per_clock=50.0, block_ns=70.0, long_row_ns=400.0,
    tail_row_ns=90.0, relative_sigma=0.1,
)  # fmt: skip


def gemms() -> dict[str, Any]:
    """Every term of GEMMs, by device and by what caches hold before."""
    sizes = product((1.0, 12.0), (8.0, 100.0, 4096.0), (64.0, 3000.0), (16.0, 1024.0, 30_000.0))
    batch, m, n, k = np.array(list(sizes)).T
    shapes = GemmShapes(batch, m, n, k, np.full_like(m, 2.0))
    found = {}
    for name, residency in product(DEVICES, Residency):
        machine = machine_rates(load_device(name), DType.FP16)
        times = predict_gemm_times(shapes, machine, GEMM, residency)
        found[f"{name}, {residency.value}"] = [
            times.kernel_ns, times.memory_ns, times.weight_miss_ratio, times.timing_ns,
            predict_arithmetic_ns(shapes, machine, GEMM),
            gemm_features(shapes, machine, times).sum(axis=0),
        ]  # fmt: skip
    return found


def attention() -> dict[str, Any]:
    """Forward, backward and features of attention, narrow and wide heads."""
    sizes = list(product((1.0, 5.0), (1.0, 500.0, 4096.0), (96.0, 2048.0), (48.0, 96.0, 128.0)))
    batch, queries, keys, head_dim = np.array(sizes).T
    heads, kv_heads = np.full_like(batch, 24.0), np.full_like(batch, 8.0)
    is_causal = np.arange(len(batch)) % 3 == 0
    shapes = AttentionShapes(
        batch, queries, keys, heads, kv_heads, head_dim,
        np.full_like(batch, 2.0), is_causal, np.zeros(len(batch), dtype=bool),
    )  # fmt: skip
    found = {}
    for name in DEVICES:
        machine = machine_rates(load_device(name), DType.FP16)
        times = predict_forward_times(shapes, machine, ATTENTION)
        relation = BackwardConstants(backward_forwards=2.5, backward_passes=1.5)
        found[name] = [
            times.duration_ns, times.busy_ns, times.memory_ns,
            predict_backward_ns(shapes, machine, relation, forward_ns=times.duration_ns),
            attention_features(shapes, machine, times).sum(axis=0),
        ]  # fmt: skip
    return found


def traffic() -> dict[str, Any]:
    """Curves of traffic, factors by length of a row, and the soft maximum."""
    curve = TrafficCurve(
        1_000.0, 200.0, (0.0, 1e6, 3e7), (0.5, 0.4, 0.3), ((64.0, 2.0), (4096.0, 1.1))
    )
    sizes = np.array([0.0, 1e4, 1e6, 5e6, 1e9])
    lengths = np.array([0.0, 1.0, 64.0, 512.0, 4096.0, 1e6])
    return {
        "busy": curve.busy_ns(sizes, 2e12),
        "rows": interpolate_row_factor(lengths, curve.row_factors),
        "no rows": interpolate_row_factor(lengths, ()),
        "softly": soft_maximum(sizes, sizes[::-1].copy()),
    }


def lookups() -> dict[str, Any]:
    """Durations and bounds of lookups and updates, from terms that are made up."""
    values = np.arange(1, 4 * len(Term) + 1, dtype=np.int64).reshape(4, len(Term))
    terms = values**3 * np.array([[1], [900], [40_000], [3]])
    found = {}
    for name in DEVICES:
        pricer = LookupPricer(load_device(name), LOOKUPS)
        for kernel in ("fbgemm", "fbgemm_2022", "two_step", "table_batched"):
            for direction in Pass:
                times, bounds = pricer.times(terms, direction, kernel, DType.FP16)
                found[f"{name}, {kernel}, {direction.value}"] = [times, bounds]
    return found


def tables() -> dict[str, Any]:
    """What tables and their pieces move, by optimizer and share of the L2."""
    whole = [
        EmbeddingTable(
            f"t{rows}", rows=rows, width=width, pooling_factor=pooling, distribution=Zipf(exponent)
        )
        for rows, width, pooling, exponent in (
            (50, 16, 1.0, 0.0), (30_000, 64, 4.5, 0.9), (2_000_000, 128, 20.0, 1.3),
        )
    ]  # fmt: skip
    found = {}
    for optimizer, at_once in product(("sgd", "rowwise_adagrad", "adam"), (1, 6)):
        setting = TermsSetting(2_048, optimizer, 40 * 2**20, at_once, 1.5)
        terms = tables_terms(whole, setting)
        found[f"{optimizer}, {at_once}"] = [terms, add_terms(terms)]
    return found


GRIDS = (gemms, attention, traffic, lookups, tables)


def values() -> dict[str, Any]:
    """All grids."""
    return {f"{grid.__name__}: {name}": one for grid in GRIDS for name, one in grid().items()}


def test_physics_is_as_recorded():
    recorded.check(__file__, values())
