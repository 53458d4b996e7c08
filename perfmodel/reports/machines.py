"""Reports of machines and of what is shipped: lists, and one machine.

The matrix uses the words of `nvidia-smi topo -m`; a table gives the bandwidth, latency and route
of every word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from perfmodel.base.dtypes import DType
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from perfmodel.reports.blocks import (
    Report,
    Section,
    Sentences,
    Table,
)
from perfmodel.reports.text import count_of
from topologies import (
    Cluster,
    Device,
    Fabric,
    FabricKind,
    LinkKind,
    Route,
    Topology,
    load_device,
    load_topology,
)
from topologies.link import VertexKind

MOST_MATRIX_GPUS = 16
PEAKS = (DType.FP32, DType.TF32, DType.FP16, DType.BF16, DType.FP8, DType.NVFP4, DType.MXFP4)
TERA = 1e12


def report_topology(topology: Topology, cluster: Cluster | None = None) -> Report:
    """The machine, and *cluster* where several hosts of it were asked for.

    Where there are faults, the first host with one is shown.
    """
    sound, topology = topology, topology.faulty
    gpus = range(topology.gpus_per_host)
    direct = topology if topology.peer_to_peer is False else replace(topology, peer_to_peer=True)
    matrix = [
        [str(a), *("-" if a == b else route_word(direct.gpu_route(a, b)) for b in gpus)]
        for a in (gpus if 1 < len(gpus) <= MOST_MATRIX_GPUS else ())
    ]
    columns = ["GPU", *map(str, gpus)]
    sections = [
        Section("", [Table((), _facts(sound), wraps=(1,))]),
        Section("Faults", [Sentences(cluster.faults if cluster is not None else ())]),
        Section("GPU to GPU", [Table(columns, matrix, numeric=range(1, len(columns)))]),
        Section("Routes", [_route_table(_iter_routes(topology))]),
    ]
    if cluster is not None and cluster.host_count > 1:
        title = f"{cluster.host_count} hosts, {cluster.rank_count} GPUs"
        sections.append(Section(title, [_route_table(_iter_host_routes(cluster))]))
    sections.append(Section("Notes", [Sentences(topology.notes)]))
    sections.append(Section("Source", [Sentences([topology.source])]))
    return Report(f"{topology.name}: {topology.description}", sections=sections)


def _facts(topology: Topology) -> list[tuple[str, str]]:
    copy = format_bandwidth(topology.host_copy_bandwidth_bytes_per_s)
    nvlink = _nvlink_line(topology)
    fabric = topology.fabric
    return [
        ("GPU", f"{topology.gpus_per_host} x {_device_line(topology.device)}"),
        *([("NVLink", nvlink)] if nvlink else []),
        ("Host", f"{topology.host_cpu or 'CPU not stated'}; copies to a GPU {copy}"),
        ("Network", _fabric_line(topology, fabric) if fabric else "none, one host only"),
    ]


def _device_line(device: Device) -> str:
    peaks = [
        f"{dtype.value} {device.peak_flops[dtype] / 1e12:.5g}"
        for dtype in PEAKS
        if dtype in device.peak_flops
    ]
    memory = format_size(device.memory_bytes)
    bandwidth = format_bandwidth(device.memory_bandwidth_bytes_per_s)
    return (
        f"{device.description}; {memory} at {bandwidth}; {device.power_w:g} W; "
        f"TFLOP/s {', '.join(peaks)}"
    )


def _nvlink_line(topology: Topology) -> str:
    total = topology.nvlink_bandwidth_bytes_per_s(0)
    if not total:
        return ""
    switches = topology.of_kind(VertexKind.NVSWITCH)
    reduces = ", which reduce (NVLS)" if topology.has_nvls else ""
    through = f" to {switches[0].chips} NVSwitch chips{reduces}" if switches else " in a mesh"
    return f"{format_bandwidth(total)} each way out of a GPU{through}"


def _fabric_line(topology: Topology, fabric: Fabric) -> str:
    kind = "rail-optimised" if fabric.kind is FabricKind.RAIL_OPTIMISED else "flat"
    nics = count_of(topology.nics_per_host, "NIC")
    return (
        f"{nics} of {format_nic(fabric)}, {kind}, "
        f"{fabric.hosts_per_leaf} hosts per leaf, spine {fabric.oversubscription:g} to 1"
    )


def format_nic(fabric: Fabric) -> str:
    """The rate of a NIC, by lanes where it has several."""
    gbit = fabric.nic_bandwidth_bytes_per_s * 8 / 1e9 / fabric.nic_lanes
    lanes = f"{fabric.nic_lanes} x " if fabric.nic_lanes > 1 else ""
    return f"{lanes}{gbit:g} Gbit/s"


def route_word(route: Route) -> str:
    """The word `nvidia-smi topo -m` has for *route*; NVB for NVLink through another GPU."""
    if route.is_nvlink:
        lanes = min(link.lanes for link in route.links)
        return f"NVB{lanes}" if route.passes_gpu else f"NV{lanes}"
    if LinkKind.CPU in route.kinds:
        return "SYS"
    return "PHB" if route.passes_cpu else "PIX"


def _iter_routes(topology: Topology) -> Iterator[tuple[str, Route]]:
    """An example of each word of the matrix, then the ways out of a GPU."""
    seen: set[tuple[str, float]] = set()
    for gpu_a, gpu_b in permutations(range(topology.gpus_per_host), 2):
        route = topology.gpu_route(gpu_a, gpu_b)
        key = (route_word(route), route.bandwidth_bytes_per_s)
        if key not in seen:
            seen.add(key)
            yield key[0], route
    if topology.of_kind(VertexKind.CPU):
        yield "CPU", topology.cpu_route(0)
    if topology.nic_of_gpu:
        yield "NIC", topology.nic_route(0)


def _iter_host_routes(cluster: Cluster) -> Iterator[tuple[str, Route]]:
    near = cluster.route(0, cluster.ranks_per_host)
    yield "near", near
    remote = cluster.route(0, cluster.rank_count - 1)
    if remote.latency_ns > near.latency_ns:
        yield "far", remote


def _route_table(routes: Iterable[tuple[str, Route]]) -> Table:
    rows = [
        (
            word,
            format_bandwidth(route.bandwidth_bytes_per_s),
            format_duration(route.latency_ns),
            " > ".join([route.source, *route.stops, route.target]),
        )
        for word, route in routes
    ]
    headings = ("", "each way", "latency", "for example")
    return Table(headings, rows, numeric=(1, 2), wraps=(3,))


def report_machines(machines: Sequence[str], devices: Sequence[str]) -> Report:
    """One line per machine, and one per GPU with its dense peaks and memory bandwidth."""
    rows, gpus = [], []
    for name in machines:
        topology = load_topology(name)
        nvlink = topology.nvlink_bandwidth_bytes_per_s(0) / 1e9
        rate = f"{nvlink:g} GB/s" if nvlink else "-"
        rows.append((name, str(topology.gpus_per_host), rate, topology.description))
    for name in devices:
        device = load_device(name)
        peaks = [
            f"{device.peak_flops[dtype] / TERA:.4g}" if dtype in device.peak_flops else "-"
            for dtype in (DType.FP32, DType.TF32, DType.FP16, DType.FP8)
        ]
        memory = f"{device.memory_bytes / 2**30:.4g} GiB"
        bandwidth = f"{device.memory_bandwidth_bytes_per_s / TERA:.4g}"
        gpus.append((name, *peaks, memory, bandwidth))
    headings = ("", "TFLOP/s fp32", "tf32", "fp16", "fp8", "memory", "TB/s")
    return Report(
        sections=[
            Section(
                "Machines (--topology)",
                [Table(("", "GPUs", "NVLink", ""), rows, numeric=(1, 2), code=(0,), wraps=(3,))],
            ),
            Section("GPUs", [Table(headings, gpus, numeric=range(1, 7), code=(0,))]),
        ],
    )


def report_models(
    workloads: Sequence[tuple[str, str]], stacks: Sequence[tuple[str, str]], *, default: str
) -> Report:
    """Workloads and software stacks with their descriptions; *default* needs no option."""
    return Report(
        sections=[
            Section("Workloads (--workload)", [_described(workloads)]),
            Section("Software stacks (--stack)", [_described(stacks)]),
        ],
        footer=f"The default workload is {default}. Your own YAML files work the same way.",
    )


def _described(rows: Sequence[tuple[str, str]]) -> Table:
    cells = [(name, " ".join(description.split())) for name, description in rows]
    return Table((), cells, code=(0,), wraps=(1,))


def report_installation(found: Mapping[str, Any], extras: Mapping[str, str]) -> Report:
    """Versions, places and faults; *extras* says what each optional package is for."""
    versions = found["versions"]
    rows = [(name, place or "NOT FOUND") for name, place in found["places"].items()]
    words = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
    rows += [("versions", words), ("machine code", found["compile_cache"]), ("Ray", found["ray"])]
    missing = [
        f"without {name}: no {use}. Install it with: "
        f"pip install {'torch==2.13.0' if name == 'torch' else name}"
        for name, use in extras.items()
        if versions[name] is None
    ]
    return Report(
        f"perfmodel {found['perfmodel']} on Python {found['python']}, {found['system']}, "
        f"{found['cores']} cores, {found['memory_gib']} GiB of memory",
        sections=[
            Section("", [Table((), rows, wraps=(1,)), Sentences(missing)]),
            Section("Faults", [Sentences(found["faults"])]),
        ],
        footer="Something is wrong; see above." if found["faults"] else "All well.",
        columns=100,
    )
