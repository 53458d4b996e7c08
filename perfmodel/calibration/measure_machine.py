"""What the system says about itself: a first guess of the device that is then fitted.

On a CPU one rank runs on one thread, so the device is one core. Our models deal tiles of a
product to multiprocessors, which a core does not have; how many it is best described with is
part of the fit.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import torch

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from topologies import Device
from topologies.device import Architecture, HostLink, HostLinkKind, Multiprocessors

DEVICES = ("cpu", "cuda")
SLICES_OF_A_CORE = (1, 8, 80)
_ARCHITECTURES = {
    "6": Architecture.PASCAL, "7": Architecture.VOLTA, "8": Architecture.AMPERE,
    "9": Architecture.HOPPER, "10": Architecture.BLACKWELL, "12": Architecture.BLACKWELL,
}  # fmt: skip
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_CACHE_BYTES = 8 * 2**20


def check_device(device: str) -> None:
    """Refuse a device that is not here."""
    if device not in DEVICES:
        raise MeasurementError(
            f"measure: device must be one of {', '.join(DEVICES)}, got {device!r}."
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise MeasurementError(
            "measure: torch sees no CUDA device here. Run it on the machine with the GPU, "
            "or measure the CPU with --device cpu."
        )


def dtypes_of(device: str) -> tuple[DType, ...]:
    """Number formats worth measuring: fp32, and half precision where there are tensor cores."""
    if device == "cpu":
        return (DType.FP32,)
    major = torch.cuda.get_device_capability()[0]
    return (DType.FP32, DType.BF16) if major >= 8 else (DType.FP32, DType.FP16)


def guess_devices(device: str, *, name: str, source: str) -> list[Device]:
    """Devices to start a fit from."""
    if device == "cuda":
        return [_guess_gpu(name, source)]
    core = _guess_core(name, source)
    return [
        replace(core, multiprocessors=replace(core.multiprocessors, count=count))
        for count in SLICES_OF_A_CORE
    ]


def _guess_core(name: str, source: str) -> Device:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        name=name,
        description=f"one core of {cpu_name()}, torch on one thread",
        vendor="cpu",
        architecture=Architecture.CPU,
        compute_capability="cpu",
        multiprocessors=Multiprocessors(count=1, max_threads=1, shared_memory_bytes=2**15),
        clock_hz=_clock_hz(),
        memory_bytes=memory // (os.cpu_count() or 1),
        memory_bandwidth_bytes_per_s=10e9,
        l2_bytes=_cache_bytes(),
        l2_bandwidth_bytes_per_s=30e9,
        peak_flops={DType.FP32: 50e9},
        vector_flops=50e9,
        host_link=_host_link(10e9),
        power_w=100.0,
        source=source,
    )


def _guess_gpu(name: str, source: str) -> Device:
    facts = torch.cuda.get_device_properties(0)
    half = dtypes_of("cuda")[-1]
    capability = f"{facts.major}.{facts.minor}"
    architecture = Architecture.ADA if capability == "8.9" else _ARCHITECTURES.get(str(facts.major))
    if architecture is None:
        raise MeasurementError(
            f"measure: compute capability {capability} of {facts.name} is of no architecture we "
            "know. Write the device file by hand, like those in topologies/devices."
        )
    return Device(
        name=name,
        description=f"{facts.name}, as measured",
        vendor="nvidia",
        architecture=architecture,
        compute_capability=capability,
        multiprocessors=Multiprocessors(
            count=facts.multi_processor_count,
            max_threads=facts.max_threads_per_multi_processor,
            shared_memory_bytes=facts.shared_memory_per_multiprocessor,
        ),
        clock_hz=1e3 * getattr(facts, "clock_rate", 1.5e6),
        memory_bytes=facts.total_memory,
        memory_bandwidth_bytes_per_s=1e12,
        l2_bytes=facts.L2_cache_size,
        l2_bandwidth_bytes_per_s=None,
        peak_flops={DType.FP32: 15e12, half: 150e12},
        vector_flops=15e12,
        host_link=_host_link(12e9),
        power_w=300.0,
        source=source,
    )


def _host_link(bytes_per_s: float) -> HostLink:
    return HostLink(
        kind=HostLinkKind.PCIE,
        generation=1,
        bandwidth_bytes_per_s=bytes_per_s,
        effective_bytes_per_s=bytes_per_s,
    )


def cpu_name() -> str:
    """What the system calls its processor."""
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def _clock_hz() -> float:
    megahertz = _cpu_fact("cpu MHz")
    return 1e6 * float(megahertz) if megahertz else 2e9


def _cpu_fact(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _cache_bytes() -> int:
    """The largest cache of the first core."""
    sizes = []
    for file in _CACHE.glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=_DEFAULT_CACHE_BYTES)
