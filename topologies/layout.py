"""Layouts: how a group of ranks lies on a cluster, in the few numbers a collective needs.

Only what differs is looked at: hosts that seat the group on the same GPUs count once,
so a group of 16,384 ranks costs what its distinct hosts cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from perfmodel.base.errors import TopologyError
from topologies.cluster import Cluster
from topologies.route import Route
from topologies.topology import Topology

Seating = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """Where a group sits and its slowest routes.

    *inside* is the slowest route between two of its GPUs on one host, *across* the slowest
    between ranks with the same seat number on neighbouring hosts; None where there are none.
    """

    rank_count: int
    host_count: int
    most_ranks_per_host: int
    fewest_ranks_per_host: int
    inside: Route | None
    across: Route | None
    fewest_nics_per_host: int
    most_ranks_per_nic: int
    crosses_spine: bool
    host_bandwidth_bytes_per_s: float

    @property
    def is_even(self) -> bool:
        """Whether every host seats as many of its ranks."""
        return self.most_ranks_per_host == self.fewest_ranks_per_host


def build_layout(cluster: Cluster, ranks: Sequence[int]) -> GroupLayout:
    """Describe how *ranks*, a group, lie on *cluster*."""
    hosts = _seatings(cluster, ranks)
    seatings = tuple(dict.fromkeys(hosts.values()))
    topology = cluster.topology
    spans = len(hosts) > 1
    loads = (
        [Counter(topology.nic_of_gpu[gpu] for gpu in seats) for seats in seatings] if spans else []
    )
    fewest_nics = min((len(load) for load in loads), default=0)
    across = _slowest(_across(cluster, hosts)) if spans else None
    crosses_spine = across is not None and any("spine" in stop for stop in across.stops)
    fabric = topology.fabric
    per_nic = 0.0
    if spans and fabric is not None:
        per_nic = fabric.nic_bandwidth_bytes_per_s
        if crosses_spine:
            per_nic = fabric.spine_bandwidth_bytes_per_s
    return GroupLayout(
        rank_count=len(ranks),
        host_count=len(hosts),
        most_ranks_per_host=max(map(len, seatings)),
        fewest_ranks_per_host=min(map(len, seatings)),
        inside=_slowest(_inside(topology, seatings)),
        across=across,
        fewest_nics_per_host=fewest_nics,
        most_ranks_per_nic=max((max(load.values()) for load in loads), default=0),
        crosses_spine=crosses_spine,
        host_bandwidth_bytes_per_s=per_nic * fewest_nics,
    )


def _seatings(cluster: Cluster, ranks: Sequence[int]) -> dict[int, Seating]:
    """The GPUs of each host that the group uses, in the order of the group."""
    members = np.asarray(ranks, dtype=np.int64)
    if not members.size or len(np.unique(members)) != members.size:
        raise TopologyError(
            f"group: must hold one rank or more, each once, got {len(ranks)} ranks. "
            "Name every member once."
        )
    if members.min() < 0 or members.max() >= cluster.rank_count:
        raise TopologyError(
            f"group: ranks must be from 0 to {cluster.rank_count - 1}, "
            f"got {members.min()} to {members.max()}. Build a larger cluster."
        )
    seats: dict[int, list[int]] = {}
    hosts = cluster.host_of_rank[members].tolist()
    for host, gpu in zip(hosts, cluster.gpu_of_rank[members].tolist(), strict=True):
        seats.setdefault(host, []).append(gpu)
    return {host: tuple(gpus) for host, gpus in seats.items()}


def _inside(topology: Topology, seatings: tuple[Seating, ...]) -> Iterator[Route]:
    for seats in seatings:
        for gpu_a, gpu_b in permutations(seats, 2):
            yield topology.gpu_route(gpu_a, gpu_b)


def _across(cluster: Cluster, hosts: dict[int, Seating]) -> Iterator[Route]:
    """Routes between equal seats of neighbouring hosts, each sort of route once."""
    order = list(hosts)
    seen = set()
    for host_a, host_b in zip(order, order[1:] + order[:1], strict=True):
        for gpu_a, gpu_b in zip(hosts[host_a], hosts[host_b], strict=False):
            sort = (cluster.shares_leaf((host_a, gpu_a), (host_b, gpu_b)), gpu_a, gpu_b)
            if sort not in seen:
                seen.add(sort)
                yield cluster.seat_route((host_a, gpu_a), (host_b, gpu_b))


def _slowest(routes: Iterator[Route]) -> Route | None:
    """The route with the lowest bandwidth, of these the one with the highest latency."""
    return min(
        routes, key=lambda route: (route.bandwidth_bytes_per_s, -route.latency_ns), default=None
    )
