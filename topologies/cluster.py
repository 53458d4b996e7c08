"""Clusters: many copies of a topology joined by its fabric, and where the ranks sit.

Nothing is stored per pair or per host: the seat of a rank is arithmetic, and links across hosts
are built when a route is requested.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import TopologyError
from topologies.device import Device
from topologies.faults import Change, Fault
from topologies.link import Fabric, Link, LinkKind, Route
from topologies.topology import Topology

Ranks = NDArray[np.int64]
Seats = TypeVar("Seats", int, Ranks)

MOST_RANKS = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Ranks seated block by block.

    A block is what one operating system sees: a host, or a tray of a host that is a rack.
    Each block seats *ranks_per_block* ranks on its first GPUs.
    """

    topology: Topology
    block_count: int
    ranks_per_block: int
    gpus_per_block: int
    blocks_per_host: int = 1

    @property
    def device(self) -> Device:
        """The GPU of every rank."""
        return self.topology.device

    def devices_of(self, ranks: Ranks) -> tuple[Ranks, tuple[Device, ...]]:
        """Which of the GPUs of all machines each of *ranks* is, and these GPUs."""
        devices = tuple(dict.fromkeys(one.device for one in self.topology.machines))
        places = np.array([devices.index(one.device) for one in self.topology.machines])
        numbers: Ranks = places[self.machines_of(self.seats_of(ranks)[0])]
        return numbers, devices

    @property
    def rank_count(self) -> int:
        """How many ranks there are."""
        return self.block_count * self.ranks_per_block

    @property
    def host_count(self) -> int:
        """How many hosts (or racks) hold ranks."""
        return -(-self.block_count // self.blocks_per_host)

    @property
    def ranks_per_host(self) -> int:
        """How many ranks a full host holds."""
        return min(self.block_count, self.blocks_per_host) * self.ranks_per_block

    @property
    def host_of_rank(self) -> Ranks:
        """The host of every rank."""
        return self.seats_of(np.arange(self.rank_count, dtype=np.int64))[0]

    def seats_of(self, ranks: Seats) -> tuple[Seats, Seats]:
        """The hosts of *ranks*, one or many, and their GPUs there."""
        block, seat = divmod(ranks, self.ranks_per_block)
        gpu = block % self.blocks_per_host * self.gpus_per_block + seat
        return block // self.blocks_per_host, gpu

    def machines_of(self, hosts: Ranks) -> Ranks:
        """Which of the machines of the topology each of *hosts* is."""
        machines = np.zeros(hosts.shape, dtype=np.int64)
        for host, machine in self.topology.machine_of_host.items():
            machines[hosts == host] = machine
        return machines

    def machine_of(self, host: int) -> Topology:
        """*host* with its faults."""
        return self.topology.machines[self.topology.machine_of_host.get(host, 0)]

    def speeds_of(self, ranks: Ranks) -> NDArray[np.float64]:
        """What is left of the speed of the GPU of each of *ranks*."""
        hosts, gpus = self.seats_of(ranks)
        sound = (1.0,) * self.topology.gpus_per_host
        speeds = np.array([one.gpu_speeds or sound for one in self.topology.machines])
        return np.asarray(speeds[self.machines_of(hosts), gpus], dtype=np.float64)

    @property
    def at_full_speed(self) -> Cluster:
        """The same with sound GPUs; what is wrong with links stays."""
        left = tuple(one for one in self.topology.faults if one.change is not Change.SPEED)
        if left == self.topology.faults:
            return self
        return replace(self, topology=replace(self.topology, faults=left))

    def nics_of(self, ranks: Ranks) -> Ranks:
        """The NICs that *ranks* send with, counted through all hosts; none where there are none."""
        dealt = [one.nic_of_gpu for one in self.topology.machines]
        if not all(dealt):
            return np.zeros(0, dtype=np.int64)
        nics = np.array(dealt, dtype=np.int64)
        host, gpu = self.seats_of(ranks)
        numbers: Ranks = host * nics.shape[1] + nics[self.machines_of(host), gpu]
        return numbers

    @property
    def faults(self) -> tuple[str, ...]:
        """What is broken and what follows, a sentence for each fault."""
        return tuple(f"{_name_hosts(fault)}: {fault.describe()}." for fault in self.topology.faults)

    def check_faults(self) -> None:
        """Raise if a fault names a host that there is not."""
        named = self.topology.named_hosts
        if named and named[-1] >= self.host_count:
            what = "racks" if self.topology.trays > 1 else "hosts"
            raise TopologyError(
                f"fault on host:{named[-1]}: the job has {self.host_count} {what}, counted from 0. "
                "Name one of them, or ask for more hosts."
            )

    def host_of(self, rank: int) -> int:
        """The host of *rank*."""
        return self.seat_of(rank)[0]

    def seat_of(self, rank: int) -> tuple[int, int]:
        """The host of *rank* and its GPU there."""
        if not 0 <= rank < self.rank_count:
            raise TopologyError(
                f"rank {rank}: must be from 0 to {self.rank_count - 1} on this cluster. "
                "Ask for a rank that exists, or build a larger cluster."
            )
        return self.seats_of(rank)

    def route(self, rank_a: int, rank_b: int) -> Route:
        """The links from *rank_a* to *rank_b*, each named with its host."""
        (host_a, gpu_a), (host_b, gpu_b) = self.seat_of(rank_a), self.seat_of(rank_b)
        if host_a == host_b:
            return Route(_on_host(self.machine_of(host_a).gpu_route(gpu_a, gpu_b).links, host_a))
        if self.topology.fabric is None:
            raise TopologyError(
                f"topology {self.topology.name}: has no fabric, so its hosts are not joined. "
                "Add `fabric:` to the file."
            )
        machine_a, machine_b = self.machine_of(host_a), self.machine_of(host_b)
        nic_a, nic_b = machine_a.nic_of_gpu[gpu_a], machine_b.nic_of_gpu[gpu_b]
        enter = machine_b.route(f"nic:{nic_b}", f"gpu:{gpu_b}")
        across = self._fabric_links(self.topology.fabric, host_a, nic_a, host_b, nic_b)
        if self.topology.fleet:
            # Its own NICs may be slower than those of the first machine.
            sent = _at_rate_of(machine_a.fabric, across[0])
            across = (sent, *across[1:-1], _at_rate_of(machine_b.fabric, across[-1]))
        return Route(
            _on_host(machine_a.nic_route(gpu_a).links, host_a)
            + across
            + _on_host(enter.links, host_b)
        )

    def _fabric_links(
        self, fabric: Fabric, host_a: int, nic_a: int, host_b: int, nic_b: int
    ) -> tuple[Link, ...]:
        leaf_a = fabric.leaf_of(host=host_a, nic=nic_a)
        leaf_b = fabric.leaf_of(host=host_b, nic=nic_b)
        port = Link(
            source=f"host{host_a}/nic:{nic_a}",
            target=leaf_a,
            bandwidth_bytes_per_s=fabric.nic_bandwidth_bytes_per_s,
            latency_ns=fabric.nic_latency_ns,
            kind=LinkKind.NIC,
            lanes=fabric.nic_lanes,
        )
        arrival = replace(port, source=leaf_b, target=f"host{host_b}/nic:{nic_b}")
        if leaf_a == leaf_b:
            return (port, arrival)
        nics = self.topology.nics_per_host
        up = Link(
            source=leaf_a,
            target="spine:0",
            bandwidth_bytes_per_s=fabric.uplink_bandwidth_bytes_per_s(nics_per_host=nics),
            latency_ns=fabric.spine_latency_ns,
            kind=LinkKind.FABRIC,
        )
        return (port, up, replace(up, source="spine:0", target=leaf_b), arrival)


def _at_rate_of(fabric: Fabric | None, port: Link) -> Link:
    rate = fabric.nic_bandwidth_bytes_per_s if fabric else port.bandwidth_bytes_per_s
    return replace(port, bandwidth_bytes_per_s=rate)


def _on_host(links: tuple[Link, ...], host: int) -> tuple[Link, ...]:
    return tuple(
        replace(link, source=f"host{host}/{link.source}", target=f"host{host}/{link.target}")
        for link in links
    )


def _name_hosts(fault: Fault) -> str:
    if fault.hosts is None:
        return "All hosts"
    named = ", ".join(map(str, fault.hosts[:4])) + (", ..." if len(fault.hosts) > 4 else "")
    return f"Host{'' if len(fault.hosts) == 1 else 's'} {named}"


def build_cluster(
    topology: Topology,
    *,
    hosts: int = 1,
    ranks: int | None = None,
    ranks_per_host: int | None = None,
) -> Cluster:
    """Seat ranks on *hosts* copies of *topology*: one per GPU, or as many as requested.

    If a host is a rack of trays and the ranks of each host fit on one tray, *hosts* counts trays,
    as launchers do; otherwise it counts racks. Racks get equal segments of trays. A fleet has the
    hosts that its file lists.
    """
    if topology.fleet and hosts in (1, topology.fleet_hosts):
        hosts = topology.fleet_hosts
    elif topology.fleet:
        raise TopologyError(
            f"topology {topology.name}: lists {topology.fleet_hosts} hosts, got {hosts}. Leave the "
            "number of hosts out, or change the file."
        )
    if hosts < 1:
        raise TopologyError(
            f"cluster: must have at least one host, got {hosts}. Ask for 1 or more."
        )
    per_host = _ranks_per_host(topology, hosts, ranks, ranks_per_host)
    if hosts * per_host > MOST_RANKS:
        raise TopologyError(
            f"cluster: must have at most {MOST_RANKS} ranks, got {hosts} hosts of {per_host}."
        )
    on_trays = topology.trays > 1 and per_host <= topology.gpus_per_tray
    cluster = Cluster(
        topology=topology,
        block_count=hosts,
        ranks_per_block=per_host,
        gpus_per_block=topology.gpus_per_tray if on_trays else topology.gpus_per_host,
        blocks_per_host=_segment(hosts, topology.trays) if on_trays else 1,
    )
    if cluster.host_count > 1 and topology.fabric is None:
        raise TopologyError(
            f"topology {topology.name}: has no fabric to join {hosts} hosts. "
            "Ask for one host, or add `fabric:` to the file."
        )
    return cluster


def _segment(blocks: int, trays: int) -> int:
    """Trays of a job of *blocks* trays that sit in one rack.

    Schedulers give every rack the same number, so that no group of ranks straddles racks more
    than it must. A number of trays without a divisor that fills half a rack fills rack after rack.
    """
    equal = max(size for size in range(1, min(blocks, trays) + 1) if blocks % size == 0)
    return equal if 2 * equal >= min(blocks, trays) else trays


def _ranks_per_host(
    topology: Topology, hosts: int, ranks: int | None, ranks_per_host: int | None
) -> int:
    gpus = topology.gpus_per_host
    per_host = ranks_per_host
    if per_host is None:
        if ranks is not None and ranks % hosts:
            raise TopologyError(
                f"cluster: {ranks} ranks cannot be spread evenly over {hosts} hosts. "
                "Choose a number of ranks that the number of hosts divides."
            )
        per_host = gpus if ranks is None else ranks // hosts
    elif ranks is not None and ranks != hosts * per_host:
        raise TopologyError(
            f"cluster: {hosts} hosts with {per_host} ranks each make {hosts * per_host} ranks, "
            f"not {ranks}. Leave one of the three out."
        )
    if not 1 <= per_host <= gpus:
        needed = -(-hosts * max(per_host, 1) // gpus)
        advice = f"Ask for {needed} hosts or more" + ("." if ranks else f", with {gpus} at most.")
        raise TopologyError(
            f"cluster: {topology.name} has room for 1 to {gpus} ranks per host, got {per_host}. "
            f"{advice}"
        )
    return per_host
