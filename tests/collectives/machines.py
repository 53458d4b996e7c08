"""Small machines for the tests of collectives, and random ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.topologies.machines import both_ways, build_fabric, build_topology, vertices
from topologies import LinkKind, Topology, VertexKind, load_device

NVLINK = LinkKind.NVLINK


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
    counts = {"gpu": gpus, "pcie_switch": 1, "cpu": 1, "nvswitch": int(wires == "nvswitch")}
    links = both_ways("pcie_switch:0", "cpu:0", 32.0)
    for gpu in range(gpus):
        links += both_ways(f"gpu:{gpu}", "pcie_switch:0", 32.0)
        if wires == "nvswitch":
            links += both_ways(f"gpu:{gpu}", "nvswitch:0", link_gb_per_s, NVLINK)
        if wires == "mesh":
            for other in range(gpu):
                links += both_ways(f"gpu:{gpu}", f"gpu:{other}", link_gb_per_s, NVLINK)
    for nic in range(nics):
        links += both_ways(f"nic:{nic}", "pcie_switch:0", 64.0)
    fabric = build_fabric(
        nic_bandwidth_bytes_per_s=nic_gb_per_s * 1e9,
        nic_latency_ns=600.0,
        hosts_per_leaf=4,
        oversubscription=oversubscription,
        spine_latency_ns=spine_latency_ns,
        call_latency_ns=call_latency_ns,
    )
    return build_topology(
        links,
        counts={},
        name="test_host",
        device=load_device(device),
        vertices=tuple(
            replace(one, reduces=reduces and one.kind is VertexKind.NVSWITCH)
            for one in vertices(**counts, nic=nics)
        ),
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
