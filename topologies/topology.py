"""Topologies: one host, its GPUs and what is wired to what.

A Topology refuses GPUs that have no route between them, so every route exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.base.errors import TopologyError
from topologies.device import Device
from topologies.faults import Fault
from topologies.link import Fabric, Link, LinkKind, Route, Vertex, VertexKind
from topologies.routing import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One host.

    *peer_to_peer* says whether GPUs reach each other over PCIe without a stop in host memory. None
    is unknown: a stop is assumed, which lies between the fastest hosts and the slowest.
    *gpus_forward* says whether GPUs forward NVLink traffic of
    other GPUs. *trays* above 1 makes it a rack: several machines, each with its own operating
    system, joined by one NVLink. *host_copy_bytes_per_s* is the measured rate of a large copy from
    host memory on this machine; without it the device's figure is used. *measured* names the
    machine whose measured constants it takes; without one, *lost_constants* says why. *assumed* are
    sentences that every answer repeats, *unknown_keys* those of the file of another program.
    *faults* are what is broken, by host: the links here are those of a sound host, and *machines*
    are the hosts as they are, first one that no fault names. *gpu_speeds* of a host with slow GPUs
    are what is left of the speed of each. *fleet* lists hosts of unlike machines in order, so many
    of each; the first machine's switches join them, and the facts here are its own.
    """

    name: str
    description: str
    source: str
    device: Device
    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]
    fabric: Fabric | None = None
    host_cpu: str | None = None
    peer_to_peer: bool | None = None
    gpus_forward: bool = False
    trays: int = 1
    host_copy_bytes_per_s: float | None = None
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    measured: str = ""
    lost_constants: str = ""
    faults: tuple[Fault, ...] = ()
    gpu_speeds: tuple[float, ...] = ()
    fleet: tuple[tuple[int, Topology], ...] = ()
    machines: tuple[Topology, ...] = field(init=False, repr=False, compare=False)
    router: Router = field(init=False, repr=False, compare=False)
    nic_of_gpu: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [*_vertex_faults(self), *_link_faults(self)]
        if faults:
            raise TopologyError(f"topology {self.name}: " + "; ".join(faults) + ".")
        router = Router(self.vertices, self.links, self.peer_to_peer, self.gpus_forward)
        object.__setattr__(self, "router", router)
        object.__setattr__(self, "nic_of_gpu", _deal_nics(self))
        object.__setattr__(self, "assumed", (*self.assumed, *_lost_nvlinks(self)))
        faults = _reach_faults(self)
        if faults:
            raise TopologyError(f"topology {self.name}: " + "; ".join(faults) + ".")
        is_uneven = self.faults or self.fleet
        object.__setattr__(self, "machines", self._build_machines() if is_uneven else (self,))

    def _build_machines(self) -> tuple[Topology, ...]:
        kinds = dict.fromkeys(map(self._kind_of, (None, *self._uneven_hosts)))
        return tuple(_break(base, faults) for base, faults in kinds)

    def _kind_of(self, host: int | None) -> tuple[Topology, tuple[Fault, ...]]:
        """The sound machine that *host* is, and its faults; None is a host that nothing names."""
        base, past = self.fleet[0][1] if self.fleet else self, 0
        for count, machine in self.fleet:
            if host is not None and past <= host:
                base = machine
            past += count
        # Without their hosts, so that equal ones make equal machines.
        return base, tuple(replace(one, hosts=()) for one in self.faults if one.is_on(host))

    @property
    def fleet_hosts(self) -> int:
        """How many hosts the fleet has; 0 where all hosts are one machine."""
        return sum(count for count, _ in self.fleet)

    @property
    def named_hosts(self) -> tuple[int, ...]:
        """The hosts that faults name."""
        return tuple(sorted({host for fault in self.faults for host in fault.hosts or ()}))

    @property
    def _uneven_hosts(self) -> tuple[int, ...]:
        return tuple(sorted({*self.named_hosts, *range(self.fleet_hosts)}))

    @property
    def machine_of_host(self) -> dict[int, int]:
        """Which of *machines* each of the named hosts is; the others are the first."""
        kinds = [self._kind_of(host) for host in (None, *self._uneven_hosts)]
        places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
        return {
            host: places[kind] for host, kind in zip(self._uneven_hosts, kinds[1:], strict=True)
        }

    @property
    def faulty(self) -> Topology:
        """The first host with faults as it is; the machine itself without any."""
        first = self.machine_of_host[self.named_hosts[0]] if self.named_hosts else 0
        return self.machines[first]

    @property
    def sound(self) -> Topology:
        """The same without faults."""
        return replace(self, faults=()) if self.faults else self

    def calibrated_by(self, files: Sequence[str]) -> Topology:
        """The same host, with constants of its own in *files*."""
        return replace(
            self,
            device=replace(self.device, calibrations=tuple(files)),
            fleet=tuple((count, machine.calibrated_by(files)) for count, machine in self.fleet),
        )

    def is_wired_like(self, other: Topology) -> bool:
        """Whether constants of collectives that were measured on *other* hold here."""
        return self._wires == other._wires

    @property
    def _wires(self) -> tuple[object, ...]:
        return (
            self.vertices,
            # Whatever their order in the file.
            Counter(self.links),
            # Whether its switches reduce was not stated by those who measured.
            self.fabric and replace(self.fabric, reduces=False),
            self.device.generation,
            self.trays,
            self.peer_to_peer,
            self.gpus_forward,
        )

    def of_kind(self, kind: VertexKind) -> tuple[Vertex, ...]:
        """The vertices of *kind*, by index."""
        return tuple(vertex for vertex in self.vertices if vertex.kind is kind)

    @property
    def gpus_per_host(self) -> int:
        """How many GPUs it has."""
        return len(self.of_kind(VertexKind.GPU))

    @property
    def gpus_per_tray(self) -> int:
        """How many GPUs one operating system sees."""
        return self.gpus_per_host // self.trays

    @property
    def nics_per_host(self) -> int:
        """How many NIC vertices it has."""
        return len(self.of_kind(VertexKind.NIC))

    @property
    def has_nvswitch(self) -> bool:
        """Whether NVLink goes through switches."""
        return bool(self.of_kind(VertexKind.NVSWITCH))

    @property
    def idle(self) -> Topology:
        """The machine as a benchmark finds it, alone on its network."""
        if self.fabric is None:
            return self
        latency_ns = self.fabric.idle_nic_latency_ns or self.fabric.nic_latency_ns
        alone = replace(self.fabric, call_latency_ns=0.0, nic_latency_ns=latency_ns)
        return self if alone == self.fabric else replace(self, fabric=alone)

    @property
    def has_nvls(self) -> bool:
        """Whether its NVSwitches add up what passes through them (NVLink SHARP)."""
        return any(vertex.reduces for vertex in self.of_kind(VertexKind.NVSWITCH))

    def route(self, source: str, target: str) -> Route:
        """The links from *source* to *target*, names of vertices."""
        for name in (source, target):
            if not self.router.has_vertex(name):
                raise TopologyError(
                    f"topology {self.name}: there is no vertex {name!r}. "
                    f"It has {', '.join(_counts(self))}."
                )
        route = self.router.route(source, target)
        if route is None:
            raise TopologyError(
                f"topology {self.name}: no links lead from {source} to {target}. "
                "Name two different vertices, or add the missing link."
            )
        return route

    def gpu_route(self, gpu_a: int, gpu_b: int) -> Route:
        """The links from one GPU to another."""
        return self.route(f"gpu:{gpu_a}", f"gpu:{gpu_b}")

    def nic_route(self, gpu: int) -> Route:
        """The links from *gpu* to the NIC it sends with."""
        return self.route(f"gpu:{gpu}", f"nic:{self.nic_of_gpu[gpu]}")

    def cpu_route(self, gpu: int) -> Route:
        """The links from *gpu* to its nearest CPU socket."""
        routes = [
            route
            for cpu in self.of_kind(VertexKind.CPU)
            if (route := self.router.route(f"gpu:{gpu}", cpu.name)) is not None
        ]
        if not routes:
            raise TopologyError(
                f"topology {self.name}: gpu:{gpu} is wired to no CPU socket. Add the link."
            )
        return min(routes, key=lambda route: (len(route.links), -route.bandwidth_bytes_per_s))

    @property
    def host_copy_bandwidth_bytes_per_s(self) -> float:
        """What a large copy between pinned host memory and one GPU reaches, one way."""
        measured = self.host_copy_bytes_per_s
        return self.device.host_link.effective_bytes_per_s if measured is None else measured

    def nvlink_lanes(self, gpu_a: int, gpu_b: int) -> int:
        """How many NVLinks join two GPUs, directly or through a switch; 0 when none do."""
        route = self.router.route(f"gpu:{gpu_a}", f"gpu:{gpu_b}")
        if route is None or not route.is_nvlink or route.passes_gpu:
            return 0
        return min(link.lanes for link in route.links)

    def nvlink_bandwidth_bytes_per_s(self, gpu: int) -> float:
        """What all NVLinks that leave *gpu* carry together, one way."""
        return sum(
            link.bandwidth_bytes_per_s
            for link in self.links
            if link.source == f"gpu:{gpu}" and link.kind is LinkKind.NVLINK
        )


