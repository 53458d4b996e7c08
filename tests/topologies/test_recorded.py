"""What shipped machines and files of other programs are read as, as recorded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from perfmodel import api
from tests import recorded
from tests.extensions.formats.machines.test_nccl_xml import gpu, host, pair
from tests.extensions.formats.machines.test_smi_matrix import CARDS, SWITCHED
from topologies import (
    Topology,
    build_cluster,
    list_devices,
    list_topologies,
    load_device,
    load_topology,
)
from topologies.recognising import cpu_speed, find_device, find_machine, name_devices

NARROW = host(pair(0).replace("16.0 GT/s", "5.0 GT/s"), pair(1).replace('"16"', '"8"'))
"""An old link with another coding, and one of half the width."""
MESH = host(gpu(0, ("01:00.0", 4, "0x030200")) + gpu(1, ("00:00.0", 4, "0x030200")))
FILES = {
    "switched": (host(pair(0), pair(1)), {}),
    "narrow": (NARROW, {}),
    "mesh": (MESH, {}),
    "matrix": (SWITCHED, {"gpu": "h100_sxm", "nic_rate": "400 Gbit/s"}),
    "cards": (CARDS, {"gpu": "rtx_a5000", "nic_rate": "100 Gbit/s"}),
}
NAMES = (
    "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB", "A100-PCIE-40GB", "NVIDIA GH200 480GB",
    "GeForce RTX 3090", "B200", "nothing",
)  # fmt: skip
CPUS = ("AMD EPYC 7742 64-Core Processor", "Intel(R) Xeon(R) Platinum 8480C", "Grace", None)


def describe(machine: Topology) -> dict[str, Any]:
    """Counts, routes of the first GPU to all, NICs and copies of one host; routes of two hosts."""
    gpus = range(machine.gpus_per_host)
    routes = [machine.gpu_route(0, other) for other in gpus[1:]]
    found: dict[str, Any] = {
        "device": machine.device.name,
        "counts": [machine.gpus_per_host, machine.nics_per_host, len(machine.links)],
        "rates": [route.bandwidth_bytes_per_s for route in routes],
        "latencies": [route.latency_ns for route in routes],
        "lanes": [machine.nvlink_lanes(0, other) for other in gpus[1:]],
        "nvlink": machine.nvlink_bandwidth_bytes_per_s(0),
        "copies": machine.host_copy_bandwidth_bytes_per_s,
        "nics": machine.nic_of_gpu,
        "switches": [machine.has_nvswitch, machine.has_nvls],
    }
    if machine.fabric is not None:
        far = build_cluster(machine, hosts=40).route(0, 40 * machine.gpus_per_host - 1)
        found["away"] = [far.stops, far.bandwidth_bytes_per_s, far.latency_ns]
    return found


def shipped() -> dict[str, Any]:
    """Machines of the catalog."""
    return {name: describe(load_topology(name)) for name in list_topologies()}


def devices() -> dict[str, Any]:
    """What datasheets give and what follows from them."""
    found = {}
    for name in list_devices():
        one = load_device(name)
        found[name] = [
            one.sm_count, one.pcie_bandwidth_bytes_per_s, one.memory_bytes, one.l2_bytes,
            {dtype.value: rate for dtype, rate in one.peak_flops.items()},
        ]  # fmt: skip
    return found


def recognised() -> dict[str, Any]:
    """Names that recordings and tables use."""
    found: dict[str, Any] = {}
    for name in NAMES:
        device, machines = find_device(name), [find_machine(name, gpus) for gpus in (4, 8)]
        found[name] = [
            device and device.name, name_devices(name), [one and one.name for one in machines]
        ]  # fmt: skip
    return {**found, "cpus": [cpu_speed(name) for name in CPUS]}


def imported(folder: Path) -> dict[str, Any]:
    """Files of NCCL and of `nvidia-smi`."""
    found = {}
    for name, (text, told) in FILES.items():
        path = folder / "machine"
        path.write_text(text)
        machine = api.import_topology(path, **told).topology
        found[f"imported: {name}"] = {**describe(machine), "assumed": machine.assumed}
    return found


def values(folder: Path | None = None) -> dict[str, Any]:
    """All grids; files are written to *folder*."""
    grids = (shipped, devices, recognised)
    found = {f"{grid.__name__}: {name}": one for grid in grids for name, one in grid().items()}
    return {**found, **imported(folder or Path(tempfile.mkdtemp()))}


def test_machines_are_as_recorded(tmp_path):
    recorded.check(__file__, values(tmp_path))
