"""Machines of measured runs: the cluster that a row names.

The wiring comes from the catalog. The GPU, the power limit and the network bandwidth of the row
override those of the catalog.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache

from perfmodel.base.errors import WorkloadError
from perfmodel.validation.runs_table import RunRow
from topologies import (
    Cluster,
    Device,
    Topology,
    build_cluster,
    list_devices,
    list_topologies,
    load_device,
    load_topology,
)

_BITS_PER_GBIT_BYTE = 1e9 / 8


def build_machine(row: RunRow, sentences: list[str], calibration: tuple[str, ...]) -> Cluster:
    """The cluster of *row*; raises if the catalog has no such machine.

    Assumptions are added to *sentences*; *calibration* names files of constants measured on it.
    """
    ranks = row.value("n_gpus")
    if ranks is None:
        raise WorkloadError("the number of GPUs is not stated")
    topology = _topology(row, sentences)
    hosts, per_host = row.value("n_nodes"), row.value("gpus_per_node")
    per_host = per_host or (ranks // hosts if hosts else None) or topology.gpus_per_tray
    per_host = min(per_host, ranks)
    if ranks % per_host:
        raise WorkloadError(f"{ranks} GPUs cannot be divided into hosts of {per_host}")
    hosts = ranks // per_host
    if hosts > 1:
        topology = _with_network(topology, row.value("nic_gbit_per_gpu"), sentences)
    if calibration:
        topology = topology.calibrated_by(calibration)
    return build_cluster(topology, hosts=hosts, ranks_per_host=per_host)


def _topology(row: RunRow, sentences: list[str]) -> Topology:
    if not row.text("device"):
        raise WorkloadError("the GPU is not stated")
    device, name = row.text("device"), row.text("machine")
    if not name:
        name = _machine_with(load_device(device), row.value("nvlink_domain"))
        sentences.append(
            f"The machine is not stated; assumed {name}, the largest in the catalog with this GPU."
        )
    # Rows of one machine share its object and the wiring cached with it. Files of users are not
    # cached: they may change between tables.
    is_ours = name in list_topologies() and device in list_devices()
    find = _find_ours if is_ours else _find_topology
    topology, said = find(name, device, row.value("power_w"))
    sentences += said
    return topology


def _find_topology(
    name: str, device_name: str, power_w: float | None
) -> tuple[Topology, tuple[str, ...]]:
    """The machine *name* with this device and power limit, and assumptions about it."""
    topology, device = load_topology(name), load_device(device_name)
    said: tuple[str, ...] = ()
    if power_w is not None and power_w != device.power_w:
        said = (f"The power limit is {power_w:g} W instead of the board's {device.power_w:g} W.",)
        device = replace(device, power_w=power_w)
    return topology if device == topology.device else replace(topology, device=device), said


_find_ours = lru_cache(maxsize=256)(_find_topology)
_load_shipped = cache(load_topology)


def _machine_with(device: Device, domain: int | None) -> str:
    """The largest machine of the catalog with this GPU and an NVLink domain of *domain* or more."""
    fitting = [
        (topology.gpus_per_host, name)
        for name, topology in ((name, _load_shipped(name)) for name in list_topologies())
        if topology.device.name == device.name
        and (domain in (None, 1) or topology.gpus_per_host >= domain)
    ]
    if not fitting:
        raise WorkloadError(
            f"the machine is not stated and the catalog has none with {device.name}"
        )
    most = max(size for size, _ in fitting)
    return min(name for size, name in fitting if size == most)


def _with_network(topology: Topology, gbit_per_gpu: float | None, sentences: list[str]) -> Topology:
    fabric = topology.fabric
    if fabric is None:
        return topology
    if gbit_per_gpu is None:
        sentences.append(f"The network is not stated; assumed that of {topology.name}.")
        return topology
    host_bytes_per_s = gbit_per_gpu * _BITS_PER_GBIT_BYTE * topology.gpus_per_host
    nic_bytes_per_s = host_bytes_per_s / topology.nics_per_host
    if nic_bytes_per_s == fabric.nic_bandwidth_bytes_per_s:
        return topology
    return replace(topology, fabric=replace(fabric, nic_bandwidth_bytes_per_s=nic_bytes_per_s))