def _counts(topology: Topology) -> list[str]:
    counts = Counter(vertex.kind.value for vertex in topology.vertices)
    return [f"{kind}:0 to {kind}:{count - 1}" for kind, count in counts.items()]


def _vertex_faults(topology: Topology) -> list[str]:
    faults = []
    for kind in VertexKind:
        indices = [vertex.index for vertex in topology.of_kind(kind)]
        if indices != list(range(len(indices))):
            faults.append(f"{kind.value} vertices must be numbered 0, 1, 2 ..., got {indices}")
    gpus = len(topology.of_kind(VertexKind.GPU))
    if not gpus:
        faults.append("must have at least one gpu, has none")
    if topology.trays < 1 or gpus % topology.trays:
        faults.append(f"{gpus} GPUs must divide evenly over {topology.trays} trays")
    return faults


def _link_faults(topology: Topology) -> list[str]:
    names = {vertex.name for vertex in topology.vertices}
    faults = []
    for link in topology.links:
        dangling = [end for end in (link.source, link.target) if end not in names]
        if dangling:
            faults.append(
                f"link {link.name} ends at {' and '.join(dangling)}, which is not a vertex"
            )
    seen = Counter((link.name, link.kind) for link in topology.links)
    faults += [
        f"link {name} ({kind.value}) is listed {count} times; write `lanes: {count}` instead"
        for (name, kind), count in seen.items()
        if count > 1
    ]
    return faults


