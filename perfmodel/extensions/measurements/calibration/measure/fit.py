"""Fitting a machine to measurements: rates at which our models reproduce times, and its files.

Two rates of the device are fitted, arithmetic and memory, and two of the wires between ranks,
bandwidth and latency. They are *effective*: with them, curves borrowed from the nearest calibrated
GPU are right on average, so they may differ from a datasheet. Ranks over gloo are processes with
sockets, written as hosts with a NIC; ranks over NCCL share a host and are written as linked GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from collectives import Collective, price_collective
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError, TopologyError
from perfmodel.base.forms import Document
from perfmodel.costs.models import price_ops
from perfmodel.extensions.measurements.calibration.measure import FamilyError
from perfmodel.extensions.measurements.calibration.measure.kernels import KernelMeasurement
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.stack import SoftwareStack
from topologies import Device, build_cluster
from topologies.topology_file import parse_topology

Floats = NDArray[np.float64]

LICENCE = "measured by the user of this command; no restriction"
FITTED_FAMILIES = ("gemm", "bmm", "memory")
"""Families that decide the rates; attention and lookups only check them."""


def _build_error(errors_pct: Sequence[float] | Floats) -> FamilyError:
    median_pct = float(np.median(np.abs(errors_pct)))
    return FamilyError(len(errors_pct), median_pct, float(np.median(errors_pct)))


def fit_device(
    guesses: Sequence[Device], measurements: Sequence[KernelMeasurement], *, stack: SoftwareStack
) -> tuple[Device, dict[str, FamilyError]]:
    """The best of *guesses* with fitted rates, and its errors on *measurements* by family."""
    used = [one for one in measurements if one.family in FITTED_FAMILIES]
    dtypes = tuple(dict.fromkeys(one.op.dtype for one in used if isinstance(one.op, Gemm)))
    if DType.FP32 not in dtypes or not any(one.family == "memory" for one in used):
        raise MeasurementError(
            "fit of a device: must have measured fp32 GEMMs and memory-bound kernels, "
            f"got families {', '.join(sorted({one.family for one in used})) or 'none'}."
        )
    fits = [_fit_rates(guess, dtypes, used, stack) for guess in guesses]
    _, device = min(fits, key=lambda fit: fit[0])
    priced = price_ops([one.op for one in measurements], device=device, stack=stack, is_alone=True)
    errors: dict[str, list[float]] = defaultdict(list)
    for one, predicted_ns in zip(measurements, priced.duration_ns.tolist(), strict=True):
        errors[one.family].append(100 * (predicted_ns / one.timing.duration_ns - 1))
    return device, {family: _build_error(values) for family, values in errors.items()}


def _fit_rates(
    guess: Device,
    dtypes: Sequence[DType],
    used: Sequence[KernelMeasurement],
    stack: SoftwareStack,
) -> tuple[float, Device]:
    """The remaining cost of the fit, and the device."""
    measured_ns = np.array([one.timing.duration_ns for one in used])
    ops = [one.op for one in used]
    times: dict[str, list[float]] = defaultdict(list)
    for one in used:
        times[one.family].append(one.timing.duration_ns)
    means = {family: sum(values) / len(values) for family, values in times.items()}
    # Long kernels count more, as in an iteration, within their family.
    weights = np.sqrt([one.timing.duration_ns / means[one.family] for one in used])

    def log_ratios(logs: Floats) -> Floats:
        priced = price_ops(ops, device=_with_rates(guess, dtypes, logs), stack=stack, is_alone=True)
        ratios: Floats = weights * np.log(priced.duration_ns / measured_ns)
        return ratios

    rates = [*(guess.peak_flops[dtype] for dtype in dtypes), guess.memory_bandwidth_bytes_per_s]
    # Soft, so that a single odd size (a page that had to be zeroed) does not move the rates.
    found = least_squares(log_ratios, np.log(rates), loss="soft_l1", f_scale=0.2, diff_step=[1e-3])
    return float(found.cost), _with_rates(guess, dtypes, found.x)


def _with_rates(guess: Device, dtypes: Sequence[DType], logs: Floats) -> Device:
    *peaks, bandwidth = np.exp(logs).tolist()
    of_dtype = {**guess.peak_flops, **dict(zip(dtypes, peaks, strict=True))}
    scale = bandwidth / guess.memory_bandwidth_bytes_per_s
    cache = guess.l2_bandwidth_bytes_per_s
    return replace(
        guess,
        peak_flops=of_dtype,
        vector_flops=of_dtype[DType.FP32],
        memory_bandwidth_bytes_per_s=bandwidth,
        l2_bandwidth_bytes_per_s=None if cache is None else cache * scale,
    )


FIRST_GUESS = (2e9, 50_000.0)
LEAST = (1e6, 1.0)
MOST = (1e13, 1e8)


@dataclass(frozen=True, slots=True)
class Wires:
    """Bandwidth and latency between a rank and the others.

    With *is_network* each of *ranks* ranks is a host of its own.
    """

    bandwidth_bytes_per_s: float
    latency_ns: float
    ranks: int
    is_network: bool


def fit_wires(
    measurements: Sequence[CollectiveMeasurement],
    *,
    head: Mapping[str, Any],
    path: Path,
    is_network: bool,
) -> tuple[Wires, FamilyError]:
    """The wires that explain *measurements* best, and the remaining error.

    *head* are the other keys of the topology file at *path*, next to its device file.
    """
    ranks = measurements[0].ranks
    measured_ns = np.array([one.duration_ns for one in measurements])
    # Long calls count more, as in an iteration; short ones are mostly scheduler noise here.
    weights = np.sqrt(measured_ns / measured_ns.max())

    def log_ratios(logs: Floats) -> Floats:
        bandwidth, latency_ns = np.exp(logs).tolist()
        wires = Wires(bandwidth, latency_ns, ranks, is_network)
        document = Document(str(path), {**head, **wires_document(wires)}, TopologyError)
        hosts = ranks if is_network else 1
        cluster = build_cluster(parse_topology(document, path=path), hosts=hosts)
        predicted_ns = [
            price_collective(
                Collective(one.kind, one.size_bytes, DType.FP32),
                cluster=cluster,
                ranks=range(one.ranks),
            ).duration_ns
            for one in measurements
        ]
        ratios: Floats = np.log(np.array(predicted_ns) / measured_ns)
        return ratios

    def weighted(logs: Floats) -> Floats:
        return np.asarray(weights * log_ratios(logs))

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
    return Wires(bandwidth, latency_ns, ranks, is_network), _build_error(errors)


def wires_document(wires: Wires) -> dict[str, Any]:
    """The part of a topology file that says how ranks are wired."""
    bandwidth = _rate(wires.bandwidth_bytes_per_s)
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
        "architecture": device.architecture,
        "compute_capability": device.compute_capability,
        "source": device.source,
        "date": date,
        "licence": LICENCE,
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
