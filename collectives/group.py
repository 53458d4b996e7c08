"""Groups: which hosts and GPUs a group of ranks sits on, and what wiring that gives.

Only the pattern counts: how many hosts hold which set of GPUs, and over how many
blocks of leaf switches they spread. Equal patterns are worked out once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.wiring import ByIdentity, HostLinkClass, Wiring, chain_bandwidth, pack_rings
from perfmodel.base.errors import InputError
from topologies import Cluster, LinkKind, Topology

Ranks = Sequence[int] | npt.NDArray[np.int64]
_BITS = 48


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What distinguishes groups: *patterns* are (GPUs of a host, its machine, how many of these).

    Hosts with different faults are different machines.
    """

    patterns: tuple[tuple[tuple[int, ...], int, int], ...]
    leaf_blocks: int

    @property
    def host_count(self) -> int:
        """Over how many hosts it spreads."""
        return sum(count for *_, count in self.patterns)

    @property
    def rank_count(self) -> int:
        """How many ranks it has."""
        return sum(len(gpus) * count for gpus, _, count in self.patterns)


def group_shape(ranks: Ranks, cluster: Cluster) -> GroupShape:
    """The pattern of *ranks* on *cluster*: equal for groups that are translations of each other."""
    members = _checked_ranks(ranks, cluster)
    host, gpu = cluster.seats_of(members)
    order = np.argsort(host, kind="stable")
    hosts, starts = np.unique(host[order], return_index=True)
    words = [cluster.machines_of(hosts)]
    for low in range(0, int(gpu.max()) + 1, _BITS):
        inside = (gpu >= low) & (gpu < low + _BITS)
        bits = np.where(inside, np.int64(1) << (gpu - low) % _BITS, 0)
        words.append(np.add.reduceat(bits[order], starts))
    masks, counts = np.unique(np.stack(words, axis=1), axis=0, return_counts=True)
    patterns = tuple(
        (_gpus_in(tuple(mask)), machine, count)
        for (machine, *mask), count in zip(masks.tolist(), counts.tolist(), strict=True)
    )
    fabric = cluster.topology.fabric
    blocks = 1 if fabric is None else len(np.unique(hosts // fabric.hosts_per_leaf))
    return GroupShape(patterns, blocks)


@lru_cache(maxsize=65536)
def _gpus_in(mask: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(
        number * _BITS + bit
        for number, word in enumerate(mask)
        for bit in range(_BITS)
        if word >> bit & 1
    )


def _checked_ranks(ranks: Ranks, cluster: Cluster) -> npt.NDArray[np.int64]:
    members = np.asarray(ranks, dtype=np.int64)
    if members.ndim != 1 or not members.size:
        raise InputError("group: must hold at least one rank, got none.")
    low, high = int(members.min()), int(members.max())
    if low < 0 or high >= cluster.rank_count:
        wrong = low if low < 0 else high
        raise InputError(
            f"group: ranks must be from 0 to {cluster.rank_count - 1} on "
            f"{cluster.topology.name}, got rank {wrong}. Use more hosts, or other ranks."
        )
    ordered = np.sort(members)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise InputError(f"group: every rank may occur once, rank {int(twice[0])} occurs twice.")
    return members


def _wiring_of_shape(shape: GroupShape, machine: ByIdentity[Topology]) -> Wiring:
    topology = machine.value
    machines = topology.machines
    hosts = [
        # Without faults all hosts are one machine, whatever the shape says.
        _host_wiring(gpus, ByIdentity(machines[min(number, len(machines) - 1)]))
        for gpus, number, _ in shape.patterns
    ]
    inside = max(hosts, key=_slowness)
    net = min(hosts, key=lambda one: one.nic_bandwidth_bytes_per_s / one.nic_unevenness)
    is_wide = shape.host_count > 1
    if is_wide and topology.fabric is None:
        raise InputError(
            f"group on {topology.name}: spreads over {shape.host_count} hosts, which no fabric "
            "joins. Keep it on one host, or add `fabric:` to the topology."
        )
    return replace(
        inside,
        rank_count=shape.rank_count,
        host_count=shape.host_count,
        nic_bandwidth_bytes_per_s=net.nic_bandwidth_bytes_per_s if is_wide else 0.0,
        nic_sharing=net.nic_sharing,
        nic_count=net.nic_count if is_wide else 0,
        nic_unevenness=net.nic_unevenness if is_wide else 1.0,
        pair_oversubscription=_pair_oversubscription(shape, topology),
        net_latency_ns=_net_latency_ns(shape, topology),
        call_latency_ns=_call_latency_ns(shape, topology) if is_wide else 0.0,
        nic_link=net.nic_link,
        doubling_loss=topology.fabric.doubling_loss if topology.fabric else 0.0,
        can_reduce_in_network=is_wide and topology.fabric is not None and topology.fabric.reduces,
    )


def _slowness(host: Wiring) -> tuple[bool, int, float]:
    """By what the slowest of a group's hosts is found: PCIe, then ranks, then bandwidth."""
    is_pcie = not (host.link_class.is_nvlink or host.link_class is HostLinkClass.NONE)
    return is_pcie, host.rank_count, -host.ring_bandwidth_bytes_per_s


@lru_cache(maxsize=4096)
def _host_wiring(gpus: tuple[int, ...], machine: ByIdentity[Topology]) -> Wiring:
    """What *gpus* of one host see: the wires between them, and the NICs that they send with."""
    topology = machine.value
    alone = Wiring(
        topology_name=topology.name,
        measured=topology.measured or topology.name,
        has_amd_cpu="AMD" in (topology.host_cpu or ""),
        architecture=topology.device.generation,
        is_unseen=topology.device.is_unseen,
        rank_count=len(gpus),
        host_count=1,
        ranks_per_host=len(gpus),
        link_class=HostLinkClass.NONE,
        ring_bandwidth_bytes_per_s=math.inf,
        pair_bandwidth_bytes_per_s=math.inf,
    )
    return replace(alone, **_inside(gpus, topology), **_outside(gpus, topology))


def _inside(gpus: tuple[int, ...], topology: Topology) -> dict[str, Any]:
    if len(gpus) == 1:
        return {}
    bandwidth = min(topology.nvlink_bandwidth_bytes_per_s(gpu) for gpu in gpus)
    # NCCL takes the switch only if all GPUs of the group have NVLink to it.
    if topology.has_nvswitch and bandwidth:
        link = topology.gpu_route(gpus[0], gpus[1]).links[0].name
        wires = _wires(HostLinkClass.NVSWITCH, bandwidth, bandwidth, link)
        return {**wires, "can_reduce_in_switch": topology.has_nvls}
    capacities = _direct_nvlinks(gpus, topology)
    has_nvlinks = all(any(topology.nvlink_lanes(a, b) for b in gpus if b != a) for a in gpus)
    pair, link = _pair_bandwidth(gpus, topology)
    if bandwidth := pack_rings(capacities):
        return _wires(HostLinkClass.NVLINK_MESH, bandwidth, pair, link)
    if has_nvlinks and chain_bandwidth(capacities):
        wires = _wires(HostLinkClass.NVLINK_MESH, lane_bandwidth(topology), pair, link)
        return {**wires, "is_chain": True}
    bandwidth, link = _busiest(list(zip(gpus, gpus[1:] + gpus[:1], strict=True)), topology)
    kind = HostLinkClass.PCIE_PEER if topology.peer_to_peer else HostLinkClass.PCIE_HOST
    is_assumed = topology.peer_to_peer is None
    return {**_wires(kind, bandwidth, pair, link), "is_peer_assumed": is_assumed}


def _wires(kind: HostLinkClass, ring: float, pair: float, link: str) -> dict[str, Any]:
    return {
        "link_class": kind,
        "ring_bandwidth_bytes_per_s": ring,
        "pair_bandwidth_bytes_per_s": pair,
        "host_link": link,
    }


def lane_bandwidth(topology: Topology) -> float:
    """The bandwidth of the thinnest NVLink of a host."""
    return min(
        link.bandwidth_bytes_per_s / link.lanes
        for link in topology.links
        if link.kind is LinkKind.NVLINK
    )


def _direct_nvlinks(gpus: tuple[int, ...], topology: Topology) -> tuple[tuple[float, ...], ...]:
    direct = {
        (link.source, link.target): link.bandwidth_bytes_per_s
        for link in topology.links
        if link.kind is LinkKind.NVLINK
    }
    return tuple(
        tuple(direct.get((f"gpu:{a}", f"gpu:{b}"), 0.0) if a != b else 0.0 for b in gpus)
        for a in gpus
    )


def _pair_bandwidth(gpus: tuple[int, ...], topology: Topology) -> tuple[float, str]:
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    share, link = _busiest(pairs, topology)
    return share * (len(gpus) - 1), link


def _busiest(pairs: list[tuple[int, int]], topology: Topology) -> tuple[float, str]:
    """What each of *pairs* gets when all send at once, and the link that decides it."""
    flows = Counter(link for a, b in pairs for link in topology.gpu_route(a, b).links)
    link = min(flows, key=lambda link: link.bandwidth_bytes_per_s / flows[link])
    return link.bandwidth_bytes_per_s / flows[link], link.name


def _outside(gpus: tuple[int, ...], topology: Topology) -> dict[str, Any]:
    if topology.fabric is None:
        return {}
    port = topology.fabric.nic_bandwidth_bytes_per_s
    taken = Counter(topology.nic_of_gpu[gpu] for gpu in gpus)
    nearest = {topology.nic_of_gpu[gpu]: gpu for gpu in reversed(gpus)}
    bandwidths = {
        nic: min(port, topology.nic_route(gpu).bandwidth_bytes_per_s)
        for nic, gpu in nearest.items()
    }
    busiest = max(sorted(taken), key=lambda nic: taken[nic])
    loads = [taken[nic] / bandwidths[nic] for nic in taken]
    is_even = len(set(loads)) == 1
    return {
        "nic_bandwidth_bytes_per_s": sum(bandwidths.values()),
        "nic_unevenness": 1.0 if is_even else max(loads) * sum(bandwidths.values()) / len(gpus),
        "nic_count": len(taken),
        "nic_sharing": taken[busiest],
        "nic_link": f"nic:{busiest} -> leaf",
    }


def _call_latency_ns(shape: GroupShape, topology: Topology) -> float:
    """What waiting for the last of the hosts takes: it grows with every doubling of them."""
    if topology.fabric is None:
        return 0.0
    return topology.fabric.call_latency_ns * math.log2(shape.host_count)


def _net_latency_ns(shape: GroupShape, topology: Topology) -> float:
    """From NIC to NIC: both ports, and the spine where the group crosses it."""
    fabric = topology.fabric
    if fabric is None or shape.host_count == 1:
        return 0.0
    spine = 2 * fabric.spine_latency_ns if shape.leaf_blocks > 1 else 0.0
    return 2 * fabric.nic_latency_ns + spine


def _pair_oversubscription(shape: GroupShape, topology: Topology) -> float:
    """How much slower the spine makes traffic between all pairs of hosts."""
    if topology.fabric is None or shape.leaf_blocks == 1:
        return 1.0
    crossing = 1.0 - 1.0 / shape.leaf_blocks
    return max(1.0, topology.fabric.oversubscription * crossing)


def wiring_of(ranks: Ranks, cluster: Cluster) -> Wiring:
    """What the group of *ranks* sees on *cluster*; equal shapes are worked out once."""
    return _find_wiring(group_shape(ranks, cluster), ByIdentity(cluster.topology))


@lru_cache(maxsize=4096)
def _find_wiring(shape: GroupShape, machine: ByIdentity[Topology]) -> Wiring:
    """The wiring of *shape*, and that of a group without faults where they make a difference."""
    found = _wiring_of_shape(shape, machine)
    if not machine.value.faults:
        return found
    sound = _wiring_of_shape(shape, _sound_of(machine))
    if found == sound:
        return found
    # Constants that were measured hold only for wires of the same sort.
    is_like = found.link_class is sound.link_class
    measured = sound.measured if is_like else f"{sound.measured}, with faults"
    return replace(found, measured=measured, sound=sound)


@lru_cache(maxsize=64)
def _sound_of(machine: ByIdentity[Topology]) -> ByIdentity[Topology]:
    return ByIdentity(machine.value.sound)
