"""A measured run as the setting of a question for `predict`: workload, stack and machine of a row.

The wiring of the machine comes from the catalog. The GPU, the power limit and the network bandwidth
of the row override those of the catalog.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.measurements.validation.framework_stacks import choose_stack
from perfmodel.extensions.measurements.validation.runs_table import RunRow
from perfmodel.extensions.measurements.validation.runs_workloads import WORKLOADS
from perfmodel.prediction.layouts.choosing import spec_of_layouts
from perfmodel.prediction.question import PredictOptions, Setting
from perfmodel.stacks.capabilities import Fusion
from perfmodel.workloads.families import family_of
from perfmodel.workloads.jobs import fill
from perfmodel.workloads.transformer.layout_choice import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.words import Recompute
from topologies import (
    Cluster,
    Device,
    LinkKind,
    Topology,
    VertexKind,
    build_cluster,
    find_device,
    list_devices,
    list_topologies,
    load_device,
    load_topology,
)

_STATES_RECOMPUTE = (
    "recompute", "recompute_modules", "offload_layers", "ep_overlap", "cuda_graph",
)  # fmt: skip
"""Columns that are only stated if the configuration of a run is known. Such a run recomputes
only what it states."""
_NAMED = 8
"""Columns that a sentence names."""
MEMORY_KNOWN_WITHIN = 1.2
"""Memory needs are known to about a fifth: a run that needs less than this may have fitted."""
_BITS_PER_GBIT_BYTE = 1e9 / 8


def read_setting(
    row: RunRow, asked: PredictOptions | None = None, *, calibration: tuple[str, ...] = ()
) -> Setting:
    """The workload, cluster and stack of *row*; raises an InputError if they cannot be read."""
    row.check()
    sentences: list[str] = []
    if row.unread:
        more = f" and {len(row.unread) - _NAMED} more" if len(row.unread) > _NAMED else ""
        sentences.append(f"Columns that are not read: {', '.join(row.unread[:_NAMED])}{more}.")
    cluster = build_machine(row, sentences, calibration)
    chosen = choose_stack(
        row.text("framework"),
        release=row.text("release"),
        family=row.family,
        placement=row.text("placement"),
        generation=cluster.device.generation,
    )
    sentences += chosen.assumptions
    stack = chosen.stack.with_compiling() if row.value("compiled") else chosen.stack
    if kernel := row.meaning("interaction_kernel"):
        fused = stack.fusions | {Fusion.INTERACTION}
        stack = replace(
            stack, fusions=fused if kernel["interaction"] else fused - {Fusion.INTERACTION}
        )
    is_tf32 = row.text("compute_precision") == DType.TF32.value
    stack = replace(stack, matmul_dtypes={DType.FP32: DType.TF32 if is_tf32 else DType.FP32})
    workload = WORKLOADS[row.family](row, stack, sentences)
    if family_of(workload).has_layouts and any(map(row.text, _STATES_RECOMPUTE)):
        spec = spec_of_layouts(workload)
        training = fill(spec.training, recompute=Recompute.NONE)
        workload = spec.model_copy(update={"training": training})
    return Setting(
        workload, cluster, stack, asked or PredictOptions(), assumptions=tuple(sentences)
    )


def layout_of(setting: Setting) -> ChosenLayout:
    """The layout of the workload on the cluster and under the stack of *setting*."""
    cluster = setting.cluster
    return choose_layout(
        spec_of_layouts(setting.workload),
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=setting.stack,
    )


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
    if hosts and row.value("gpus_per_node") and hosts * per_host != ranks:
        raise WorkloadError(f"{hosts} hosts of {per_host} GPUs must have n_gpus, got {ranks}")
    hosts = ranks // per_host
    if 2 * per_host == topology.gpus_per_host and count_joined(topology) <= 2:
        topology = _spread_over_sockets(topology)
        sentences.append(f"Half of the {per_host} GPUs of a host are assumed to be on each socket.")
    if hosts > 1:
        topology = _with_network(topology, row.value("nic_gbit_per_gpu"), sentences)
    if calibration:
        topology = topology.calibrated_by(calibration)
    return build_cluster(topology, hosts=hosts, ranks_per_host=per_host)


def _topology(row: RunRow, sentences: list[str]) -> Topology:
    if not row.text("device"):
        raise WorkloadError("the GPU is not stated")
    device, name = row.text("device"), row.text("machine")
    meant = None if device in list_devices() or Path(device).exists() else find_device(device)
    if meant is not None:
        sentences.append(f"The GPU {device} is taken as {meant.name} of the catalog.")
        device = meant.name
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
    domain = row.value("nvlink_domain")
    if is_ours and domain is not None:
        other = _machine_like(name, domain)
        if other != name:
            sentences.append(f"NVLink joins {domain} GPUs; the wiring is that of {other}.")
            topology, _ = find(other, device, row.value("power_w"))
    sentences += said
    return topology


def _find_topology(
    name: str, device_name: str, power_w: float | None
) -> tuple[Topology, tuple[str, ...]]:
    """The machine *name* with this device and power limit, and assumptions about it."""
    topology, device = load_topology(name), load_device(device_name)
    if topology.device.generation != device.generation:
        raise WorkloadError(
            f"the GPUs of {name} must be of {topology.device.name}'s generation, got {device.name}"
        )
    said: tuple[str, ...] = ()
    if power_w is not None and power_w != device.power_w:
        said = (f"The power limit is {power_w:g} W instead of the board's {device.power_w:g} W.",)
        device = replace(device, power_w=power_w)
    return topology if device == topology.device else replace(topology, device=device), said


_find_ours = lru_cache(maxsize=256)(_find_topology)
_load_shipped = cache(load_topology)


@cache
def _machine_like(name: str, domain: int) -> str:
    """The machine *name*, or one with the same GPUs and an NVLink domain of *domain*, if any."""
    asked = _load_shipped(name)
    if count_joined(asked) == domain:
        return name
    alike = asked.device.name, asked.gpus_per_host, domain
    for other in list_topologies():
        found = _load_shipped(other)
        if (found.device.name, found.gpus_per_host, count_joined(found)) == alike:
            return other
    return name


@lru_cache(maxsize=64)
def _spread_over_sockets(topology: Topology) -> Topology:
    """The host with its GPUs renumbered: the first half is spread over both sockets.

    Hosts with four PCIe boards have two on each socket; those of the catalog have eight.
    """
    quarter = topology.gpus_per_host // 4
    order = [*range(quarter), *range(2 * quarter, 3 * quarter)]
    order += [gpu for gpu in range(topology.gpus_per_host) if gpu not in order]
    name_of = {f"gpu:{gpu}": f"gpu:{place}" for place, gpu in enumerate(order)}
    links = tuple(
        replace(
            link,
            source=name_of.get(link.source, link.source),
            target=name_of.get(link.target, link.target),
        )
        for link in topology.links
    )
    return replace(topology, links=links)


def count_joined(topology: Topology) -> int:
    """How many GPUs NVLink joins with the first, over others or switches; 1 where it has none."""
    joined, left = {"gpu:0"}, ["gpu:0"]
    nvlinks = [link for link in topology.links if link.kind is LinkKind.NVLINK]
    while left:
        vertex = left.pop()
        near = {link.target for link in nvlinks if link.source == vertex} - joined
        joined |= near
        left += near
    return sum(vertex.name in joined for vertex in topology.of_kind(VertexKind.GPU))


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
