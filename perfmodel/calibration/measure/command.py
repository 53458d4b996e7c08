"""Measuring the machine we run on: kernels and collectives, then files that `predict` accepts.

The same code serves a CPU (one thread a rank, wall clock, gloo) and CUDA devices (events, NCCL).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from perfmodel.base.errors import MeasurementError
from perfmodel.calibration.measure.clock import stopwatch_for
from perfmodel.calibration.measure.collectives import (
    BACKENDS,
    CollectiveMeasurement,
    measure_collectives,
)
from perfmodel.calibration.measure.fit import FamilyError, fit_device
from perfmodel.calibration.measure.kernels import KernelMeasurement, measure_kernels
from perfmodel.calibration.measure.machine import (
    Wires,
    check_device,
    dtypes_of,
    fit_wires,
    guess_devices,
    wires_document,
)
from perfmodel.stacks.profiles import load_stack
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
        "source": device.origin,
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


STACKS = {"cpu": "pytorch_cpu", "cuda": "pytorch_fused"}
"""The software stack that kernels are fitted under; predict with the same one."""


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """What to measure: *samples* of everything, collectives over *ranks* ranks (1: none)."""

    device: str
    out: Path
    ranks: int = 2
    samples: int = 9

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.samples < 3:
            raise MeasurementError(
                "measure: must have at least 1 rank and 3 samples, got "
                f"{self.ranks} and {self.samples}."
            )
        if self.out.suffix != ".yaml" or not self.out.parent.is_dir():
            raise MeasurementError(
                f"measure: {self.out} must be a file ending in .yaml in a folder that exists."
            )


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """Files that were written, what the fit leaves, and how noisy the machine was.

    *lost_ratio* is the share of time in which others had our core, *spread_ratio* the median
    distance between low and high samples.
    """

    topology: Path
    device: Path
    stack: str
    errors: Mapping[str, FamilyError]
    lost_ratio: float
    spread_ratio: float


def _ignore(phase: str) -> None:
    del phase


def measure_machine(
    request: MeasureRequest, *, on_phase: Callable[[str], None] = _ignore
) -> MeasuredMachine:
    """Measure what *request* asks for, fit, and write the files."""
    check_device(request.device)
    torch.set_num_threads(1)
    on_phase("kernels")
    kernels = measure_kernels(
        request.device,
        dtypes_of(request.device),
        stopwatch=stopwatch_for(request.device),
        samples=request.samples,
    )
    calls: list[CollectiveMeasurement] = []
    if request.ranks > 1:
        on_phase("collectives")
        calls = measure_collectives(request.device, ranks=request.ranks, samples=request.samples)
    on_phase("fitting")
    return _write(request, kernels, calls)


def _write(
    request: MeasureRequest,
    kernels: list[KernelMeasurement],
    calls: list[CollectiveMeasurement],
) -> MeasuredMachine:
    day = datetime.now(UTC).date().isoformat()
    stack = STACKS[request.device]
    source = (
        f"perfmodel calibrate measure --device {request.device}, torch {torch.__version__}; "
        f"effective rates under the stack {stack}"
    )
    guesses = guess_devices(request.device, name=request.out.stem, source=source)
    fitted = fit_device(guesses, kernels, stack=load_stack(stack))
    errors = dict(fitted.errors)
    beside = device_path(request.out)
    write_document(beside, device_document(fitted.device, date=day))
    head = _head(request, source=source, day=day)
    wires = Wires(1e9, 1000.0, 1, is_network=False)
    if calls:
        is_network = BACKENDS[request.device] == "gloo"
        found = fit_wires(calls, head=head, path=request.out, is_network=is_network)
        wires, errors["collectives"] = found.wires, found.error
    document = {**head, **wires_document(wires)}
    write_document(request.out, document)
    timings = [one.timing for one in kernels]
    return MeasuredMachine(
        topology=request.out,
        device=beside,
        stack=stack,
        errors=errors,
        lost_ratio=_middle([timing.lost_ratio for timing in timings]),
        spread_ratio=_middle([timing.spread_ratio for timing in timings]),
    )


def _head(request: MeasureRequest, *, source: str, day: str) -> dict[str, Any]:
    return {
        "name": request.out.stem,
        "description": f"{request.ranks} {request.device} ranks of the machine measured",
        "source": source,
        "date": day,
        "licence": "measured by whoever ran the command; no restriction",
        "device": device_path(request.out).name,
    }


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
