"""Topologies as text: what a machine has, how its GPUs reach each other, in 80 columns.

The matrix uses the words of `nvidia-smi topo -m`, and a key beside it gives the bandwidth,
latency and route behind every word.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import permutations

from rich.table import Table
from rich.text import Text

from perfmodel.base.dtypes import DType
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from topologies import (
    Cluster,
    Device,
    Fabric,
    FabricKind,
    Link,
    LinkKind,
    Route,
    Topology,
    load_device,
    load_topology,
)
from topologies.link import VertexKind


def build_machine_list(names: Sequence[str]) -> Table:
    """One line a machine."""
    table = _table("Machines (--topology)", ("", "GPUs", "NVLink", ""))
    for name in names:
        topology = load_topology(name)
        nvlink = topology.nvlink_bandwidth_bytes_per_s(0) / 1e9
        table.add_row(
            Text(name),
            str(topology.gpus_per_host),
            f"{nvlink:g} GB/s" if nvlink else "-",
            Text(topology.description),
        )
    return table


def build_device_list(names: Sequence[str]) -> Table:
    """One line a GPU, with the dense peaks and the memory bandwidth."""
    table = _table("GPUs", ("", "TFLOP/s fp32", "tf32", "fp16", "fp8", "memory", "TB/s"))
    for name in names:
        device = load_device(name)
        peaks = [
            f"{device.peak_flops[dtype] / 1e12:.4g}" if dtype in device.peak_flops else "-"
            for dtype in (DType.FP32, DType.TF32, DType.FP16, DType.FP8)
        ]
        memory = f"{device.memory_bytes / 2**30:.4g} GiB"
        bandwidth = f"{device.memory_bandwidth_bytes_per_s / 1e12:.4g}"
        table.add_row(Text(name), *peaks, memory, bandwidth)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for number, column in enumerate(columns):
        is_words = not column
        table.add_column(
            column,
            justify="left" if is_words else "right",
            no_wrap=not is_words or number == 0,
            style="cyan" if number == 0 else None,
        )
    return table


WIDTH = 80
MOST_MATRIX_GPUS = 16
MOST_SOCKETS_SHOWN = 4


def draw_topology(topology: Topology, cluster: Cluster | None = None) -> str:
    """The machine as text, and *cluster* where several hosts of it were asked for."""
    parts = [
        _heading(topology),
        "\n".join(_facts(topology)),
        "\n".join(_wiring(topology)),
        "\n".join(_matrix(topology)),
        "\n".join(_key(topology)),
    ]
    if cluster is not None and cluster.host_count > 1:
        parts.append("\n".join(_between_hosts(cluster)))
    parts += [_wrapped(f"Note: {note}") for note in topology.notes]
    parts.append(_wrapped(f"Source: {topology.source}"))
    return "\n\n".join(part for part in parts if part) + "\n"


def route_word(route: Route) -> str:
    """The word `nvidia-smi topo -m` has for *route*; NVB for NVLink through another GPU."""
    if route.is_nvlink:
        lanes = min(link.lanes for link in route.links)
        return f"NVB{lanes}" if route.passes_gpu else f"NV{lanes}"
    if LinkKind.CPU in route.kinds:
        return "SYS"
    return "PHB" if route.passes_cpu else "PIX"


def _heading(topology: Topology) -> str:
    return _wrapped(f"{topology.name}: {topology.description}")


def _facts(topology: Topology) -> Iterator[str]:
    device = topology.device
    yield from _fact("GPU", f"{topology.gpus_per_host} x {_device_line(device)}")
    if nvlink := _nvlink_line(topology):
        yield from _fact("NVLink", nvlink)
    copy = format_bandwidth(topology.host_copy_bandwidth_bytes_per_s)
    yield from _fact("Host", f"{topology.host_cpu or 'CPU not stated'}; copies to a GPU {copy}")
    network = _fabric_line(topology, topology.fabric) if topology.fabric else "none, one host only"
    yield from _fact("Network", network)


def _device_line(device: Device) -> str:
    peaks = [
        f"{dtype.value} {device.peak_flops[dtype] / 1e12:.5g}"
        for dtype in (DType.FP32, DType.TF32, DType.FP16, DType.BF16, DType.FP8, DType.NVFP4)
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
    gbit = fabric.nic_bandwidth_bytes_per_s * 8 / 1e9 / fabric.nic_lanes
    lanes = f"{fabric.nic_lanes} x " if fabric.nic_lanes > 1 else ""
    kind = "rail-optimised" if fabric.kind is FabricKind.RAIL_OPTIMISED else "flat"
    nics = "1 NIC" if topology.nics_per_host == 1 else f"{topology.nics_per_host} NICs"
    return (
        f"{nics} of {lanes}{gbit:g} Gbit/s, {kind}, "
        f"{fabric.hosts_per_leaf} hosts a leaf, spine {fabric.oversubscription:g} to 1"
    )


def _wiring(topology: Topology) -> Iterator[str]:
    """Every socket and what hangs below it."""
    sockets = topology.of_kind(VertexKind.CPU)
    shown = sockets if len(sockets) <= MOST_SOCKETS_SHOWN else sockets[:1]
    for socket in shown:
        below = [link for link in topology.links if link.source == socket.name]
        below = [link for link in below if link.kind is not LinkKind.CPU]
        yield socket.name
        for number, link in enumerate(_bundles(below)):
            branch = "└─" if number == len(_bundles(below)) - 1 else "├─"
            yield f"{branch} {_bundle_line(topology, link)}"
    if len(shown) < len(sockets):
        yield f"... and {len(sockets) - len(shown)} more sockets alike"


def _bundles(links: list[Link]) -> list[list[Link]]:
    """Links to switches one by one, links to end points of one sort and rate together."""
    bundles: dict[tuple[str, str, float], list[Link]] = {}
    for link in links:
        kind, _, index = link.target.partition(":")
        alone = index if kind == VertexKind.PCIE_SWITCH.value else ""
        bundles.setdefault((kind, alone, link.bandwidth_bytes_per_s), []).append(link)
    return list(bundles.values())


def _bundle_line(topology: Topology, bundle: list[Link]) -> str:
    first = bundle[0]
    names = "  ".join(link.target for link in bundle)
    line = f"{first.kind.value} {format_bandwidth(first.bandwidth_bytes_per_s)}  {names}"
    if not first.target.startswith(VertexKind.PCIE_SWITCH.value):
        return line
    below = [
        link.target
        for link in topology.links
        if link.source == first.target and not link.target.startswith(VertexKind.CPU.value)
    ]
    return f"{line} ── {'  '.join(below)}"


def _matrix(topology: Topology) -> Iterator[str]:
    gpus = range(topology.gpus_per_host)
    if not 1 < len(gpus) <= MOST_MATRIX_GPUS:
        return
    width = 5 if len(gpus) <= 12 else 4
    yield "GPU   " + "".join(f"{gpu:>{width}}" for gpu in gpus)
    for gpu_a in gpus:
        words = (
            "-" if gpu_a == gpu_b else route_word(topology.gpu_route(gpu_a, gpu_b))
            for gpu_b in gpus
        )
        yield f"{gpu_a:>5} " + "".join(f"{word:>{width}}" for word in words)


def _key(topology: Topology) -> Iterator[str]:
    """Each word of the matrix with what is behind it, then the ways out of a GPU."""
    examples: dict[tuple[str, float], Route] = {}
    for gpu_a, gpu_b in permutations(range(topology.gpus_per_host), 2):
        route = topology.gpu_route(gpu_a, gpu_b)
        examples.setdefault((route_word(route), route.bandwidth_bytes_per_s), route)
    rows = [(word, route) for (word, _), route in examples.items()]
    if topology.of_kind(VertexKind.CPU):
        rows.append(("CPU", topology.cpu_route(0)))
    if topology.nic_of_gpu:
        rows.append(("NIC", topology.nic_route(0)))
    if rows:
        yield f"{'':5} {'each way':>10} {'latency':>8}  for example"
    for word, route in rows:
        yield from _route_lines(word, route)


def _between_hosts(cluster: Cluster) -> Iterator[str]:
    hosts, ranks = cluster.host_count, cluster.rank_count
    yield f"{hosts} hosts, {ranks} GPUs"
    yield from _route_lines("near", cluster.route(0, cluster.ranks_per_host))
    far = cluster.route(0, ranks - 1)
    if far.latency_ns > cluster.route(0, cluster.ranks_per_host).latency_ns:
        yield from _route_lines("far", far)


def _route_lines(word: str, route: Route) -> Iterator[str]:
    bandwidth = format_bandwidth(route.bandwidth_bytes_per_s)
    lead = f"{word:<5} {bandwidth:>10} {format_duration(route.latency_ns):>8}  "
    stops = " > ".join([route.source, *route.stops, route.target])
    yield from textwrap.wrap(
        stops, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
    )


def _fact(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{name:<9}", subsequent_indent=" " * 9)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
