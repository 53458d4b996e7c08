"""Measuring this machine: kernels and collectives, then files that `predict` accepts.

The same code serves a CPU (one thread per rank, wall clock, gloo) and CUDA devices (events, NCCL).
What the system says about itself is a first guess of the device, which is then fitted. On a CPU
the device is one core. Our models assign tiles of a GEMM to multiprocessors, which a core does not
have; the number that describes it best is part of the fit.
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from collectives.measurements import CollectiveMeasurement
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.extensions.measurements.calibration.measure import MeasuredMachine
from perfmodel.extensions.measurements.calibration.measure.clock import stopwatch_for
from perfmodel.extensions.measurements.calibration.measure.collectives import (
    BACKENDS,
    measure_collectives,
)
from perfmodel.extensions.measurements.calibration.measure.fit import (
    LICENCE,
    Wires,
    device_document,
    device_path,
    fit_device,
    fit_wires,
    wires_document,
    write_document,
)
from perfmodel.extensions.measurements.calibration.measure.kernels import (
    KernelMeasurement,
    measure_kernels,
)
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.stacks.profiles import load_stack
from topologies import Device
from topologies.device import CPU, HostLink, HostLinkKind, Multiprocessors

STACKS = {"cpu": "pytorch_cpu", "cuda": "pytorch_fused"}
"""The software stack that kernels are fitted under; predict with the same one."""


def measure_machine(
    device: str,
    out: Path,
    *,
    ranks: int = 2,
    samples: int = 9,
    on_phase: OnPhase = ignore_phase,
) -> MeasuredMachine:
    """Measure *samples* of everything, collectives over *ranks* ranks (1: none), fit, and write."""
    if ranks < 1 or samples < 3:
        raise MeasurementError(
            f"measure: must have at least 1 rank and 3 samples, got {ranks} and {samples}."
        )
    if out.suffix != ".yaml" or not out.parent.is_dir():
        raise MeasurementError(
            f"measure: {out} must be a file ending in .yaml in a folder that exists."
        )
    check_device(device)
    torch.set_num_threads(1)
    on_phase("kernels", 0.0)
    stopwatch = stopwatch_for(device)
    kernels = measure_kernels(device, dtypes_of(device), stopwatch=stopwatch, samples=samples)
    calls: list[CollectiveMeasurement] = []
    if ranks > 1:
        on_phase("collectives", 0.0)
        calls = measure_collectives(device, ranks=ranks, samples=samples)
    on_phase("fitting", 0.0)
    return _write(device, out, kernels, calls)


def _write(
    kind: str, out: Path, kernels: list[KernelMeasurement], calls: list[CollectiveMeasurement]
) -> MeasuredMachine:
    day = datetime.now(UTC).date().isoformat()
    stack = STACKS[kind]
    source = (
        f"perfmodel calibrate measure --device {kind}, torch {torch.__version__}; "
        f"effective rates under the stack {stack}"
    )
    guesses = guess_devices(kind, name=out.stem, source=source)
    device, errors = fit_device(guesses, kernels, stack=load_stack(stack))
    beside = device_path(out)
    write_document(beside, device_document(device, date=day))
    head = {
        "name": out.stem,
        "description": f"{calls[0].ranks if calls else 1} {kind} ranks of the machine measured",
        "source": source,
        "date": day,
        "licence": LICENCE,
        "device": beside.name,
    }
    wires = Wires(1e9, 1000.0, 1, is_network=False)
    if calls:
        is_network = BACKENDS[kind] == "gloo"
        wires, errors["collectives"] = fit_wires(calls, head=head, path=out, is_network=is_network)
    write_document(out, {**head, **wires_document(wires)})
    return MeasuredMachine(
        topology=out,
        device=beside,
        stack=stack,
        errors=errors,
        lost_ratio=_middle([one.timing.lost_ratio for one in kernels]),
        spread_ratio=_middle([one.timing.spread_ratio for one in kernels]),
    )


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


DEVICES = ("cpu", "cuda")
SLICES_OF_A_CORE = (1, 8, 80)
_ARCHITECTURES = {
    "6": "pascal", "7": "volta", "8": "ampere",
    "9": "hopper", "10": "blackwell", "12": "blackwell",
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
        architecture=CPU,
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
    # A generation that is not known is named by its capability, and priced as the nearest.
    known = "ada" if capability == "8.9" else _ARCHITECTURES.get(str(facts.major))
    return Device(
        name=name,
        description=f"{facts.name}, as measured",
        vendor="nvidia",
        architecture=known or f"sm_{capability}",
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
