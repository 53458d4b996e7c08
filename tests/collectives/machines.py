"""Small machines for the tests of collectives, and random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from topologies import (
    Fabric,
    FabricKind,
    Link,
    LinkKind,
    Topology,
    Vertex,
    VertexKind,
    load_device,
)

GB = 1e9


def both_ways(a: str, b: str, gb_per_s: float, kind: LinkKind, lanes: int = 1) -> list[Link]:
    return [
        Link(x, y, bandwidth_bytes_per_s=gb_per_s * GB, latency_ns=300.0, kind=kind, lanes=lanes)
        for x, y in ((a, b), (b, a))
    ]


def build_host(
    *,
    gpus: int = 4,
    wires: str = "nvswitch",
    link_gb_per_s: float = 100.0,
    nics: int = 4,
    nic_gb_per_s: float = 25.0,
    oversubscription: float = 1.0,
    device: str = "a100_sxm_80gb",
    reduces: bool = False,
    peer_to_peer: bool = True,
    trays: int = 1,
    spine_latency_ns: float = 0.0,
    call_latency_ns: float = 0.0,
) -> Topology:
    """A host: GPUs on an NVSwitch, a full NVLink mesh or one PCIe switch; NICs on that switch."""
    vertices = [Vertex(VertexKind.GPU, index) for index in range(gpus)]
    vertices += [Vertex(VertexKind.PCIE_SWITCH, 0), Vertex(VertexKind.CPU, 0)]
    links = both_ways("pcie_switch:0", "cpu:0", 32.0, LinkKind.PCIE)
    if wires == "nvswitch":
        vertices.append(Vertex(VertexKind.NVSWITCH, 0, reduces=reduces))
    for gpu in range(gpus):
        links += both_ways(f"gpu:{gpu}", "pcie_switch:0", 32.0, LinkKind.PCIE)
        if wires == "nvswitch":
            links += both_ways(f"gpu:{gpu}", "nvswitch:0", link_gb_per_s, LinkKind.NVLINK)
        if wires == "mesh":
            for other in range(gpu):
                links += both_ways(f"gpu:{gpu}", f"gpu:{other}", link_gb_per_s, LinkKind.NVLINK)
    for nic in range(nics):
        vertices.append(Vertex(VertexKind.NIC, nic))
        links += both_ways(f"nic:{nic}", "pcie_switch:0", 64.0, LinkKind.PCIE)
    fabric = Fabric(
        kind=FabricKind.RAIL_OPTIMISED,
        nic_bandwidth_bytes_per_s=nic_gb_per_s * GB,
        nic_latency_ns=600.0,
        hosts_per_leaf=4,
        oversubscription=oversubscription,
        spine_latency_ns=spine_latency_ns,
        call_latency_ns=call_latency_ns,
    )
    return Topology(
        name="test_host",
        description="a host of the tests",
        source="made up",
        device=load_device(device),
        vertices=tuple(vertices),
        links=tuple(links),
        fabric=fabric if nics else None,
        peer_to_peer=peer_to_peer,
        trays=trays,
    )


def hosts() -> st.SearchStrategy[Topology]:
    """Random hosts of every class of wires."""
    return st.builds(
        build_host,
        gpus=st.integers(2, 6),
        wires=st.sampled_from(["nvswitch", "mesh", "pcie"]),
        link_gb_per_s=st.floats(5.0, 900.0),
        nics=st.integers(1, 6),
        nic_gb_per_s=st.floats(3.0, 100.0),
        oversubscription=st.floats(1.0, 4.0),
        device=st.sampled_from(["a100_sxm_80gb", "h100_sxm"]),
        reduces=st.booleans(),
        peer_to_peer=st.booleans(),
    )
