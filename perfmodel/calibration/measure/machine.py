"""What the system says about itself: a first guess of the device that is then fitted.

On a CPU one rank runs on one thread, so the device is one core. Our models deal tiles of a
product to multiprocessors, which a core does not have; how many it is best described with is
part of the fit.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from collectives import Collective, price_collective
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError, TopologyError
from perfmodel.base.forms import Document
from perfmodel.calibration.measure.collectives import CollectiveMeasurement
from perfmodel.calibration.measure.fit import FamilyError
from topologies import Cluster, Device, build_cluster
from topologies.device import Architecture, HostLink, HostLinkKind, Multiprocessors
from topologies.topology_file import parse_topology

# Ranks that talk over gloo are processes with sockets, so each is written as a host with a NIC;
# ranks that talk over NCCL share a host and are written as GPUs linked to each other.


FIRST_GUESS = (2e9, 50_000.0)
LEAST = (1e6, 1.0)
MOST = (1e13, 1e8)


@dataclass(frozen=True, slots=True)
class Wires:
    """What a rank's way to the others carries, and how long its first byte takes.

    With *is_network* each of *ranks* ranks is a host of its own.
    """

    bandwidth_bytes_per_s: float
    latency_ns: float
    ranks: int
    is_network: bool


@dataclass(frozen=True, slots=True)
class FittedWires:
    """Wires, and what is left of the measurements after the fit."""

    wires: Wires
    error: FamilyError


def fit_wires(
    measurements: Sequence[CollectiveMeasurement],
    *,
    head: Mapping[str, Any],
    path: Path,
    is_network: bool,
) -> FittedWires:
    """The wires that explain *measurements*.

    *head* are the other keys of the topology file at *path*, beside its device file.
    """
    ranks = measurements[0].ranks
    measured_ns = np.array([one.timing.duration_ns for one in measurements])
    # Long calls count more, as they do in an iteration; short ones are mostly scheduler here.
    weights = np.sqrt(measured_ns / measured_ns.max())

    def log_ratios(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        bandwidth, latency_ns = np.exp(logs).tolist()
        wires = Wires(bandwidth, latency_ns, ranks, is_network)
        document = Document(str(path), {**head, **wires_document(wires)}, TopologyError)
        hosts = ranks if is_network else 1
        cluster = build_cluster(parse_topology(document, path=path), hosts=hosts)
        ratios: NDArray[np.float64] = np.log(_predict_ns(measurements, cluster) / measured_ns)
        return ratios

    def weighted(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        product: NDArray[np.float64] = weights * log_ratios(logs)
        return product

    found = least_squares(
        weighted,
        np.log(FIRST_GUESS),
        loss="soft_l1",
        f_scale=0.2,
        diff_step=[1e-2],
        bounds=(np.log(LEAST), np.log(MOST)),
    )
    bandwidth, latency_ns = np.exp(found.x).tolist()
    errors = 100 * (np.exp(log_ratios(found.x)) - 1)
    return FittedWires(
        Wires(bandwidth, latency_ns, ranks, is_network),
        FamilyError(len(errors), float(np.median(np.abs(errors))), float(np.median(errors))),
    )


def _predict_ns(
    measurements: Sequence[CollectiveMeasurement], cluster: Cluster
) -> NDArray[np.float64]:
    return np.array(
        [
            price_collective(
                Collective(one.kind, one.size_bytes, DType.FP32),
                cluster=cluster,
                ranks=range(one.ranks),
            ).duration_ns
            for one in measurements
        ]
    )


def wires_document(wires: Wires) -> dict[str, Any]:
    """The part of a topology file that says how ranks are wired."""
    bandwidth = f"{wires.bandwidth_bytes_per_s / 1e9:.6g} GB/s"
    latency = f"{wires.latency_ns:.6g} ns"
    if not wires.is_network:
        link = {"mesh": "gpu:*", "kind": "pcie", "bandwidth": bandwidth, "latency": latency}
        return {"vertices": {"gpu": wires.ranks}, "links": [link]}
    inside = {"kind": "pcie", "bandwidth": "1000 GB/s", "latency": "0 ns"}
    return {
        "vertices": {"gpu": 1, "cpu": 1, "nic": 1},
        "links": [
            {"between": ["gpu:0", "cpu:0"], **inside},
            {"between": ["nic:0", "cpu:0"], **inside},
        ],
        "fabric": {
            "kind": "flat",
            "nic": {"bandwidth": bandwidth, "latency": latency},
            "leaf": {"hosts": 1024},
            "spine": {"oversubscription": "1 to 1", "latency": "0 ns"},
        },
    }


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
