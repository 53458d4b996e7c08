"""Timing: how long a movement takes with fitted constants.

For a fixed algorithm and protocol every term grows with the size and none jumps, so time is
continuous and never falls when bytes grow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collectives.collective import CollectiveAlgorithm, Protocol
from collectives.constants import FabricConstants, HostConstants
from collectives.movement import FloatArray, Movement
from collectives.wiring import Wiring
from perfmodel.base.units import NS_PER_S

CHANNELS_BETWEEN_HOSTS = 16
TREE_LL128_HOP = 1.25 / 0.6
"""A hop of a tree in LL128 over one in LL, in NCCL's planning table."""
PAIR_MESSAGES = 4.0
"""Messages of NCCL's exchanges for one of its rings, 128 KiB for 512: ranks that share a NIC hold
each other up at every one."""
# What all channels of an NVLS tree hold before the first sum comes back.
_NVLS_CHUNK = 4.0 * 2**20


Choice = tuple[CollectiveAlgorithm, Protocol]


def predict_duration_ns(
    movement: Movement,
    choice: Choice,
    *,
    wiring: Wiring,
    host: HostConstants,
    fabric: FabricConstants | None,
) -> FloatArray:
    """Predict how long *movement* takes by *choice*; *fabric* is needed where it leaves the host.

    Leaves out: other traffic on the same wires (`pricing.share_links`), and jitter of hosts.
    Source: shape from the ring, tree and pairwise step counts; constants fitted.
    """
    algorithm, protocol = choice
    if algorithm is CollectiveAlgorithm.PAIRWISE:
        return _pairwise_ns(movement, protocol, wiring, host, fabric)
    launch: Any = 0.0
    carrying = _inside_ns(movement, algorithm, protocol, wiring, host)
    if fabric is not None:
        launch = _net_launch_ns(movement, algorithm, protocol, wiring, fabric)
        sending = _sending_ns(movement, algorithm, protocol, wiring, fabric)
        # Both carry the same pieces in turn: where neither is much faster, they wait.
        carrying = soft_sum(carrying, sending, 6.0)
    launch = launch + movement.roots * host.root_launch_ns
    if protocol is Protocol.SIMPLE or algorithm is CollectiveAlgorithm.NVLS:
        duration = _latency_ns(movement, algorithm, host) + carrying
    else:
        duration = host.launch_ns + host.spread_ns * _ramp(movement.chunk_bytes / host.spread_bytes)
        hop_ns = host.ll_hop_ns if protocol is Protocol.LL else host.ll128_hop_ns
        if algorithm is CollectiveAlgorithm.RING and fabric is not None:
            hop_ns = np.maximum(hop_ns, fabric.proxy_ns * proxy_steps(wiring, protocol))
        if choice == (CollectiveAlgorithm.TREE, Protocol.LL128):
            # Rings in LL128 inside a host are rare in logs: their constant says little of a hop.
            hop_ns = TREE_LL128_HOP * host.ll_hop_ns
        duration = duration + soft_sum(movement.host_hops * hop_ns, carrying, host.ll_overlap)
    return np.asarray(launch + duration, dtype=np.float64)


def _latency_ns(movement: Movement, algorithm: CollectiveAlgorithm, host: HostConstants) -> Any:
    if algorithm in (CollectiveAlgorithm.NVLS, CollectiveAlgorithm.NVLS_TREE):
        return host.launch_ns + host.nvls_launch_ns
    hops = movement.host_hops * host.simple_hop_ns
    return host.launch_ns + host.simple_launch_ns + hops


def _inside_ns(
    movement: Movement,
    algorithm: CollectiveAlgorithm,
    protocol: Protocol,
    wiring: Wiring,
    host: HostConstants,
) -> Any:
    crowd = np.maximum(wiring.ranks_per_host / 2.0, 1.0) ** host.crowding
    ns_per_byte = NS_PER_S * crowd / wiring.ring_bandwidth_bytes_per_s
    if algorithm in (CollectiveAlgorithm.NVLS, CollectiveAlgorithm.NVLS_TREE):
        sending = movement.gpu_bytes * ns_per_byte / host.nvls_ratio
        return sending + np.sqrt(host.nvls_fill_ns * sending)
    if protocol is not Protocol.SIMPLE:
        ratio = host.ll_ratio if protocol is Protocol.LL else host.ll128_ratio
        return movement.gpu_bytes * ns_per_byte / ratio
    moved = movement.gpu_bytes + host.copy_ratio * movement.local_bytes
    sending = moved * ns_per_byte / host.simple_ratio
    return sending + np.sqrt(host.fill_ns * sending)


def _net_launch_ns(
    movement: Movement,
    algorithm: CollectiveAlgorithm,
    protocol: Protocol,
    wiring: Wiring,
    fabric: FabricConstants,
) -> Any:
    """What leaving the host adds before bytes flow: its launch, its hops, and first chunks."""
    hop: Any = (
        wiring.net_latency_ns
        + {
            Protocol.LL: fabric.ll_hop_ns,
            Protocol.LL128: fabric.ll128_hop_ns,
            Protocol.SIMPLE: fabric.simple_hop_ns,
        }[protocol]
    )
    hop = hop + fabric.spread_ns * _ramp((movement.message_bytes / fabric.spread_bytes) ** 2)
    launch = fabric.launch_ns + wiring.call_latency_ns
    # A ring streams: only its first chunk waits. A tree waits at every level.
    levels: Any = 1.0 if algorithm is CollectiveAlgorithm.RING else movement.net_hops
    if algorithm is CollectiveAlgorithm.NVLS_TREE:
        launch = launch + fabric.nvls_tree_fill_ns * _ramp(movement.message_bytes / _NVLS_CHUNK)
    if protocol is Protocol.SIMPLE:
        fill = fabric.fill_ns * _ramp(movement.message_bytes / fabric.fill_bytes)
        launch = launch + levels * fill
    if protocol is Protocol.LL128:
        fill = fabric.ll128_fill_ns * _ramp(movement.message_bytes / fabric.ll128_fill_bytes)
        launch = launch + levels * fill
    return launch + movement.net_hops * hop


