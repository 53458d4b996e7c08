"""Machines of measured runs: which topology a row's words for GPU and network stand for.

The catalog gives the wiring; a row may have another variant of the GPU in it,
or another network behind it, and then those replace the catalog's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.base.errors import WorkloadError
from perfmodel.base.units import parse_bandwidth
from perfmodel.validation.runs_table import RunRow
from topologies import Cluster, Device, Topology, build_cluster, load_device, load_topology

_GPUS: tuple[tuple[str, str, str], ...] = (
    ("GB200", "gb200", "gb200_nvl72"),
    ("GH200", "gh200", "alps_gh200"),
    ("B200", "b200_sxm", "dgx_b200"),
    ("H200", "h200_sxm", "hgx_h200"),
    ("H100-PCIE", "h100_pcie", "h100_pcie"),
    ("H100", "h100_sxm", "dgx_h100"),
    ("A100-PCIE-40GB", "a100_pcie_40gb", "a100_pcie"),
    ("A100-PCIE", "a100_pcie_80gb", "a100_pcie"),
    ("A100-80GB-PCIE", "a100_pcie_80gb", "a100_pcie"),
    ("A100-SXM4-40GB", "a100_sxm_40gb", "dgx_a100"),
    ("A100", "a100_sxm_80gb", "dgx_a100"),
    ("L40S", "l40s", "l40s_pcie"),
    ("RTX-PRO-6000", "rtx_pro_6000_server", "rtx_pro_6000_pcie"),
    ("V100-SXM3", "v100_sxm3_32gb", "dgx2_v100"),
    ("V100-SXM2-32GB", "v100_sxm2_32gb", "dgx1_v100"),
    ("V100-SXM2", "v100_sxm2_16gb", "dgx1_v100"),
    ("V100-PCIE", "v100_pcie_32gb", "a100_pcie"),
)
"""Words at the start of a row's GPU, the device, and the machine that wires such GPUs."""

_CLOUDS: tuple[tuple[str, str, str], ...] = (
    ("H100", "AWS", "aws_p5"),
    ("H200", "AWS", "aws_p5en"),
    ("A100", "AWS", "aws_p4d"),
    ("A100", "Polaris", "polaris"),
)
"""Words in the GPU and in the wiring that name another machine."""

_OWN_MACHINES = (("Ultra-Scale", "aws_p5_ultrascale"), ("vTrain", "a100_vtrain"))
"""Words in a row's source, and the machine in `machines/` whose network was measured there."""

_NETWORKS = (
    re.compile(r"Compute: (?P<count>\d+)x[^,;]*?(?P<rate>\d+) ?Gb/s"),
    re.compile(r"(?P<count>\d+)x[^,;(]*?(?P<rate>\d+) ?Gb/s"),
    re.compile(r"(?P<rate>\d+) ?Gb/s per (?P<each>GPU)"),
    re.compile(r"(?P<rate>\d+) ?Gb/s"),
)
"""How tables write a host's network, first match taken: NICs x rate, rate a GPU, rate a host."""

_SLOW_MEMORY = re.compile(r"HBM2e")
_HBM2E_BANDWIDTH = "2.4 TB/s"


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The cluster of a run, and what had to be taken for granted about it."""

    cluster: Cluster
    assumptions: tuple[str, ...]


def build_machine(row: RunRow) -> Machine:
    """The machine of *row*; raises where the catalog has none like it."""
    ranks = row.count("n_gpus")
    if ranks is None:
        raise WorkloadError("the number of GPUs is not stated")
    sentences: list[str] = []
    topology = _topology(row, sentences)
    per_host = _ranks_per_host(row, ranks, topology, sentences)
    if ranks % per_host:
        raise WorkloadError(f"{ranks} GPUs do not divide by {per_host} a host")
    hosts = ranks // per_host
    if hosts > 1 and _own_machine(row) is None:
        topology = _with_network(topology, row.text("inter_node"), sentences)
    cluster = build_cluster(topology, hosts=hosts, ranks_per_host=per_host)
    return Machine(cluster, tuple(sentences))


def _topology(row: RunRow, sentences: list[str]) -> Topology:
    gpu = row.text("gpu")
    word = re.sub(r"[ _]+", "-", gpu.upper().removeprefix("NVIDIA").strip(" _-"))
    found = next((entry for entry in _GPUS if word.startswith(entry[0])), None)
    if found is None:
        raise WorkloadError(f"GPU {gpu!r} is not in the table of known GPUs")
    wiring = f"{row.text('intra_node')} {row.text('inter_node')}"
    name = next((m for start, text, m in _CLOUDS if start in found[0] and text in wiring), found[2])
    if found[0] == "V100-PCIE" and row.count("n_gpus") != 1:
        raise WorkloadError("the catalog has no machine with several V100 on PCIe")
    topology, device = load_topology(_own_machine(row) or name), load_device(found[1])
    if _SLOW_MEMORY.search(gpu):
        device = _slower_memory(device)
        sentences.append(f"GPU {gpu!r}: {device.name} with memory at {_HBM2E_BANDWIDTH}.")
    if gpu.startswith("A100 "):
        sentences.append("The size of the A100's memory is not stated: 80 GB taken.")
    return topology if device == topology.device else replace(topology, device=device)


def _own_machine(row: RunRow) -> Path | None:
    name = next((name for words, name in _OWN_MACHINES if words in row.text("source")), None)
    return None if name is None else Path(__file__).parent / "machines" / f"{name}.yaml"


def _slower_memory(device: Device) -> Device:
    return replace(device, memory_bandwidth_bytes_per_s=parse_bandwidth(_HBM2E_BANDWIDTH))


def _ranks_per_host(row: RunRow, ranks: int, topology: Topology, sentences: list[str]) -> int:
    seats = topology.gpus_per_tray
    stated = row.ranks_per_host or (ranks // row.hosts if row.hosts else None) or seats
    is_nvidia_summary = "NeMo" in row.text("software") or "Bridge" in row.text("software")
    if topology.trays == 1 and stated < seats and ranks > stated and is_nvidia_summary:
        # The public summaries count GPUs a host for another machine than the one named.
        sentences.append(f"{stated} GPUs a host are stated; hosts of {seats} taken.")
        return min(seats, ranks)
    return min(stated, ranks)


def _with_network(topology: Topology, text: str, sentences: list[str]) -> Topology:
    match = next((found for rule in _NETWORKS if (found := rule.search(text))), None)
    fabric = topology.fabric
    if fabric is None:
        return topology
    if match is None:
        sentences.append(f"The network is not stated ({text!r}): that of {topology.name} taken.")
        return topology
    parts = match.groupdict()
    count = int(parts.get("count") or (topology.gpus_per_host if parts.get("each") else 1))
    host_bytes_per_s = count * int(parts["rate"]) * 1e9 / 8
    nic_bytes_per_s = host_bytes_per_s / topology.nics_per_host
    if nic_bytes_per_s == fabric.nic_bandwidth_bytes_per_s:
        return topology
    return replace(topology, fabric=replace(fabric, nic_bandwidth_bytes_per_s=nic_bytes_per_s))
