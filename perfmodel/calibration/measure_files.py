"""Files of a measured machine: a device file, and a topology file beside it that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from topologies import Device


def device_path(topology_path: Path) -> Path:
    """The device file that goes with the topology file at *topology_path*."""
    return topology_path.with_name(f"{topology_path.stem}_device.yaml")


def device_document(device: Device, *, date: str) -> dict[str, Any]:
    """*device* as a file holds it; every quantity with its unit."""
    units = device.multiprocessors
    cache: dict[str, str] = {"size": f"{device.l2_bytes} B"}
    if device.l2_bandwidth_bytes_per_s is not None:
        cache["bandwidth"] = _rate(device.l2_bandwidth_bytes_per_s)
    link = device.host_link
    return {
        "name": device.name,
        "description": device.description,
        "vendor": device.vendor,
        "architecture": device.architecture.value,
        "compute_capability": device.compute_capability,
        "source": device.source,
        "date": date,
        "licence": "measured by whoever ran the command; no restriction",
        "clock": f"{device.clock_hz / 1e9:.6g} GHz",
        "multiprocessors": {
            "count": units.count,
            "max_threads": units.max_threads,
            "shared_memory": f"{units.shared_memory_bytes} B",
        },
        "memory": {
            "size": f"{device.memory_bytes} B",
            "bandwidth": _rate(device.memory_bandwidth_bytes_per_s),
        },
        "l2": cache,
        "peak": {dtype.value: _flops(rate) for dtype, rate in device.peak_flops.items()},
        "vector_fp32": _flops(device.vector_flops),
        "host_link": {
            "kind": link.kind.value,
            "generation": link.generation,
            "bandwidth": _rate(link.bandwidth_bytes_per_s),
            "effective": _rate(link.effective_bytes_per_s),
        },
        "power": f"{device.power_w:g} W",
    }


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write *document* to *path*."""
    text = yaml.safe_dump(document, sort_keys=False, width=110)
    path.write_text(text, encoding="utf-8")


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.6g} GB/s"


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.6g} TFLOP/s"