def _sending_ns(
    movement: Movement,
    algorithm: CollectiveAlgorithm,
    protocol: Protocol,
    wiring: Wiring,
    fabric: FabricConstants,
) -> Any:
    """How long the NICs of the busiest host need for what they send."""
    ratio = fabric.ll128_ratio if protocol is Protocol.LL128 else fabric.simple_ratio
    wire_bytes = movement.nic_bytes * (2.0 if protocol is Protocol.LL else 1.0)
    sending = wire_bytes * _nic_ns_per_byte(wiring, ratio, fabric.nic_crowding)
    # NCCL takes every path it finds for two channels, and racks have more NICs than paths.
    paths = CHANNELS_BETWEEN_HOSTS / 2
    sending = sending * max(1.0, wiring.nic_count / paths)
    if protocol is Protocol.LL:
        # A rank's proxy looks at the flag of each eight bytes before it sends them.
        proxies = min(wiring.ranks_per_host, paths)
        reading = movement.nic_bytes * NS_PER_S / (proxies * fabric.ll_bytes_per_s)
        sending = np.maximum(sending, reading)
    if algorithm is CollectiveAlgorithm.NVLS_TREE:
        sending = sending * (1.0 + wiring.doubling_loss) ** math.log2(wiring.host_count / 2)
    if algorithm is CollectiveAlgorithm.RING:
        steps = movement.host_hops + movement.net_hops
        share = movement.message_bytes / (wiring.nic_count * fabric.step_bytes)
        # A message in Simple is flushed after it has arrived: its step takes twice as long.
        step_ns = fabric.step_ns / (1.0 if protocol is Protocol.SIMPLE else 2.0)
        sending = soft_sum(sending, steps * step_ns * _ramp(share**2) ** 0.5, 4.0)
    return sending


def _pairwise_ns(
    movement: Movement,
    protocol: Protocol,
    wiring: Wiring,
    host: HostConstants,
    fabric: FabricConstants | None,
) -> FloatArray:
    """Every pair at once: set-up per peer, then the busier of GPU links and NICs."""
    crowd = np.maximum(wiring.ranks_per_host / 2.0, 1.0) ** host.pair_crowding
    moved = movement.gpu_bytes + host.copy_ratio * movement.local_bytes
    inside = moved * NS_PER_S * crowd / (wiring.pair_bandwidth_bytes_per_s * host.pair_ratio)
    plateau = host.plateau_ns * _ramp((movement.chunk_bytes / host.plateau_bytes) ** 2)
    duration = host.launch_ns + host.pair_launch_ns
    duration = duration + host.pair_peer_ns * np.log2(1.0 + movement.peers)
    duration = duration + np.sqrt(host.pair_fill_ns * inside)
    moving = inside
    if fabric is not None:
        crowding = PAIR_MESSAGES * fabric.nic_crowding
        byte_ns = _nic_ns_per_byte(wiring, fabric.pair_ratio, crowding)
        spine = _ramp((movement.chunk_bytes / fabric.pair_burst_bytes) ** 4)
        slow = 1.0 + (wiring.pair_oversubscription - 1.0) * spine
        outside = movement.nic_bytes * slow * byte_ns
        is_ll = protocol is Protocol.LL
        peer = fabric.pair_ll_peer_ns if is_ll else fabric.pair_peer_ns
        start = fabric.pair_launch_ns + wiring.net_latency_ns + wiring.call_latency_ns
        duration = duration + start + peer * movement.net_peers
        duration = duration + np.sqrt(fabric.pair_fill_ns * outside)
        moving = np.maximum(inside, outside)
    return np.asarray(duration + soft_sum(plateau, moving, 4.0), dtype=np.float64)


def _nic_ns_per_byte(wiring: Wiring, ratio: float, crowding: float) -> float:
    """What a byte takes on the NICs of a host that reach *ratio* of their datasheet.

    Every further rank that shares a NIC holds the others up by *crowding* of their time.
    """
    crowd = 1.0 + crowding * (wiring.nic_sharing - 1)
    return NS_PER_S * crowd / (wiring.nic_bandwidth_bytes_per_s * ratio)


def proxy_steps(wiring: Wiring, protocol: Protocol) -> int:
    """How much proxies do at a step of a ring over hosts, inside hosts, too, in NCCL's plan."""
    return (2 if wiring.has_amd_cpu else 1) * (3 if protocol is Protocol.SIMPLE else 1)


def _ramp(ratio: Any) -> Any:
    return ratio / (1.0 + ratio)


def soft_sum(first: Any, second: Any, power: float) -> Any:
    """Between the sum (power 1) and the larger (power without bound) of two times."""
    # Divided first: powers of long times are beyond what a number holds.
    larger = np.maximum(np.maximum(first, second), 1e-9)
    return larger * ((first / larger) ** power + (second / larger) ** power) ** (1.0 / power)
