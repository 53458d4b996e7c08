"""Device files: one GPU written as YAML, read with all its faults at once."""

from __future__ import annotations

from pathlib import Path

from perfmodel.base.documents import FaultList, find_document, list_documents, load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import TopologyError
from perfmodel.base.units import (
    parse_bandwidth,
    parse_frequency_hz,
    parse_power_w,
    parse_rate_flops,
    parse_size,
)
from topologies.device import Architecture, Device, HostLink, HostLinkKind, Multiprocessors
from topologies.reading import Section

DEVICES = Path(__file__).parent / "devices"


def list_devices() -> tuple[str, ...]:
    """Names of the GPUs that come with the package."""
    return list_documents(DEVICES)


def load_device(name_or_path: str | Path) -> Device:
    """The device in a file, or of a name that comes with the package."""
    path = find_document(name_or_path, folder=DEVICES, what="device", error_type=TopologyError)
    return parse_device(load_yaml(path, error_type=TopologyError), path=path)


def parse_device(content: dict[str, object], *, path: Path) -> Device:
    """The device in *content*, read from *path*; raises with every fault."""
    faults = FaultList(f"device {path}")
    root = Section(content, "", faults)
    texts = {key: root.text(key) for key in ("name", "vendor", "compute_capability")}
    description = root.text("description", default=texts["name"])
    origin = root.origin()
    architecture = root.word("architecture", Architecture)
    multiprocessors = _read_multiprocessors(root.section("multiprocessors"))
    memory_bytes, memory_bandwidth = _read_memory(root.section("memory"))
    l2_bytes, l2_bandwidth = _read_l2(root.section("l2"))
    peak_flops = _read_peaks(root.section("peak"))
    host_link = _read_host_link(root.section("host_link"))
    clock_hz = root.quantity("clock", parse_frequency_hz)
    vector_flops = root.quantity("vector_fp32", parse_rate_flops)
    power_w = root.quantity("power", parse_power_w)
    root.refuse_unknown()
    faults.check(TopologyError)
    return Device(
        name=texts["name"],
        description=description,
        vendor=texts["vendor"],
        architecture=architecture,
        compute_capability=texts["compute_capability"],
        multiprocessors=multiprocessors,
        clock_hz=clock_hz,
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=memory_bandwidth,
        l2_bytes=l2_bytes,
        l2_bandwidth_bytes_per_s=l2_bandwidth,
        peak_flops=peak_flops,
        vector_flops=vector_flops,
        host_link=host_link,
        power_w=power_w,
        source=origin,
    )


def _read_multiprocessors(section: Section) -> Multiprocessors:
    value = Multiprocessors(
        count=section.integer("count"),
        max_threads=section.integer("max_threads"),
        shared_memory_bytes=section.quantity("shared_memory", parse_size),
        warp_threads=section.integer("warp_threads", default=32),
    )
    section.refuse_unknown()
    return value


def _read_memory(section: Section) -> tuple[int, float]:
    size = section.quantity("size", parse_size)
    bandwidth = section.quantity("bandwidth", parse_bandwidth)
    section.refuse_unknown()
    return size, bandwidth


def _read_l2(section: Section) -> tuple[int, float | None]:
    size = section.quantity("size", parse_size)
    known = section.has("bandwidth")
    bandwidth = section.quantity("bandwidth", parse_bandwidth) if known else None
    section.refuse_unknown()
    return size, bandwidth


def _read_peaks(section: Section) -> dict[DType, float]:
    peaks = {
        dtype: section.quantity(dtype.value, parse_rate_flops)
        for dtype in DType
        if section.has(dtype.value)
    }
    if DType.FP32 not in peaks:
        section.fault("fp32", "must be given, but is missing")
    section.refuse_unknown()
    return peaks


def _read_host_link(section: Section) -> HostLink:
    value = HostLink(
        kind=section.word("kind", HostLinkKind),
        generation=section.integer("generation", default=1),
        bandwidth_bytes_per_s=section.quantity("bandwidth", parse_bandwidth),
        effective_bytes_per_s=section.quantity("effective", parse_bandwidth),
    )
    section.refuse_unknown()
    return value
