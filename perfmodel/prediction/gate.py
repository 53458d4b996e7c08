"""The gate: what no machine can do is refused, or warned of in the answer.

Every question passes it when it is priced, single prices pass it, and so do tables of measurements
before they are fitted or scored. `gate.yaml` has the tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collectives.collective import CollectiveCost
from collectives.measurements import CollectiveMeasurement
from collectives.pricing import price_sizes
from perfmodel.base.cautions import Cautions, Warned, join_cautions
from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError, PerfModelError, ScenarioError
from perfmodel.base.units import NS_PER_S
from perfmodel.costs.kernel_tables import KERNEL_KINDS
from perfmodel.costs.measured_kernels import KernelTable, MeasuredKernel, price_measured
from perfmodel.costs.priced_job import PricedJob
from perfmodel.graph.ops import Attention, Gemm, GroupedGemm, MemoryBound
from perfmodel.prediction.question import Question
from perfmodel.workloads.catalog import Workload
from topologies import Device, Topology, load_device

Quantity = tuple[str, str, float]
"""Where, what, how much."""


@cache
def limits() -> dict[str, dict[str, Any]]:
    """The tolerances."""
    return load_yaml(Path(__file__).with_name("gate.yaml"))


def check_question(question: Question, priced: PricedJob) -> Cautions:
    """What the answer to *question* warns of; a price that is no number is refused."""
    found: list[Warned] = []
    machine = None if question.cluster is None else question.cluster.topology
    if not np.all(np.isfinite(priced.float_ns) & (priced.float_ns >= 0)):
        raise ScenarioError(
            f"{priced.job.facts.name}: a task has no finite price. Check the machine and its "
            "calibrations: `perfmodel topology check`."
        )
    if machine is not None and question.known is None:
        found += _beyond_prices(priced, machine.device)
    named = [] if question.workload is None else _outside(_of_workload(question.workload))
    keys = () if question.workload is None else question.workload.unknown_keys
    own = Cautions((*found, *named), keys)
    return join_cautions([own, *([] if machine is None else [check_machine(machine)])])


def check_machine(machine: Topology) -> Cautions:
    """What is implausible of *machine*, and what of its file was not understood."""
    found = _outside([*_of_device(machine.device), *_of_machine(machine)])
    return Cautions(tuple(found), machine.unknown_keys)


def check_device(device: Device) -> Cautions:
    """What is implausible of *device*."""
    return Cautions(tuple(_outside(_of_device(device))))


def check_op(op: Any, device: Device, duration_ns: float) -> Cautions:
    """What is impossible about a kernel that takes so long."""
    return Cautions(tuple(_beyond(_ratios(op, device, duration_ns), device.name)))


def check_costs(costs: Iterable[CollectiveCost], where: str) -> Cautions:
    """What is impossible about collectives of these costs; one that is no number is refused."""
    ratio = 0.0
    for cost in costs:
        if not math.isfinite(cost.duration_ns):
            raise ScenarioError(
                f"{where}: the collective has no finite price. Check the machine and its "
                "calibrations: `perfmodel topology check`."
            )
        ratio = max(ratio, cost.wire_ns / max(cost.duration_ns, 1.0))
    return Cautions(tuple(_beyond([("wire", ratio)], where)))


def _beyond(ratios: Iterable[tuple[str, float]], where: str) -> Iterator[Warned]:
    for kind, ratio in ratios:
        if not ratio <= (limit := limits()["beyond"][kind]):
            yield Warned(f"beyond the {kind}", where, ratio, limit, "times")


def _ratios(op: Any, device: Device, duration_ns: float) -> Iterator[tuple[str, float]]:
    """How many times faster than the datasheet *op* is; traffic that a cache may hold is exempt."""
    launches = getattr(op, "launches", 1)
    per_s = NS_PER_S * launches / max(duration_ns, 1e-3)
    if isinstance(op, MemoryBound):
        moved = op.read_bytes + op.write_bytes
        if moved > 2 * device.l2_bytes:
            yield "memory", moved * per_s / device.memory_bandwidth_bytes_per_s
    elif isinstance(op, Gemm | GroupedGemm | Attention):
        peaks = [device.peak_flops.get(one, 0.0) for one in (op.dtype, DType.TF32)]
        own = max(peaks[: 1 + (op.dtype is DType.FP32)])
        yield "peak", op.flops * per_s / (own or max(device.peak_flops.values()))


def _beyond_prices(priced: PricedJob, device: Device) -> Iterator[Warned]:
    """The worst task of *priced* by every rule that one breaks."""
    job = priced.job
    least_ns = np.full(len(job.ops), np.inf)
    label_of = np.zeros(len(job.ops), dtype=np.int64)
    wires: list[tuple[float, str]] = [(0.0, "")]
    offsets = priced.durations.rank_offset.tolist()
    for number, start in dict.fromkeys(zip(job.rank_program.tolist(), offsets, strict=True)):
        program = job.programs[number]
        rows = slice(start, start + program.task_count)
        np.minimum.at(least_ns, program.op, priced.float_ns[rows])
        label_of[program.op] = program.label
        wire = priced.link_use[rows, 2]
        if len(wire):
            wires.append((float(wire.max()), job.labels[int(program.label[wire.argmax()])]))
    worst = {"wire": max(wires)}
    for number, op in enumerate(job.ops):
        if np.isfinite(least_ns[number]):
            for kind, ratio in _ratios(op, device, float(least_ns[number])):
                place = (ratio, job.labels[int(label_of[number])])
                worst[kind] = max(worst.get(kind, place), place)
    for kind, (ratio, label) in worst.items():
        yield from _beyond([(kind, ratio)], label)


def _outside(quantities: Iterable[Quantity]) -> Iterator[Warned]:
    """Those of *quantities* that are outside their ranges."""
    for where, name, value in dict.fromkeys(quantities):
        low, high, *unit = limits()["ranges"][name]
        if not low <= value <= high:
            yield Warned(
                f"implausible {name}", where, value, low if value < low else high, "".join(unit)
            )


def _of_device(device: Device) -> Iterator[Quantity]:
    where, clocks = device.name, device.sm_count * device.clock_hz
    yield where, "clock", device.clock_hz
    yield where, "memory", device.memory_bytes
    yield where, "L2", device.l2_bytes
    yield where, "power", device.power_w
    yield where, "multiprocessors", device.sm_count
    per_clock = {
        "memory traffic": [device.memory_bandwidth_bytes_per_s],
        "vector rate": [device.vector_flops],
        "L2 traffic": [device.l2_bandwidth_bytes_per_s or clocks],
        "peak rate": device.peak_flops.values(),
    }
    for name, rates in per_clock.items():
        for rate in rates:
            yield where, f"{name} per clock of a multiprocessor", rate / clocks
    link = device.host_link
    for rate in (link.bandwidth_bytes_per_s, link.effective_bytes_per_s):
        yield f"{where}, link to the host", "bandwidth", rate


def _of_machine(machine: Topology) -> Iterator[Quantity]:
    for link in machine.links:
        where = f"{machine.name}, {link.kind.value}"
        yield where, "bandwidth", link.bandwidth_bytes_per_s
        yield where, "latency", link.latency_ns
    if machine.host_copy_bytes_per_s is not None:
        yield f"{machine.name}, copies of the host", "bandwidth", machine.host_copy_bytes_per_s
    fabric, where = machine.fabric, f"{machine.name}, fabric"
    if fabric is not None:
        yield where, "bandwidth", fabric.nic_bandwidth_bytes_per_s
        yield where, "latency of a NIC", fabric.nic_latency_ns
        yield where, "latency of a NIC", fabric.spine_latency_ns
        yield where, "latency of a call", fabric.call_latency_ns
        yield where, "oversubscription", fabric.oversubscription
        yield where, "hosts per leaf", fabric.hosts_per_leaf


def _of_workload(workload: Workload) -> Iterator[Quantity]:
    yield workload.name, "batch", workload.batch
    yield workload.name, "time of the host", workload.input.load_time or 0.0
    for name, value in workload.quantities():
        yield workload.name, name, value


def check_collectives(
    rows: Sequence[CollectiveMeasurement], where: str
) -> tuple[tuple[CollectiveMeasurement, ...], Cautions]:
    """The *rows* of tables that can be true, and what is wrong with the others."""
    curves: dict[Any, list[CollectiveMeasurement]] = {}
    for row in rows:
        if not row.fault and row.ranks > 1:
            curves.setdefault((row.wiring(), row.kind, row.software, row.dtype), []).append(row)
    ratios, scales = {}, []
    for (wiring, kind, software, dtype), alike in curves.items():
        sizes = np.array([float(row.size_bytes) for row in alike])
        costs = price_sizes(kind, sizes, wiring=wiring, software=software, dtype=dtype)
        for row, cost in zip(alike, costs, strict=True):
            ratios[row.row] = [("wire", cost.wire_ns / row.duration_ns)]
            scales.append(row.duration_ns / max(cost.duration_ns, 1.0))
    _check_scale(scales, [row.column_ratio for row in rows], where)
    kept, cautions = _keep([(row, row.fault, ratios.get(row.row, ())) for row in rows], where)
    return tuple(kept), cautions


def check_kernels(kind: str, table: KernelTable, where: str) -> tuple[KernelTable, Cautions]:
    """The rows of *table*, of kernels of a *kind*, that can be true, and what else is wrong."""
    of_kind: dict[tuple[str, str], list[MeasuredKernel]] = {}
    for kernel in table.kernels:
        of_kind.setdefault((kernel.device, kernel.group[-1]), []).append(kernel)
    rows: list[Any] = [(None, one.reason, ()) for one in table.unsupported]
    scales: list[float] = []
    for (name, _), kernels in of_kind.items():
        some = kernels[:: 1 + len(kernels) // MOST_SCALED]
        try:
            device = load_device(name)
            found = price_measured(some, KERNEL_KINDS[kind].model(None))
        except PerfModelError:
            # Rows of an unknown GPU are a matter of what is done with them.
            rows += [(one, "", ()) for one in kernels]
            continue
        rows += [(one, "", _ratios(one.op, device, one.measured_ns)) for one in kernels]
        predicted = zip(some, found.duration_ns.tolist(), strict=True)
        scales += [one.measured_ns / max(ns, 1.0) for one, ns in predicted]
    _check_scale(scales, [one.column_ratio for one in table.kernels], where)
    kept, cautions = _keep(rows, where)
    order = {one.row: place for place, one in enumerate(table.kernels)}
    kept.sort(key=lambda one: order[one.row])
    return KernelTable(tuple(kept), table.unsupported), cautions


MOST_SCALED = 50
"""Rows of a kind that tell the unit of a table."""


def _check_scale(scales: Sequence[float], columns: Sequence[float], where: str) -> None:
    """Refuse a table whose columns contradict each other, or whose unit cannot be the stated."""
    beyond = limits()["beyond"]
    wrong = [one for one in columns if not 1 / beyond["column"] <= one <= beyond["column"]]
    if len(wrong) > beyond["rows"] * len(columns):
        raise MeasurementError(
            f"{where}: times and rates of a row must agree, and differ by {np.median(wrong):,.4g} "
            f"times in {len(wrong)} of {len(columns)} rows. Correct the unit of the column that is "
            "wrong."
        )
    middle = float(np.median(scales)) if scales else 1.0
    if any(doubt_scales({where: middle})):
        raise MeasurementError(
            f"{where}: times must be in the unit of their column, and are {middle:,.4g} times as "
            f"long as this hardware takes (half of {len(scales)} rows). Correct unit or machine."
        )


def doubt_scales(scales: Mapping[str, float]) -> Iterator[Warned]:
    """Those of *scales*, measured times over predicted ones, that tell of another unit."""
    most = limits()["beyond"]["scale"]
    for where, ratio in scales.items():
        if not 1 / most <= ratio <= most:
            yield Warned("measured over predicted", where, ratio, most if ratio > 1 else 1 / most)


def _keep(
    rows: Sequence[tuple[Any, str, Iterable[tuple[str, float]]]], where: str
) -> tuple[list[Any], Cautions]:
    """The rows without a fault that are not beyond physics; too many of the latter are refused."""
    kept, warned, count = [], [], 0
    for row, fault, ratios in rows:
        beyond = [*_beyond(ratios, where)]
        warned += beyond
        count += bool(beyond)
        if not fault and not beyond:
            kept.append(row)
    if count > limits()["beyond"]["rows"] * len(rows):
        worst = max(warned, key=lambda one: one.found / one.limit)
        raise MeasurementError(
            f"{where}: {count} of {len(rows)} rows are faster than the hardware, at worst "
            f"{worst.rule} {worst.found:,.4g} times. Correct their unit, or name the right machine."
        )
    if len(kept) < len(rows):
        warned.append(Warned("rows left out", where, len(rows) - len(kept), 0, f"of {len(rows)}"))
    return kept, Cautions(tuple(warned))
