"""GEMM candidates: the fastest tile and split of every product, compiled.

The hot loop of the GEMM model: a few hundred candidates a product.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from perfmodel.costs.estimates import FloatColumn

K_STEP = 32.0
"""Elements of k that a tile consumes at a time."""

SUM_BYTES = 8.0
"""Bytes per element and part that adding up a split product moves: one fp32 written, one read."""

TINY_WORK = 2.0**21
"""Below so many multiply-adds libraries take one simple kernel, which never splits k. A vector
times a matrix has kernels of its own."""


@njit(cache=True)
def fastest_candidate_ns(
    products: FloatColumn, tiles: FloatColumn, splits: FloatColumn, machine: FloatColumn
) -> FloatColumn:
    """The shortest time of each product over *tiles* and *splits*.

    *products* are rows batch, m, n, k, bytes an element, memory time; *tiles*
    are columns rows, columns, multiply and load time per element of k;
    *machine* is multiprocessors, tail ratio, loss of k, time of a cache byte,
    loss under load and when it sets in, cost of a split, and the time of one
    element of k in the kernel for tiny products.
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
