"""Machines of measured runs: the cluster that a row names.

The catalog gives the wiring; a row may have another GPU in it, another power limit or another
network behind it, and then those replace the catalog's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

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
_UNSTATED = "The machine is not stated: {} taken, the largest of the catalog with such GPUs."


@dataclass(frozen=True, slots=True, eq=False)
class RunMachine:
    """The cluster of a run, and what had to be taken for granted about it."""

    cluster: Cluster
    assumptions: tuple[str, ...]


def build_machine(row: RunRow, *, calibration: tuple[str, ...] = ()) -> RunMachine:
    """The machine of *row*; raises where the catalog has none like it.

    *calibration* names files of constants that were measured on it.
    """
    ranks = row.count("n_gpus")
    if ranks is None:
        raise WorkloadError("the number of GPUs is not stated")
    sentences: list[str] = []
    topology = _topology(row, sentences)
    hosts, per_host = row.count("n_nodes"), row.count("gpus_per_node")
    per_host = per_host or (ranks // hosts if hosts else None) or topology.gpus_per_tray
    per_host = min(per_host, ranks)
    if ranks % per_host:
        raise WorkloadError(f"{ranks} GPUs do not divide by {per_host} a host")
    hosts = ranks // per_host
    if hosts > 1:
        topology = _with_network(topology, row.number("nic_gbit_per_gpu"), sentences)
    if calibration:
        topology = topology.calibrated_by(calibration)
    cluster = build_cluster(topology, hosts=hosts, ranks_per_host=per_host)
    return RunMachine(cluster, tuple(sentences))


def _topology(row: RunRow, sentences: list[str]) -> Topology:
    if not row.text("device"):
        raise WorkloadError("the GPU is not stated")
    device, name = row.text("device"), row.text("machine")
    if not name:
        name = _machine_with(load_device(device), row.count("nvlink_domain"))
        sentences.append(_UNSTATED.format(name))
    # Rows of one machine share its object, and with it what was worked out of its wiring. A file
    # of somebody's own may change from one table to the next.
    is_ours = name in list_topologies() and device in list_devices()
    find = _find_ours if is_ours else _find_topology
    topology, said = find(name, device, row.number("power_w"))
    sentences += said
    return topology


def _find_topology(
    name: str, device_name: str, power_w: float | None
) -> tuple[Topology, tuple[str, ...]]:
    """The machine *name* with such GPUs under a power limit, and what is said about it."""
    topology, device = load_topology(name), load_device(device_name)
    said: tuple[str, ...] = ()
    if power_w is not None and power_w != device.power_w:
        said = (f"A power limit of {power_w:g} W is stated, {device.power_w:g} W are the board's.",)
        device = replace(device, power_w=power_w)
    return topology if device == topology.device else replace(topology, device=device), said


_find_ours = lru_cache(maxsize=256)(_find_topology)


def _machine_with(device: Device, domain: int | None) -> str:
    """The largest machine of the catalog with such GPUs, of those that join *domain* of them."""
    fitting = [
        (topology.gpus_per_host, name)
        for name, topology in _catalog().items()
        if topology.device.name == device.name
        and (domain in (None, 1) or topology.gpus_per_host >= domain)
    ]
    if not fitting:
        raise WorkloadError(
            f"the machine is not stated and the catalog has none with {device.name}"
        )
    most = max(size for size, _ in fitting)
    return min(name for size, name in fitting if size == most)


@lru_cache(maxsize=1)
def _catalog() -> dict[str, Topology]:
    return {name: load_topology(name) for name in list_topologies()}


def _with_network(topology: Topology, gbit_per_gpu: float | None, sentences: list[str]) -> Topology:
    fabric = topology.fabric
    if fabric is None:
        return topology
    if gbit_per_gpu is None:
        sentences.append(f"The network is not stated: that of {topology.name} taken.")
        return topology
    host_bytes_per_s = gbit_per_gpu * _BITS_PER_GBIT_BYTE * topology.gpus_per_host
    nic_bytes_per_s = host_bytes_per_s / topology.nics_per_host
    if nic_bytes_per_s == fabric.nic_bandwidth_bytes_per_s:
        return topology
    return replace(topology, fabric=replace(fabric, nic_bandwidth_bytes_per_s=nic_bytes_per_s))
