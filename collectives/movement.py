"""Movement: how many steps an algorithm takes and how many bytes the busiest wires carry.

Counted for the busiest GPU and the busiest host. Sizes may be arrays: a whole
sweep is counted at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.collective import CollectiveAlgorithm, CollectiveKind
from collectives.wiring import Wiring

FloatArray = npt.NDArray[np.float64]
KINDS_OF_TWO_PASSES = (CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """What the busiest rank and host do.

    *host_hops* and *net_hops* are the steps in sequence inside a host and between hosts;
    *gpu_bytes* what the busiest GPU sends inside its host, *local_bytes* what it copies in its own
    memory besides, *nic_bytes* what the busiest host sends through all its NICs; *chunk_bytes* is
    the piece handed over in one step, *message_bytes* that between hosts; *roots* is 1 where one
    rank starts or ends it; *peers* and *net_peers* count the partners of a pairwise exchange.
    """

    gpu_bytes: Any
    nic_bytes: Any
    chunk_bytes: Any
    message_bytes: Any
    local_bytes: Any = 0.0
    host_hops: Any = 0.0
    net_hops: Any = 0.0
    peers: Any = 0.0
    net_peers: Any = 0.0
    roots: int = 0


def _ring(kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """A reduce-scatter, an all-gather or both: n - 1 steps of one n-th each."""
    n, hosts = wiring.rank_count, wiring.host_count
    passes = 2 if kind in KINDS_OF_TWO_PASSES else 1
    steps = passes * (n - 1)
    net = 0 if hosts == 1 else min(steps, 2 * hosts if passes == 2 else hosts - 1)
    share = passes * (n - 1) / n
    if wiring.is_chain and passes == 2:
        share = 1.0  # up and down a chain: every link carries the whole buffer once each way
    return Movement(
        host_hops=steps - net,
        net_hops=net,
        gpu_bytes=sizes * share,
        local_bytes=sizes / n,
        nic_bytes=sizes * share * (hosts > 1),
        chunk_bytes=sizes / n,
        message_bytes=sizes / n,
    )


def _chain(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """Broadcast and reduce: the whole buffer passes every rank of a ring once."""
    n, hosts = wiring.rank_count, wiring.host_count
    return Movement(
        host_hops=n - hosts,
        net_hops=hosts - 1,
        gpu_bytes=sizes,
        nic_bytes=sizes * float(hosts > 1),
        chunk_bytes=sizes / n,
        message_bytes=sizes / n,
        roots=1,
    )


def _tree(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """Double binary tree over hosts, chain inside: each half of the buffer goes up and down.

    Two hosts exchange the buffer once each way. From three on a host that is inner in one
    tree and leaf in the other sends twice the buffer.
    """
    hosts, inside = wiring.host_count, wiring.ranks_per_host
    nic_share = 0.0 if hosts == 1 else 1.0 if hosts == 2 else 2.0
    return Movement(
        host_hops=2 * (inside - 1),
        net_hops=2 * math.log2(hosts),
        gpu_bytes=sizes * (2.0 if inside > 1 else 0.0),
        local_bytes=sizes / wiring.rank_count,
        nic_bytes=sizes * nic_share,
        chunk_bytes=sizes / wiring.rank_count,
        message_bytes=sizes,
    )


def _nvls(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """The switch adds: every GPU sends its buffer once and receives the sum.

    Between hosts the network's switches add: a host sends its sum once, in slices by rail.
    """
    is_wide = wiring.host_count > 1
    return Movement(
        net_hops=2.0 * is_wide,
        gpu_bytes=sizes,
        nic_bytes=sizes * float(is_wide),
        chunk_bytes=sizes / wiring.rank_count,
        message_bytes=sizes / wiring.ranks_per_host if is_wide else sizes / wiring.rank_count,
    )


def _nvls_tree(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """The switch adds inside a host, a double tree between hosts, each rail a slice."""
    hosts = wiring.host_count
    return Movement(
        net_hops=2 * math.log2(hosts),
        gpu_bytes=sizes,
        nic_bytes=sizes * (1.0 if hosts == 2 else 2.0),
        chunk_bytes=sizes / wiring.rank_count,
        message_bytes=sizes,
    )


def _collnet(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """A chain inside every host to one GPU and back; the network's switches add the hosts' sums."""
    inside = wiring.ranks_per_host
    return Movement(
        host_hops=2 * (inside - 1),
        net_hops=2.0,
        gpu_bytes=sizes * (2.0 if inside > 1 else 0.0),
        local_bytes=sizes / wiring.rank_count,
        nic_bytes=sizes,
        chunk_bytes=sizes / wiring.rank_count,
        message_bytes=sizes,
    )


def _pat(_kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """Parallel aggregated trees: the bytes of a ring in a logarithm of steps."""
    n = wiring.rank_count
    return Movement(
        net_hops=math.log2(n),
        gpu_bytes=sizes * 0.0,
        local_bytes=sizes / n,
        nic_bytes=sizes * (n - 1) / n,
        chunk_bytes=sizes / n,
        message_bytes=sizes / n,
    )


def _pairwise(kind: CollectiveKind, sizes: FloatArray, wiring: Wiring) -> Movement:
    """Every rank sends each other rank its slice, directly."""
    n, inside = wiring.rank_count, wiring.ranks_per_host
    outside = n - inside
    if kind is CollectiveKind.SEND_RECV:
        return Movement(
            gpu_bytes=sizes * float(outside == 0),
            nic_bytes=sizes * float(outside),
            chunk_bytes=sizes,
            message_bytes=sizes,
            peers=1 - outside,
            net_peers=outside,
        )
    return Movement(
        gpu_bytes=sizes * (inside - 1) / n,
        local_bytes=sizes / n,
        nic_bytes=sizes * (outside / n) * inside * wiring.nic_unevenness,
        chunk_bytes=sizes / n,
        message_bytes=sizes / n,
        peers=inside - 1,
        net_peers=outside,
    )


ALGORITHMS: Mapping[
    CollectiveAlgorithm, Callable[[CollectiveKind, FloatArray, Wiring], Movement]
] = {
    CollectiveAlgorithm.RING: _ring,
    CollectiveAlgorithm.TREE: _tree,
    CollectiveAlgorithm.NVLS: _nvls,
    CollectiveAlgorithm.NVLS_TREE: _nvls_tree,
    CollectiveAlgorithm.COLLNET: _collnet,
    CollectiveAlgorithm.PAT: _pat,
    CollectiveAlgorithm.PAIRWISE: _pairwise,
}
UNPLANNED: Mapping[CollectiveAlgorithm, tuple[CollectiveKind, ...]] = {
    CollectiveAlgorithm.PAIRWISE: (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV),
}
"""Algorithms that NCCL's tuner has no estimate for, and what they carry out when forced."""

_CHAINED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)


def build_movement(
    kind: CollectiveKind, algorithm: CollectiveAlgorithm, sizes: FloatArray, wiring: Wiring
) -> Movement:
    """Count what *algorithm* moves for *kind* at each of *sizes* bytes."""
    if algorithm is CollectiveAlgorithm.RING and kind in _CHAINED:
        return _chain(kind, sizes, wiring)
    return ALGORITHMS[algorithm](kind, sizes, wiring)