def _deal_nics(topology: Topology) -> tuple[int, ...]:
    """The NIC of each GPU: the nearest, then the one with the fewest GPUs, then the first."""
    nics = topology.of_kind(VertexKind.NIC)
    tables = [topology.router.table(nic.name) for nic in nics]
    taken: Counter[int] = Counter()
    chosen = []
    for gpu in topology.of_kind(VertexKind.GPU):
        reachable = [number for number, table in enumerate(tables) if gpu.name in table.hops]
        if not reachable:
            return ()
        best = min(
            reachable,
            key=lambda number: (
                tables[number].hops[gpu.name],
                -tables[number].width[gpu.name],
                taken[number],
                number,
            ),
        )
        taken[best] += 1
        chosen.append(best)
    return tuple(chosen)


def _break(sound: Topology, faults: tuple[Fault, ...]) -> Topology:
    """A host with *faults*."""
    links: list[Link] = list(sound.links)
    slow: dict[int, float] = {}
    for fault in faults:
        links = fault.apply_to(links, sound.vertices, sound.fabric)
        for gpu in fault.slowed_gpus(sound.vertices):
            slow[gpu] = slow.get(gpu, 1.0) * fault.ratio
    speeds = tuple(slow.get(gpu, 1.0) for gpu in range(sound.gpus_per_host)) if slow else ()
    try:
        return replace(sound, faults=(), fleet=(), links=tuple(links), gpu_speeds=speeds)
    except TopologyError as wrong:
        places = ", ".join(fault.where for fault in faults)
        raise TopologyError(f"with the faults at {places}: {wrong}") from None


def _lost_nvlinks(topology: Topology) -> tuple[str, ...]:
    """A sentence about GPUs without NVLink on a host whose other GPUs have it."""
    joined = {link.source for link in topology.links if link.kind is LinkKind.NVLINK}
    lost = [gpu.name for gpu in topology.of_kind(VertexKind.GPU) if gpu.name not in joined]
    if not joined or not lost:
        return ()
    said = (
        f"No NVLink at {', '.join(lost)} of {topology.name}: their groups go over PCIe, and "
        "no switch reduces for them."
    )
    return () if said in topology.assumed else (said,)


def _reach_faults(topology: Topology) -> list[str]:
    gpus = [vertex.name for vertex in topology.of_kind(VertexKind.GPU)]
    lost = [
        f"{a} -> {b}" for b in gpus for a in gpus if a != b and topology.router.route(a, b) is None
    ]
    faults = []
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        faults.append(f"no links lead {', '.join(lost[:3])}{more}; join them")
    if topology.fabric is not None and not topology.nic_of_gpu:
        faults.append("it has a fabric, but a GPU reaches no nic; add NICs and their links")
    return faults
