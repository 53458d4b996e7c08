"""Small machines, built for real, that the tests of this folder share."""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from topologies import (
    Device,
    Fabric,
    FabricKind,
    HostLink,
    HostLinkKind,
    Link,
    LinkKind,
    Multiprocessors,
    Topology,
    Vertex,
    VertexKind,
)


def build_device(**changes) -> Device:
    values = {
        "name": "toy",
        "description": "a toy GPU",
        "vendor": "nobody",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "multiprocessors": Multiprocessors(count=10, max_threads=2048, shared_memory_bytes=1024),
        "clock_hz": 1e9,
        "memory_bytes": 2**30,
        "memory_bandwidth_bytes_per_s": 1e12,
        "l2_bytes": 2**20,
        "l2_bandwidth_bytes_per_s": None,
        "peak_flops": {DType.FP32: 1e12, DType.BF16: 8e12},
        "vector_flops": 1e12,
        "host_link": HostLink(
            kind=HostLinkKind.PCIE,
            generation=4,
            bandwidth_bytes_per_s=32e9,
            effective_bytes_per_s=25e9,
        ),
        "power_w": 100.0,
        "source": "made up",
    }
    return Device(**{**values, **changes})


def wire(source: str, target: str, gb_per_s: float = 10.0, kind: LinkKind = LinkKind.PCIE) -> Link:
    return Link(source, target, gb_per_s * 1e9, latency_ns=100.0, kind=kind)


def both_ways(a: str, b: str, gb_per_s: float = 10.0, kind: LinkKind = LinkKind.PCIE) -> list[Link]:
    return [wire(a, b, gb_per_s, kind), wire(b, a, gb_per_s, kind)]


def vertices(**counts: int) -> tuple[Vertex, ...]:
    return tuple(
        Vertex(VertexKind(kind), index) for kind, count in counts.items() for index in range(count)
    )


def build_topology(links: list[Link], *, counts: dict[str, int], **changes) -> Topology:
    values = {"name": "toy", "description": "a toy", "source": "made up", "device": build_device()}
    values["vertices"] = vertices(**counts)
    return Topology(**{**values, **changes}, links=tuple(links))


def build_pcie_host(**changes) -> Topology:
    """Four GPUs, two a PCIe switch, one NIC a switch, both switches on one socket."""
    links = []
    for gpu in range(4):
        links += both_ways(f"gpu:{gpu}", f"pcie_switch:{gpu // 2}", 32.0)
    for switch in range(2):
        links += both_ways(f"nic:{switch}", f"pcie_switch:{switch}", 32.0)
        links += both_ways(f"pcie_switch:{switch}", "cpu:0", 16.0)
    counts = {"gpu": 4, "pcie_switch": 2, "cpu": 1, "nic": 2}
    stated = {"fabric": build_fabric(), "peer_to_peer": True}
    return build_topology(links, counts=counts, **{**stated, **changes})


def build_fabric(**changes) -> Fabric:
    values = {
        "kind": FabricKind.RAIL_OPTIMISED,
        "nic_bandwidth_bytes_per_s": 12.5e9,
        "nic_latency_ns": 500.0,
        "hosts_per_leaf": 2,
        "oversubscription": 2.0,
        "spine_latency_ns": 200.0,
    }
    return Fabric(**{**values, **changes})
